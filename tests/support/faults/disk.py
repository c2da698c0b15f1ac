"""A file system of its own for the folder of a run, that gets full, or does not answer."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SIZE = 64 << 20
TOOLS = ("mkfs.ext4", "losetup", "mount", "umount", "fsfreeze")
SECONDS = 60.0


def why_no_disk() -> str | None:
    """Why there can be none; None if there can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"a disk for a run needs {', '.join(missing)}" if missing else None


@dataclass(frozen=True)
class Disk:
    """A file system that all hosts see.

    Attributes:
        folder: Where.
    """

    folder: Path

    def fill(self) -> None:
        """Leaves no room on it."""
        # Unbuffered, since closing a buffer that has no room is an error again.
        with (self.folder / "filler").open("wb", buffering=0) as file:
            for piece in (1 << 20, 1 << 12, 1):
                with suppress(OSError):
                    while file.write(bytes(piece)):
                        os.fsync(file.fileno())

    def empty(self) -> None:
        (self.folder / "filler").unlink(missing_ok=True)

    def freeze(self) -> None:
        """Has all that would write to it wait, as for a server that does not answer."""
        subprocess.run(["fsfreeze", "--freeze", self.folder], check=True, timeout=SECONDS)

    def thaw(self) -> None:
        """Has them go on. That it was not frozen does not matter."""
        subprocess.run(
            ["fsfreeze", "--unfreeze", self.folder],
            check=False,
            capture_output=True,
            timeout=SECONDS,
        )


@contextmanager
def made_disk(folder: Path, image: Path) -> Iterator[Disk]:
    """A disk, as long as the block lasts; what other namespaces have of it goes with them.

    Args:
        folder: Where it is to be.
        image: A file that it is kept in.
    """
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(SIZE)
    # No blocks are kept for root, who would not find it full.
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True, timeout=SECONDS)
    subprocess.run(["mount", "-o", "loop", image, folder], check=True, timeout=SECONDS)
    disk = Disk(folder)
    try:
        yield disk
    finally:
        disk.thaw()
        subprocess.run(["umount", "--lazy", folder], check=True, timeout=SECONDS)
        image.unlink()
