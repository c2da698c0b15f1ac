"""Looks for files on file systems and in object stores, and opens none that may never answer."""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import IO

from pipelines.errors import InputError
from pipelines.files.locations import Location, RemotePath, is_within
from pipelines.files.stores import first_line


def exists(path: Location, key: str) -> bool:
    """Whether there is such a file or folder.

    Raises:
        InputError: Its store cannot be asked.
    """
    try:
        return path.exists()
    except OSError as error:
        if isinstance(path, Path):
            raise
        remedy = "mend the address or the credentials; see docs/storage.md"
        raise InputError(key, f"{path} cannot be reached ({first_line(error)})", remedy) from None


def matching(pattern: Location) -> list[Location]:
    """What a glob matches; ``**`` stands for any depth."""
    if isinstance(pattern, Path):
        found = glob.glob(str(pattern), recursive=True)  # noqa: PTH207 - of an absolute pattern
        return [Path(match) for match in found]
    folder = fixed_folder(pattern)
    return list(folder.glob(str(pattern.relative_to(folder))))


def fixed_folder(pattern: Location) -> Location:
    """Return the folder above the first wildcard of a glob."""
    parts = pattern.parts if isinstance(pattern, Path) else pattern.key.parts
    fixed = takewhile(lambda part: not glob.has_magic(part), parts)
    if isinstance(pattern, Path):
        return Path(*fixed)
    return RemotePath(pattern.store, PurePosixPath(*fixed))


@dataclass(frozen=True)
class Links:
    """What becomes of links in a folder of inputs.

    Attributes:
        root: The folder, or the part of a glob without wildcards.
        key: The setting that names it.
        follow: Whether those that lead out of it are followed.
    """

    root: Location
    key: str
    follow: bool

    @cached_property
    def _real_root(self) -> Location:
        return self.root.resolve()

    def check(self, path: Path) -> None:
        """Refuse a place that links lead to out of the folder.

        Raises:
            InputError: Names the setting that allows it.
        """
        real = path.resolve()
        if not self.follow and not is_within(real, self._real_root):
            section = self.key.partition(".")[0]
            raise InputError(
                self.key,
                f"{path} is a link to {real}, outside of {self._real_root}",
                f"set {section}.follow_links to true, or name the file itself",
            )


def check_regular(path: Location, key: str) -> None:
    """Refuse what is neither file nor folder: to open it may wait for ever.

    Raises:
        InputError: It is a pipe, a socket or a device.
    """
    if isinstance(path, RemotePath):
        return
    try:
        mode = path.stat().st_mode
    except OSError:
        # Whoever reads it says so.
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        kind = _KINDS.get(stat.S_IFMT(mode), "device")
        raise InputError(key, f"{path} is a {kind}", "name regular files, or folders of them")


_KINDS = {stat.S_IFIFO: "named pipe", stat.S_IFSOCK: "socket"}


def open_regular(path: Location) -> IO[bytes]:
    """Open a file to read it, and never wait for what has become a pipe since it was found.

    Raises:
        OSError: It is no regular file, or cannot be opened.
    """
    if isinstance(path, RemotePath):
        return path.open("rb")
    opened = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 - Path has no opener
    if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
        opened.close()
        raise OSError(errno.EINVAL, "no regular file")
    return opened


def _without_waiting(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NONBLOCK)


def files_below(
    folder: Location, is_hidden: Callable[[str], bool], links: Links | None = None
) -> Iterator[Location]:
    """Yield the files at any depth, but for hidden ones and those in hidden folders.

    Args:
        folder: On a file system or in a store.
        is_hidden: By the name.
        links: What becomes of links to folders; None: they are passed over.

    Raises:
        InputError: A folder is a link that is not to be followed.
    """
    if isinstance(folder, RemotePath):
        for name, status in folder.entries():
            if status is not None and not any(map(is_hidden, name.split("/"))):
                yield folder / name
        return
    follow, seen = links is not None and links.follow, set[str]()
    for parent, folders, names in os.walk(folder, followlinks=follow):
        if follow and os.path.realpath(parent) in seen:
            # A link back, or a second one to a folder that was read.
            folders[:] = []
            continue
        seen.add(os.path.realpath(parent))
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        for path in (Path(parent, name) for name in folders):
            if links is not None and path.is_symlink():
                links.check(path)
        yield from (Path(parent, name) for name in sorted(names) if not is_hidden(name))


def sort_key(path: Location) -> tuple[bool, tuple[str, ...]]:
    """Orders files by the parts of their paths, those of file systems first."""
    return isinstance(path, RemotePath), path.parts
