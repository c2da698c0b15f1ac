"""Where a table of vectors is, and where the next one is made until it takes its place.

On a file system the next one is made beside the table, in `.<name>.next`, and is renamed. In an
object store both are versions of the folder (:mod:`pipelines.files.versions`), one of which is the
current one.
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
    """A table that is begun.

    Attributes:
        aside: Where its first files are written.
        folder: Where these are when all of them are there, until the table is whole.
    """

    aside: Location
    folder: Location

    def final(self, path: Location) -> Location:
        """Where a file will be that may be one of the first."""
        if not is_within(path, self.aside):
            return path
        return self.folder.joinpath(*path.parts[len(self.aside.parts) :])


def next_folder(folder: Path) -> Path:
    """Where a table is made on a file system before it takes its place."""
    return folder.parent / f".{folder.name}.next"


def begun_folders(folder: Location) -> list[Location]:
    """Where there may be tables that have not taken their place, or have lost it."""
    if isinstance(folder, Path):
        return [next_folder(folder)]
    return list(versions.begun(folder))


def check_places(key: str, folder: Location, kind: Kind) -> None:
    """Refuses a place that would be replaced, and where a table is begun, if the user's are there.

    Raises:
        InputError: See :func:`pipelines.files.ownership.check_ours`.
    """
    check_ours(key, folder, kind, whole=True)
    if isinstance(folder, Path):
        check_ours(key, next_folder(folder), kind, whole=True)


@contextmanager
def beginning(folder: Location) -> Iterator[Beginning]:
    """Yields where a table is to be begun; an error inside leaves what was there before.

    Args:
        folder: The place that the table is to take; no other job works there.
    """
    if isinstance(folder, Path):
        final = next_folder(folder)
        with storage.built_folder(final) as aside:
            yield Beginning(aside, final)
        return
    version = versions.begin(folder)
    try:
        yield Beginning(version, version)
    except BaseException:
        # What cannot be removed now, the next job removes.
        with suppress(OSError):
            versions.clear(version)
        raise
    versions.remove_begun(folder, but=version)


def take_place(made: Location, folder: Location) -> None:
    """Has a table that is whole take its place."""
    if isinstance(made, RemotePath):
        versions.publish(made)
    else:
        assert isinstance(folder, Path), "a table is made where it is to be"
        storage.take_place(made, folder)


def discard_begun(folder: Location) -> None:
    """Removes tables that were begun and are not wanted any more."""
    if isinstance(folder, RemotePath):
        versions.remove_begun(folder)
    elif next_folder(folder).is_dir():
        # As a whole: half of it would have no mark, and nobody would know whose it is.
        storage.remove_folder(next_folder(folder))


def lock_file(folder: Location) -> Location:
    """The lock of a table: beside a folder that is replaced as a whole, in one of a store."""
    if isinstance(folder, RemotePath):
        return folder / locks.LOCK_FILE
    real = folder.resolve()
    return real.parent / f".{real.name}{locks.LOCK_FILE}"
