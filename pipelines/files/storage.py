"""Folders that are either whole or not there."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.files.owners import Owner

ABANDONED_SECONDS = 24 * 3600.0
"""What a process elsewhere has put aside, and has not changed for so long, is abandoned."""

_CANNOT_GROW = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EPERM)
# What file systems say that cannot flush a folder.
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES)
_ASIDE = re.compile(r"\.(.+)\.([^.]+)-[0-9a-f]{8}\.(?:part|old|gone)")


@contextmanager
def new_folder(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yields a folder beside ``path`` that takes its place when the block ends well.

    An error inside leaves what was at ``path`` before, and nothing else. What a process left when
    it was killed is removed by the next one: at once if that can know that the process is gone, and
    otherwise, in another container or on another machine, when nothing of it has changed for a day.

    Args:
        path: Where the folder is to be.
        replace: Whether it may take the place of another. Otherwise, of two processes that want the
            same place one is given it, and the other an OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = aside_name(path, ".part")
    part.mkdir()
    try:
        clear_abandoned(path, part)
        yield part
        if replace:
            take_place(part, path)
        else:
            part.rename(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def take_place(new: Path, path: Path) -> None:
    """Renames a folder that is whole, so that it takes the place of another, if there is one.

    A process that is killed meanwhile leaves both, and :func:`settle` puts the other one back.

    Args:
        new: Beside ``path``.
        path: The place.
    """
    if not path.exists():
        new.rename(path)
        return
    replaced = aside_name(path, ".old")
    path.rename(replaced)
    try:
        new.rename(path)
    except OSError:
        replaced.rename(path)
        raise
    _remove_for_good(replaced, replaced.with_suffix(".gone"))


def settle(path: Path) -> None:
    """Clears what processes that were killed have left aside for a place.

    What had to make room for a new folder that never came is put back.

    Args:
        path: The place; a lock keeps other processes from it, see :mod:`pipelines.files.locks`.
    """
    for left in _left_aside(path.parent):
        if left.place == path:
            _clear(left)


def clear_abandoned(path: Path, own: Path) -> None:
    """Removes what processes that are gone have left aside for a place.

    Args:
        path: The place.
        own: What this process has just put aside there: its time of change is by the clock of the
            file system, which may be another machine's.
    """
    now = own.stat().st_mtime
    for left in _left_aside(path.parent):
        if left.place == path and left.is_abandoned(now):
            _clear(left)


def remove_folder(path: Path) -> None:
    """Removes a folder at once for every reader."""
    _remove_for_good(path, aside_name(path, ".gone"))


def _remove_for_good(path: Path, gone: Path) -> None:
    """Renames it first, so that no reader takes what is left of it for a whole folder."""
    path.rename(gone)
    # NFS keeps files that a process on this machine has open; they are swept later.
    shutil.rmtree(gone, ignore_errors=True)


def digest_folder(folder: Path) -> str:
    """A digest of the names and the bytes of all files in a folder, 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    return digest.hexdigest()[:16]


def sweep(folder: Path) -> None:
    """Removes all that other processes have left aside in a folder where no other one works now.

    What had to make room for a new folder that never came is put back.

    Args:
        folder: Held by a lock, see :mod:`pipelines.files.locks`; need not be there.
    """
    for left in _left_aside(folder):
        _clear(left)


def aside_name(path: Path, suffix: str) -> Path:
    """A name beside ``path`` for what this process puts there for a while.

    Args:
        path: What it is to become, or was.
        suffix: `.part`, `.old` or `.gone`.
    """
    return path.parent / f".{path.name}.{Owner.here()}-{uuid.uuid4().hex[:8]}{suffix}"


def remove_asides(path: Path) -> None:
    """Removes what killed processes have left beside a file.

    Args:
        path: The file; the caller holds a lock, under which no other process writes it.
    """
    for aside in path.parent.glob(f".{path.name}.*.part"):
        aside.unlink()


@dataclass(frozen=True)
class _Aside:
    """What a process has put aside.

    Attributes:
        path: Where it is.
        place: Where it was, or was to be.
        owner: The process.
    """

    path: Path
    place: Path
    owner: Owner

    def is_abandoned(self, now: float) -> bool:
        is_gone = self.owner.is_gone()
        if is_gone is None:
            return now - _last_change(self.path) > ABANDONED_SECONDS
        return is_gone


def _left_aside(folder: Path) -> list[_Aside]:
    """What is named as :func:`aside_name` does; all else is not ours."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        matched = _ASIDE.fullmatch(path.name)
        owner = Owner.parse(matched[2]) if matched else None
        if matched and owner:
            found.append(_Aside(path, path.with_name(matched[1]), owner))
    return found


def _clear(left: _Aside) -> None:
    if left.path.suffix == ".old" and not left.place.exists():
        # Its process was killed before the new folder was in the place of this one.
        left.path.rename(left.place)
    elif left.path.is_dir() and not left.path.is_symlink():
        shutil.rmtree(left.path, ignore_errors=True)
    else:
        left.path.unlink(missing_ok=True)


def _last_change(path: Path) -> float:
    """The newest time of change of a folder and all that is in it."""
    times = []
    for found in (path, *path.rglob("*")):
        # A file that disappears meanwhile belongs to a process that is alive.
        with suppress(FileNotFoundError):
            times.append(found.lstat().st_mtime)
    return max(times, default=math.inf)


def add_line(path: Path, line: str) -> None:
    """Adds a line to a file; where files cannot grow, as on mounts of object stores, all is written
    anew.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    except OSError as error:
        if error.errno not in _CANNOT_GROW:
            raise
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        write_text(path, f"{before}{line}\n")


def flush(path: Path) -> None:
    """Waits until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some mounts have nothing to write through for a folder, and say so.
        if not (path.is_dir() and error.errno in _NO_FOLDER_SYNC):
            raise
    finally:
        os.close(descriptor)


def flush_tree(folder: Path) -> None:
    """Waits until all that is in a folder is on the disk."""
    for path in [*folder.rglob("*"), folder]:
        flush(path)


def write_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Writes a file aside and renames it, so that a reader never sees half of it.

    Args:
        durable: Whether it is to be on the disk when this returns, whole after a power cut too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = aside_name(path, ".part")
    try:
        aside.write_text(text, encoding="utf-8")
        if durable:
            flush(aside)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    if durable:
        flush(path.parent)


def write_json(path: Path, value: Any, *, durable: bool = False) -> None:
    """Writes indented JSON with :func:`write_text`."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    write_text(path, text, durable=durable)


def read_json(path: Path) -> Any:
    """Reads a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))
