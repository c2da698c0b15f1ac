"""Files that are whole after a power cut too: written through before their name is given."""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path

_KEEPS_FOLDERS_ITSELF = (errno.EINVAL, errno.ENOTSUP)


def flush(path: Path) -> None:
    """Waits until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some mounts have nothing to write through for a folder, and say so.
        if error.errno not in _KEEPS_FOLDERS_ITSELF or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def flush_tree(folder: Path) -> None:
    """Waits until all that is in a folder is on the disk."""
    for path in [*folder.rglob("*"), folder]:
        flush(path)


def aside_of(path: Path) -> Path:
    """A name beside ``path`` for what is to take its place; see :func:`remove_asides`."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")


def remove_asides(path: Path) -> None:
    """Removes what killed processes have left beside a file; nobody may be writing it."""
    for aside in path.parent.glob(f".{path.name}.*.part"):
        aside.unlink()


def write_text(path: Path, text: str) -> None:
    """Replaces a file as a whole."""
    aside = aside_of(path)
    try:
        aside.write_text(text, encoding="utf-8")
        flush(aside)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    flush(path.parent)
