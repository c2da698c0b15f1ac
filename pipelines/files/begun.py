"""Folders made over several jobs, each of which continues the work of the one before.

A file system holds such a folder beside its final place, under a predictable name. A store holds it
as a version before its publication.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pipelines.files import locks, storage, versions
from pipelines.files.locations import Location, RemotePath, is_within
from pipelines.files.ownership import Kind, check_ours


@dataclass(frozen=True)
class Beginning:
    """A folder under construction.

    Its first files are written in ``aside``. Once complete they lie in ``folder``, until the folder
    is whole.
    """

    aside: Location
    folder: Location

    def final(self, path: Location) -> Location:
        """Return the final place of a file, also of one in ``aside``."""
        if not is_within(path, self.aside):
            return path
        return self.folder.joinpath(*path.parts[len(self.aside.parts) :])


def next_folder(folder: Path) -> Path:
    """Return the path of an unfinished folder on a file system."""
    return folder.parent / f".{folder.name}.next"


def begun_folders(folder: Location) -> list[Location]:
    """Return the places of unfinished and replaced folders."""
    if isinstance(folder, Path):
        return [next_folder(folder)]
    return list(versions.begun(folder))


def check_places(key: str, folder: Location, kind: Kind) -> None:
    """Refuse a folder to be replaced, or its beginning, if it holds the user's files.

    Raises:
        InputError: See :func:`pipelines.files.ownership.check_ours`.
    """
    check_ours(key, folder, kind, whole=True)
    if isinstance(folder, Path):
        check_ours(key, next_folder(folder), kind, whole=True)


@contextmanager
def beginning(folder: Location) -> Iterator[Beginning]:
    """Yield a place to begin a folder, for one job only; an error inside leaves the old state."""
    if isinstance(folder, Path):
        final = next_folder(folder)
        with storage.built_folder(final) as aside:
            yield Beginning(aside, final)
        return
    version = versions.begin(folder)
    try:
        yield Beginning(version, version)
    except BaseException:
        # The next job removes the rest: an error here would hide the one being raised.
        with suppress(OSError):
            versions.clear(version)
        raise
    versions.remove_begun(folder, but=version)


def take_place(made: Location, folder: Location) -> None:
    """Let a whole folder take its place."""
    if isinstance(made, RemotePath):
        versions.publish(made)
    else:
        assert isinstance(folder, Path), "a folder is made where it is to be"
        storage.take_place(made, folder)


def discard_begun(folder: Location) -> None:
    """Remove unfinished and replaced folders."""
    if isinstance(folder, RemotePath):
        versions.remove_begun(folder)
    elif next_folder(folder).is_dir():
        # As a whole: half of it would have no mark, and so no known owner.
        storage.remove_folder(next_folder(folder))


def lock_file(folder: Location) -> Location:
    """Return the lock of such a folder: beside it on a file system, inside it in a store."""
    if isinstance(folder, RemotePath):
        return folder / locks.LOCK_FILE
    real = folder.resolve()
    return real.parent / f".{real.name}{locks.LOCK_FILE}"
