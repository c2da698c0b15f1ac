"""Atomic files and folders in object stores.

A store has no rename. A job writes into a *version*, a subfolder with its own name. The object
``current.json``, written last and by one request, names the folder's version. So a reader finds a
whole version, the new one or the one before. The latter stays until the next but one, for readers
in progress.
"""

from __future__ import annotations

import json
import logging
import shutil
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from pipelines.errors import DamagedFileError
from pipelines.files import owners as fencing
from pipelines.files import records
from pipelines.files.locations import Location, P, RemotePath, version_of
from pipelines.files.owners import Owner

logger = logging.getLogger(__name__)

POINTER = "current.json"
"""The object that names a folder's version, and the one before."""
_CHUNK = 8 << 20


def put_bytes(path: RemotePath, content: bytes) -> None:
    """Write a file by one request."""

    def attempt() -> None:
        # At each attempt: a retry may come minutes after the first one.
        fencing.check_own(path)
        with path.files.open_output_stream(path.fs_path) as sink:
            sink.write(content)

    path.store.retried(f"writing {path}", attempt)


def put_file(source: Location, path: RemotePath) -> None:
    """Copy a file into a store; within one store by the store itself."""
    if isinstance(source, Path):
        path.store.retried(f"writing {path}", lambda: _copy(source, path))
    elif source.store == path.store:
        copy_file(source, path)
    else:
        with TemporaryDirectory(prefix="sentence-pipelines-") as made:
            get_file(source, Path(made, "file"))
            put_file(Path(made, "file"), path)


def _copy(source: Path, path: RemotePath) -> None:
    try:
        with source.open("rb") as file, path.files.open_output_stream(path.fs_path) as sink:
            shutil.copyfileobj(file, sink, _CHUNK)
    except BaseException:
        # Arrow completes an upload when an error closes it, and leaves half a file.
        with suppress(OSError):
            path.files.delete_file(path.fs_path)
        raise
    size, written = source.stat().st_size, path.stat().st_size
    if written != size:
        raise OSError(f"{path} holds {written:,} of {size:,} bytes")


def copy_file(source: RemotePath, target: RemotePath) -> None:
    """Have a store copy one of its files.

    Raises:
        FileNotFoundError: There is no such file.
        OSError: The store does not do it.
    """
    source.store.retried(
        f"copying {source}", lambda: source.files.copy_file(source.fs_path, target.fs_path)
    )


def put_folder(source: Location, folder: RemotePath) -> None:
    """Copy all files below a folder into a store."""
    if isinstance(source, RemotePath):
        names = [name for name, status in source.entries() if status is not None]
    else:
        paths = sorted(path for path in source.rglob("*") if path.is_file())
        names = [path.relative_to(source).as_posix() for path in paths]
    for name in names:
        put_file(source / name, folder / name)


def get_file(path: RemotePath, target: Path) -> None:
    """Copy a file of a store to this machine."""
    with path.open("rb") as source, target.open("wb") as file:
        shutil.copyfileobj(source, file, _CHUNK)


def get_folder(folder: RemotePath, target: Path) -> None:
    """Copy all files below a folder of a store to this machine."""
    for name, status in folder.entries():
        if status is not None:
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            get_file(folder / name, path)


def current(folder: Location) -> Location:
    """Return the current version of a folder with versions.

    On a file system, and before the first version, it is the folder itself.
    """
    if isinstance(folder, Path) or folder.place is not None:
        return folder
    names = _pointed(folder)
    return version_of(folder, names[0]) if names else folder


def home(folder: P) -> P:
    """Return the folder of a version; any other folder itself."""
    return folder if isinstance(folder, Path) else (folder.place or folder)


class HasPath(Protocol):
    """A value with a folder."""

    @property
    def path(self) -> Location:
        """The folder."""


@dataclass(frozen=True)
class Entry:
    """A file or folder in a value's folder, as an attribute of the value.

    Attributes:
        path: The relative path from that folder.
        holds: For a folder: relative paths of the files that its job writes; parts may be patterns.
        is_version: Whether it is a folder written as a whole; reading gives its current version.
        stays: Whether it stays when the rest of its job's files is deleted.
    """

    path: str
    holds: tuple[str, ...] = ()
    is_version: bool = False
    stays: bool = False

    @property
    def files(self) -> tuple[str, ...]:
        """The file, or all files of the folder, as relative paths."""
        return tuple(f"{self.path}/{pattern}" for pattern in self.holds) or (self.path,)

    def __get__(self, folder: HasPath, owner: type | None = None) -> Location:
        place = folder.path / self.path
        return current(place) if self.is_version else place


