"""The folders that jobs work in: made, checked, and kept to one job at a time."""

from __future__ import annotations

import errno
import functools
import mmap
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from pipelines.errors import InputError, PipelineError
from pipelines.files import locks, storage, versions
from pipelines.files import owners as fencing
from pipelines.files.locations import Location, RemotePath, location
from pipelines.files.ownership import PROBE
from pipelines.files.stores import first_line
from pipelines.settings import Config

_P = ParamSpec("_P")
_T = TypeVar("_T")

_FULL = (errno.ENOSPC, errno.EDQUOT)
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_CONTENT = b"sentence pipelines\n"


def working_in(
    *keys: str, reading: Sequence[str] = (), check: Callable[[Config], object] | None = None
) -> Callable[[Callable[Concatenate[Config, _P], _T]], Callable[Concatenate[Config, _P], _T]]:
    """Gives a job folders of the settings: it alone works in them while it runs.

    Args:
        keys: The settings, such as `run.folder`.
        reading: Settings of folders that it only reads; many jobs may, while none works in them.
        check: Looks at the folders before anything is written into them.
    """

    def decorate(
        job: Callable[Concatenate[Config, _P], _T],
    ) -> Callable[Concatenate[Config, _P], _T]:
        @functools.wraps(job)
        def work(config: Config, /, *args: _P.args, **options: _P.kwargs) -> _T:
            if check is not None:
                check(config)
            with ExitStack() as stack:
                for key in keys:
                    stack.enter_context(work_folder(key, _folder(config, key), job.__name__))
                for key in reading:
                    stack.enter_context(_read_folder(key, _folder(config, key), job.__name__))
                return job(config, *args, **options)

        return work

    return decorate


@contextmanager
def work_folder(
    key: str, folder: Location, job: str, lock_file: Location | None = None
) -> Iterator[None]:
    """Makes a folder, looks at what it can do, and keeps other jobs out of it.

    If the job fails before it has written anything, folders that were made are removed.

    Args:
        key: The setting that names it.
        folder: Absolute.
        job: What is done there, shown to others.
        lock_file: `.lock` in the folder unless given.

    Raises:
        InputError: The folder cannot do what jobs need.
        PipelineError: Another job works there, or has taken over its lock.
    """
    place = folder if lock_file is None else lock_file.parent
    made = _missing(place)
    try:
        _make(key, place)
        with _locked(key, folder, lock_file or folder / locks.LOCK_FILE, job):
            check_able(key, place)
            if lock_file is None:
                storage.sweep(folder)
            yield
    finally:
        # Those that hold something stay.
        with suppress(OSError):
            for path in made:
                path.rmdir()


@contextmanager
def _read_folder(key: str, folder: Location, job: str) -> Iterator[None]:
    with ExitStack() as stack:
        # A folder that cannot be written needs no lock; one that is missing, the job reports.
        with suppress(OSError):
            stack.enter_context(_locked(key, folder, folder / locks.LOCK_FILE, job, shared=True))
        yield


@contextmanager
def _locked(
    key: str, folder: Location, lock_file: Location, job: str, *, shared: bool = False
) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            lock = stack.enter_context(locks.held(lock_file, job, shared=shared))
        except locks.ForeignLockError as error:
            raise InputError(
                key,
                f"{error.file} was not written by a job, and has the name of a lock",
                "move it elsewhere, or name another folder",
            ) from None
        except locks.LockedError as error:
            # No fault of the settings: it passes by itself.
            raise PipelineError(
                f"{key}: {folder} is in use by {error.holder}, "
                "wait for its end, or name another folder"
            ) from None
        except OSError as error:
            if shared:
                raise
            if isinstance(folder, RemotePath):
                raise _unable_in_store(key, folder, error) from None
            raise _unable(key, folder, "lock files", error) from None
        if lock is not None and not shared:
            stack.enter_context(fencing.fence(folder, lock.check))
        yield


