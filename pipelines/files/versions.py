"""Files and folders of object stores, each of which appears as a whole.

A store has no rename. What a job writes into a folder goes below a name of its own, a *version*,
and the object ``current.json``, which is written last and by one request, says which version the
folder is. So a reader finds a whole version, or the one before; that one stays until the next but
one, for readers that have begun.
"""

from __future__ import annotations

import json
import logging
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from pipelines.errors import DamagedFileError
from pipelines.files import owners as fencing
from pipelines.files import records
from pipelines.files.locations import Location, RemotePath, version_of
from pipelines.files.owners import Owner

logger = logging.getLogger(__name__)

POINTER = "current.json"
"""The object of a folder that names its version, and the one before."""
_CHUNK = 8 << 20


def put_bytes(path: RemotePath, content: bytes) -> None:
    """Writes a file by one request.

    Raises:
        OSError: The store does not take it.
    """

    def attempt() -> None:
        fencing.check_own(path)
        with path.files.open_output_stream(path.fs_path) as sink:
            sink.write(content)

    path.store.retried(f"writing {path}", attempt)


def put_file(source: Path, path: RemotePath) -> None:
    """Copies a file of this machine into a store.

    Raises:
        OSError: The store does not take it, or the file cannot be read.
    """
    path.store.retried(f"writing {path}", lambda: _copy(source, path))


def _copy(source: Path, path: RemotePath) -> None:
    try:
        with source.open("rb") as file, path.files.open_output_stream(path.fs_path) as sink:
            shutil.copyfileobj(file, sink, _CHUNK)
    except BaseException:
        # Arrow completes an upload when an error closes it: what there is then is half a file.
        with suppress(OSError):
            path.files.delete_file(path.fs_path)
        raise
    size, written = source.stat().st_size, path.stat().st_size
    if written != size:
        raise OSError(f"{path} holds {written:,} of {size:,} bytes")


def put_folder(source: Path, folder: RemotePath) -> None:
    """Copies all files below a folder of this machine into a store."""
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        put_file(path, folder / path.relative_to(source).as_posix())


def get_file(path: RemotePath, target: Path) -> None:
    """Copies a file of a store to this machine."""
    with path.open("rb") as source, target.open("wb") as file:
        shutil.copyfileobj(source, file, _CHUNK)


def get_folder(folder: RemotePath, target: Path) -> None:
    """Copies all files below a folder of a store to this machine."""
    for name, status in folder.entries():
        if status is not None:
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            get_file(folder / name, path)


def copy_within(source: RemotePath, target: RemotePath) -> None:
    """Copies all files below a folder; by the store itself, if both are in the same one."""
    for name, status in source.entries():
        if status is None:
            continue
        if source.store == target.store:
            copy_file(source / name, target / name)
        else:
            with TemporaryDirectory(prefix="sentence-pipelines-") as made:
                get_file(source / name, Path(made, "file"))
                put_file(Path(made, "file"), target / name)


def copy_file(source: RemotePath, target: RemotePath) -> None:
    """Has a store copy one of its files.

    Raises:
        FileNotFoundError: There is no such file.
        OSError: The store does not do it.
    """
    source.store.retried(
        f"copying {source}", lambda: source.files.copy_file(source.fs_path, target.fs_path)
    )


def current(folder: Location) -> Location:
    """Where the content of a folder is that is written as a whole.

    Returns:
        On a file system, and where nothing was written, the folder itself.
    """
    if isinstance(folder, Path) or folder.place is not None:
        return folder
    names = _pointed(folder)
    return version_of(folder, names[0]) if names else folder


def home(folder: Location) -> Location:
    """Return the folder that a version is of; any other folder itself."""
    return (folder.place or folder) if isinstance(folder, RemotePath) else folder


@contextmanager
def new_version(folder: RemotePath, *, replace: bool = True) -> Iterator[RemotePath]:
    """Yields a version of a folder that becomes the current one when the block ends well.

    Args:
        folder: Or a version of it.
        replace: Whether it may take the place of another.

    Raises:
        FileExistsError: There is one already, and it may not be replaced.
    """
    version = begin(folder)
    place = _place(version)
    try:
        yield version
        known = _pointed(place)
        _point(place, [version.name, *known[:1]], may_replace=replace or not known)
    except BaseException:
        _remove_quietly(version)
        raise
    _remove_others(place, {version.name, *known[:1]})