@contextmanager
def new_version(folder: RemotePath, *, replace: bool = True) -> Iterator[RemotePath]:
    """Yield a new version of a folder; it becomes current when the block ends well.

    Raises:
        FileExistsError: There is one already, and ``replace`` is false.
    """
    version, place = begin(folder), home(folder)
    try:
        yield version
        known = _pointed(place)
        _point(place, version.name, *known[:1], may_replace=replace or not known)
    except BaseException:
        _remove_quietly(version)
        raise
    for path in place.iterdir():
        owner = _owner(path.name)
        if owner is None or path.name in {version.name, *known[:1]}:
            continue
        # Live processes may be writing versions of their own.
        if owner == Owner.here() or owner.is_gone():
            _remove_quietly(path)


def begin(folder: RemotePath) -> RemotePath:
    """Return a new version of a folder, for :func:`publish`.

    Another process may finish it: only :func:`remove_begun` removes it.
    """
    return version_of(home(folder), f"{Owner.here()}-{uuid.uuid4().hex[:8]}")


def begun(folder: RemotePath) -> list[RemotePath]:
    """Return the versions of a folder except the current one and the one before."""
    return _versions(home(folder), without=_pointed(home(folder)))


def _versions(place: RemotePath, without: Collection[str]) -> list[RemotePath]:
    names = (path.name for path in place.iterdir())
    return [version_of(place, name) for name in names if is_version(name) and name not in without]


def remove_begun(folder: RemotePath, *, but: RemotePath | None = None) -> None:
    """Remove the versions of :func:`begun` except ``but``; no other job works in the folder."""
    for version in begun(folder):
        if but is None or version.name != but.name:
            _remove_quietly(version)


def publish(version: RemotePath) -> None:
    """Make a whole version the current one; no other job works in the folder."""
    assert version.place is not None, "a version knows its folder"
    known = [name for name in _pointed(version.place) if name != version.name]
    _point(version.place, version.name, *known[:1])
    remove_begun(version.place)


def is_version(name: str) -> bool:
    """Return whether a name in a folder belongs to a version."""
    return _owner(name) is not None


def _owner(name: str) -> Owner | None:
    return Owner.parse(name.rpartition("-")[0])


def remove(folder: RemotePath) -> None:
    """Remove a folder, its pointer first."""
    place = home(folder)
    # No reader then finds a version with half of its files.
    (place / POINTER).unlink(missing_ok=True)
    clear(place)


def forget_earlier(folder: Location) -> None:
    """Remove the earlier versions, kept in a store for their readers."""
    if isinstance(folder, Path):
        return
    place = home(folder)
    known = _pointed(place)
    if known:
        _point(place, known[0])
        for version in _versions(place, without=known[:1]):
            _remove_quietly(version)


def sweep(folder: RemotePath) -> None:
    """Remove unpublished and obsolete versions of all subfolders; no other job works there."""
    for place in folder.iterdir():
        if place.name != POINTER:
            remove_begun(place)


def clear(folder: RemotePath) -> None:
    """Remove all files below a folder."""

    def attempt() -> None:
        # For an absent folder, each of Arrow's file systems raises another error.
        if folder.files.get_file_info(folder.fs_path).type:
            folder.files.delete_dir(folder.fs_path)

    with suppress(FileNotFoundError):
        folder.store.retried(f"deleting {folder}", attempt)


def _remove_quietly(folder: RemotePath) -> None:
    try:
        clear(folder)
    except OSError as error:
        logger.warning("%s stays in the store: %s", folder, error)


def _point(place: RemotePath, *names: str, may_replace: bool = True) -> None:
    if not may_replace:
        raise FileExistsError(f"{place} exists already")
    put_bytes(place / POINTER, json.dumps(names).encode())


def _pointed(place: RemotePath) -> list[str]:
    """Return the current version and the one before; refuse other content of a pointer."""
    pointer = place / POINTER
    try:
        names = records.read(pointer, list[str])
    except FileNotFoundError:
        return []
    if not all(map(is_version, names)):
        raise DamagedFileError(str(pointer), f"{names} are not versions")
    return names