def check_able(key: str, folder: Location) -> None:
    """Tries in a folder all that jobs do in it, so that an unfit mount is refused at the start.

    Args:
        key: The setting that names it.
        folder: Is there.

    Raises:
        InputError: Something fails; names it.
    """
    if isinstance(folder, RemotePath):
        _check_store(key, folder)
        return
    probe = folder / "probe"
    place = storage.aside_name(probe, ".part")
    try:
        for what, attempt in _ABILITIES.items():
            try:
                attempt(place)
            except OSError as error:
                raise _unable(key, folder, what, error) from None
        storage.clear_abandoned(probe, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _check_store(key: str, folder: RemotePath) -> None:
    """Writes, reads, lists and deletes a file."""
    probe = folder / f"{PROBE}{uuid.uuid4().hex}"
    try:
        _write_and_read(probe)
    except OSError as error:
        raise _unable_in_store(key, folder, error) from None


def _unable_in_store(key: str, folder: RemotePath, error: OSError) -> InputError:
    return InputError(
        key,
        f"{folder} cannot be written, read and listed ({first_line(error)})",
        "mend the address, storage.*_endpoint or the credentials; see docs/storage.md",
    )


def _write_and_read(probe: RemotePath) -> None:
    versions.put_bytes(probe, _CONTENT)
    if probe.read_bytes() != _CONTENT or probe not in set(probe.parent.iterdir()):
        raise OSError(errno.EIO, "it does not give what was written")
    probe.unlink()


def check_place(key: str, folder: Location) -> None:
    """The same of a folder that may not be there yet, and is not made; see :func:`check_able`."""
    if isinstance(folder, RemotePath):
        _check_store(key, folder)
        return
    place = next(path for path in (folder, *folder.parents) if path.exists())
    if not place.is_dir():
        raise InputError(key, f"{place} is a file", "name a folder")
    check_able(key, place)


def check_room(key: str, folder: Location, needed: int, what: str) -> None:
    """Makes sure that something fits on the disk of a folder.

    Args:
        key: The setting that names it.
        folder: Is there.
        needed: Bytes.
        what: Takes them.

    Raises:
        InputError: It does not.
    """
    if isinstance(folder, RemotePath):
        return
    disk = shutil.disk_usage(folder)
    # Mounts without a size of their own say zero.
    if disk.total and disk.free < needed:
        raise InputError(
            key,
            f"{folder} has room for {disk.free / 1e6:.0f} MB, and {what} take {needed / 1e6:.0f}",
            "make room, or name another folder",
        )


def _folder(config: Config, key: str) -> Location:
    return location(attrgetter(key)(config), config.storage).absolute()


def _missing(folder: Location) -> list[Path]:
    """The folders that are to be made, the innermost first."""
    found: list[Path] = []
    if isinstance(folder, RemotePath):
        return found
    for path in (folder, *folder.parents):
        if path.exists():
            break
        found.append(path)
    return found


def _make(key: str, folder: Location) -> None:
    if isinstance(folder, RemotePath):
        return
    for path in (*reversed(folder.parents), folder):
        if path.exists() and not path.is_dir():
            raise InputError(key, f"{path} is a file", "name a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in _FULL + _CLOSED:
            raise _unable(key, folder, "make folders", error) from None
        raise InputError(
            key, f"{folder} cannot be made ({error.strerror})", "name another folder"
        ) from None


@contextmanager
def named_when_full(key: str, folder: Location) -> Iterator[None]:
    """While a folder is written, names it where there is no room left in it.

    Raises:
        InputError: Its disk, or the user's quota, is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL and str(error.filename or "").startswith(str(folder)):
            raise _unable(key, folder, "write", error) from error
        raise


def _unable(key: str, folder: Location, what: str, error: OSError) -> InputError:
    if isinstance(folder, RemotePath):
        return _unable_in_store(key, folder, error)
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return InputError(key, f"{folder} is full ({reason})", "make room, or name another folder")
    if error.errno in _CLOSED:
        remedy = "let this user write there, or name another folder"
        return InputError(key, f"{folder} cannot be written ({reason})", remedy)
    return InputError(
        key,
        f"{folder} is on a file system that cannot {what} ({reason})",
        "name a folder on one that can: a disk, NFS, Lustre; see docs/clusters.md",
    )


def _write(place: Path) -> None:
    (place / "file").write_bytes(_CONTENT)


def _write_again(place: Path) -> None:
    (place / "file").write_bytes(_CONTENT * 2)


def _make_once(place: Path) -> None:
    (place / "once").touch(exist_ok=False)
    try:
        (place / "once").touch(exist_ok=False)
    except FileExistsError:
        return
    raise OSError(errno.ENOTSUP, "two processes could make the same file")


def _rename_file(place: Path) -> None:
    (place / "once").replace(place / "file")


def _rename_folder(place: Path) -> None:
    (place / "folder").mkdir()
    (place / "folder" / "file").write_bytes(_CONTENT)
    (place / "folder").rename(place / "renamed")


def _map(place: Path) -> None:
    with (
        (place / "renamed" / "file").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        if mapped[:] != _CONTENT:
            raise OSError(errno.EIO, "it gives other bytes than were written")


_ABILITIES: Mapping[str, Callable[[Path], None]] = {
    "make folders": Path.mkdir,
    "write files": _write,
    "replace the content of a file": _write_again,
    "make a file for one process alone": _make_once,
    "rename files": _rename_file,
    "rename folders": _rename_folder,
    "map files into memory": _map,
}
"""What jobs need of a folder, in an order in which each finds what those before it have left."""