def begin(folder: RemotePath) -> RemotePath:
    """A new version of a folder, which becomes the current one by :func:`publish`.

    It may be finished by another process: nothing of it is removed but by :func:`remove_begun`.

    Args:
        folder: Or a version of it.
    """
    return version_of(folder.place or folder, f"{Owner.here()}-{uuid.uuid4().hex[:8]}")


def begun(folder: RemotePath) -> list[RemotePath]:
    """The versions of a folder that are neither the current one nor the one before."""
    place = folder.place or folder
    known = _pointed(place)
    names = (path.name for path in place.iterdir() if path.name not in known)
    return [version_of(place, name) for name in names if is_version(name)]


def remove_begun(folder: RemotePath, *, but: RemotePath | None = None) -> None:
    """Removes the versions of :func:`begun`, of a folder where no other job works.

    Args:
        folder: Or a version of it.
        but: One that stays.
    """
    for version in begun(folder):
        if but is None or version.name != but.name:
            _remove_quietly(version)


def publish(version: RemotePath) -> None:
    """Makes a version that is whole the current one, in a folder where no other job works."""
    place = _place(version)
    known = [name for name in _pointed(place) if name != version.name]
    _point(place, [version.name, *known[:1]], may_replace=True)
    remove_begun(place)


def is_version(name: str) -> bool:
    """Whether a name in a folder is that of a version."""
    return Owner.parse(name.rpartition("-")[0]) is not None


@contextmanager
def local_version(folder: RemotePath, *, replace: bool = True) -> Iterator[Path]:
    """The same for what one process writes: yields a folder of this machine."""
    with TemporaryDirectory(prefix="sentence-pipelines-") as made:
        yield Path(made)
        with new_version(folder, replace=replace) as version:
            put_folder(Path(made), version)


@contextmanager
def local_file(path: RemotePath) -> Iterator[Path]:
    """Yields the name of a file of this machine that is copied when the block ends well."""
    with TemporaryDirectory(prefix="sentence-pipelines-") as made:
        yield Path(made, path.name)
        fencing.check_own(path)
        put_file(Path(made, path.name), path)


def remove(folder: RemotePath) -> None:
    """Removes a folder: first what says that it is there."""
    place = folder.place or folder
    (place / POINTER).unlink(missing_ok=True)
    clear(place)


def forget_earlier(folder: Location) -> None:
    """Removes the versions of a folder that a store keeps for those who still read them."""
    if isinstance(folder, Path):
        return
    place = folder.place or folder
    known = _pointed(place)
    if known:
        _point(place, known[:1], may_replace=True)
        _remove_others(place, set(known[:1]), is_abandoned=lambda _: True)


def clear(folder: RemotePath) -> None:
    """Removes all that is below a folder."""

    def attempt() -> None:
        # Of a folder that is not there, each of Arrow's file systems raises another error.
        if folder.files.get_file_info(folder.fs_path).type:
            folder.files.delete_dir(folder.fs_path)

    with suppress(FileNotFoundError):
        folder.store.retried(f"deleting {folder}", attempt)


def sweep(folder: RemotePath) -> None:
    """Removes versions that are not current, of folders in a folder where no other job works."""
    for place in folder.iterdir():
        if place.name != POINTER:
            _remove_others(place, set(_pointed(place)), is_abandoned=lambda _: True)


def _place(version: RemotePath) -> RemotePath:
    assert version.place is not None, "a version knows its folder"
    return version.place


def _point(place: RemotePath, names: list[str], *, may_replace: bool) -> None:
    if not may_replace:
        raise FileExistsError(f"{place} is there already")
    put_bytes(place / POINTER, json.dumps(names).encode())


def _pointed(place: RemotePath) -> list[str]:
    """The current version and the one before.

    Raises:
        DamagedFileError: What says so says something else.
    """
    pointer = place / POINTER
    try:
        names: list[str] = records.read(pointer, list[str])
    except FileNotFoundError:
        return []
    if not all(map(is_version, names)):
        raise DamagedFileError(str(pointer), f"{names} are no versions")
    return names


def _remove_others(
    place: RemotePath, kept: set[str], is_abandoned: Callable[[Owner], bool] | None = None
) -> None:
    """Removes versions of processes that are gone, or whose end is all the same."""
    gone = is_abandoned or (lambda owner: owner == Owner.here() or bool(owner.is_gone()))
    for path in place.iterdir():
        owner = Owner.parse(path.name.rpartition("-")[0])
        if owner is not None and path.name not in kept and gone(owner):
            _remove_quietly(path)


def _remove_quietly(folder: RemotePath) -> None:
    try:
        clear(folder)
    except OSError as error:
        logger.warning("%s is left in the store: %s", folder, error)
