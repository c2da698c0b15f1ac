"""What a lock needs of a place: a file that one process alone makes, and that changes as a whole.

File systems create exclusively and rename. Object stores have conditional writes, by which
:mod:`pipelines.files.conditional` makes, changes and removes a file only as long as it is what it
was when it was read.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pipelines.files import conditional, storage
from pipelines.files.locations import Location, RemotePath

SHARED = re.compile(r".*\.[0-9a-f]{32}")
"""The names of the files of those who share a lock."""
GONE = re.compile(r"\..*\.[0-9a-f]{8}\.gone")
"""The names of files that are being removed."""
IsSame = Callable[[bytes, bytes], bool]
P = TypeVar("P", Path, RemotePath)


class LockFiles(Protocol[P]):
    """The file operations of locks in one kind of place.

    Attributes:
        beat_seconds: After which a holder changes its file.
        poll_seconds: After which others look at it again.
    """

    beat_seconds: float
    poll_seconds: float

    def make(self, path: P, content: bytes) -> bool:
        """Makes a file unless there is one."""

    def content(self, path: P) -> bytes | None:
        """The content of a file; None where there is none."""

    def change(self, path: P, content: bytes) -> None:
        """Replaces the content of this process's own file as a whole."""

    def remove(self, path: P, known: bytes, is_same: IsSame) -> None:
        """Removes a file if it is what is known; of several processes one succeeds."""

    def beside(self, path: P) -> list[P]:
        """The files of those who share a lock."""

    def sweep(self, path: P) -> None:
        """Removes what processes left that were killed while they changed or removed a file."""


class PosixLockFiles:
    """On a file system."""

    beat_seconds = 2.0
    poll_seconds = 0.1

    def make(self, path: Path, content: bytes) -> bool:
        """See :class:`LockFiles`."""
        try:
            file = path.open("xb")
        except FileExistsError:
            return False
        try:
            with file:
                file.write(content)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return True

    def content(self, path: Path) -> bytes | None:
        """See :class:`LockFiles`."""
        with suppress(FileNotFoundError):
            return path.read_bytes()
        return None

    def change(self, path: Path, content: bytes) -> None:
        """As a whole: on a full disk the file stays as it is."""
        aside = storage.aside_name(path, ".part")
        try:
            aside.write_bytes(content)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)

    def remove(self, path: Path, known: bytes, is_same: IsSame) -> None:
        """See :class:`LockFiles`."""
        aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.gone")
        try:
            path.rename(aside)
        except FileNotFoundError:
            return
        with suppress(FileNotFoundError):
            if is_same(aside.read_bytes(), known):
                aside.unlink()
            else:
                aside.rename(path)

    def beside(self, path: Path) -> list[Path]:
        """See :class:`LockFiles`."""
        return sorted(_of_sharers(path))

    def sweep(self, path: Path) -> None:
        """See :class:`LockFiles`."""
        for left in _left(path):
            left.unlink(missing_ok=True)


def _of_sharers(path: P) -> Iterator[P]:
    found: Iterator[Any] = path.parent.glob(f"{path.name}.*")
    return (file for file in found if SHARED.fullmatch(file.name))


def _left(path: Path) -> Iterator[Path]:
    for file in path.parent.glob(f".{path.name}.*"):
        if GONE.fullmatch(file.name) or storage.is_aside(file.name):
            yield file


class StoreLockFiles:
    """In an object store. Each request costs, so holders change their files less often."""

    beat_seconds = 4.0
    poll_seconds = 1.0

    def make(self, path: RemotePath, content: bytes) -> bool:
        """See :class:`LockFiles`."""
        return conditional.create(path, content)

    def content(self, path: RemotePath) -> bytes | None:
        """See :class:`LockFiles`."""
        found = conditional.read(path)
        return None if found is None else found.content

    def change(self, path: RemotePath, content: bytes) -> None:
        """See :class:`LockFiles`."""
        found = conditional.read(path)
        if found is not None:
            conditional.replace(found, content)

    def remove(self, path: RemotePath, known: bytes, is_same: IsSame) -> None:
        """See :class:`LockFiles`.

        It is emptied first, on condition that it has not changed: who does that, deletes it. A
        file that is empty stands for a holder that cannot be told, so others leave it alone.
        """
        found = conditional.read(path)
        if found is not None and is_same(found.content, known) and conditional.replace(found, b""):
            conditional.delete(path)

    def beside(self, path: RemotePath) -> list[RemotePath]:
        """See :class:`LockFiles`."""
        return sorted(_of_sharers(path))

    def sweep(self, path: RemotePath) -> None:
        """Nothing: there are no renames that could be interrupted."""


_POSIX: LockFiles[Path] = PosixLockFiles()
_STORE: LockFiles[RemotePath] = StoreLockFiles()


def files_for(path: Location) -> LockFiles[Any]:
    """The operations for a place."""
    return _STORE if isinstance(path, RemotePath) else _POSIX
