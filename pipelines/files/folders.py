"""The folders that jobs work in: made, checked, and kept to one job at a time."""

from __future__ import annotations

import errno
import functools
import mmap
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import takewhile
from operator import attrgetter
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from pipelines.errors import InputError, PipelineError
from pipelines.files import locks, storage
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


class JobDecorator(Protocol):
    """A decorator of jobs, whose first argument is the settings."""

    def __call__(
        self, job: Callable[Concatenate[Config, _P], _T], /
    ) -> Callable[Concatenate[Config, _P], _T]:
        """Return the job with its surroundings."""


def around_job(enter: Callable[[str, Config], AbstractContextManager[object]]) -> JobDecorator:
    """Run a job inside of a context, which gets its name and the settings."""

    def decorate(
        job: Callable[Concatenate[Config, _P], _T], /
    ) -> Callable[Concatenate[Config, _P], _T]:
        @functools.wraps(job)
        def work(config: Config, /, *args: _P.args, **options: _P.kwargs) -> _T:
            with enter(job.__name__, config):
                return job(config, *args, **options)

        return work

    return decorate


def working_in(
    *keys: str, reading: Sequence[str] = (), check: Callable[[Config], object] | None = None
) -> JobDecorator:
    """Give a job exclusive use of folders of the settings while it runs.

    Args:
        keys: Settings such as `run.folder`.
        reading: Settings of folders that it only reads, as many jobs may while none works there.
        check: Inspects the folders before anything is written into them.
    """

    @contextmanager
    def folders(job: str, config: Config) -> Iterator[None]:
        if check is not None:
            check(config)
        with ExitStack() as stack:
            for key in keys:
                stack.enter_context(work_folder(key, _folder(config, key), job))
            for key in reading:
                stack.enter_context(_read_folder(key, _folder(config, key), job))
            yield

    return around_job(folders)


@contextmanager
def work_folder(
    key: str, folder: Location, job: str, lock_file: Location | None = None
) -> Iterator[None]:
    """Make a folder, test what it can do, and keep other jobs out of it.

    If the job fails before it has written anything, the folders made for it are removed. The lock
    file is `.lock` in the folder by default.

    Raises:
        InputError: The folder cannot do what jobs need.
        PipelineError: Another job works there, or has taken over its lock.
    """
    place = folder if lock_file is None else lock_file.parent
    made: list[Path] = []
    try:
        if isinstance(place, Path):
            made += takewhile(lambda path: not path.exists(), (place, *place.parents))
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
            raise _unable(key, folder, "lock files", error) from None
        if lock is not None and not shared:
            stack.enter_context(fencing.fence(folder, lock.check))
        yield


def check_able(key: str, folder: Location) -> None:
    """Try all file operations of jobs in a folder, so that an unfit mount fails at the start.

    Raises:
        InputError: An operation fails; the error names it.
    """
    aside, what = storage.aside_name(folder / "probe", ".part"), ""
    attempts = _tried(aside) if isinstance(aside, Path) else _tried_in_store(folder)
    try:
        # Each is named before it is tried: the last name is that of what has failed.
        while attempt := next(attempts, None):
            what = attempt
    except OSError as error:
        raise _unable(key, folder, what, error) from None
    else:
        if isinstance(aside, Path):
            storage.clear_abandoned(aside.with_name("probe"), aside)
    finally:
        if isinstance(aside, Path):
            shutil.rmtree(aside, ignore_errors=True)


def _tried_in_store(folder: Location) -> Iterator[str]:
    yield "write, read, list and delete files"
    probe = folder / f"{PROBE}{uuid.uuid4().hex}"
    storage.write_text(probe, _CONTENT.decode())
    if probe.read_bytes() != _CONTENT or probe not in set(probe.parent.iterdir()):
        raise OSError(errno.EIO, "it does not give what was written")
    probe.unlink()


def _tried(place: Path) -> Iterator[str]:
    """Do all that jobs need in a new folder; yield the name of each operation before it."""
    yield "make folders"
    place.mkdir()
    yield "write files"
    (place / "file").write_bytes(_CONTENT)
    yield "replace the content of a file"
    (place / "file").write_bytes(_CONTENT * 2)
    yield "make a file for one process alone"
    (place / "once").touch(exist_ok=False)
    with suppress(FileExistsError):
        (place / "once").touch(exist_ok=False)
        raise OSError(errno.ENOTSUP, "two processes could make the same file")
    yield "rename files"
    (place / "once").replace(place / "file")
    yield "rename folders"
    (place / "folder").mkdir()
    (place / "folder" / "file").write_bytes(_CONTENT)
    (place / "folder").rename(place / "renamed")
    yield "map files into memory"
    with (
        (place / "renamed" / "file").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        if mapped[:] != _CONTENT:
            raise OSError(errno.EIO, "it gives other bytes than were written")


def check_place(key: str, folder: Location) -> None:
    """Do as :func:`check_able` with a folder that may be absent, and stays so."""
    there = folder
    if isinstance(folder, Path):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        if not there.is_dir():
            raise InputError(key, f"{there} is a file", "name a folder")
    check_able(key, there)


def check_room(key: str, folder: Location, needed: int, what: str) -> None:
    """Refuse a disk on which ``needed`` bytes do not fit; ``what`` names their use.

    Raises:
        InputError: They do not fit.
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


def _make(key: str, folder: Path) -> None:
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
    """Name the folder in the error of a full disk while the block writes to it.

    Raises:
        InputError: The disk, or the user's quota, is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL and str(error.filename or "").startswith(str(folder)):
            raise _unable(key, folder, "write", error) from error
        raise


def _unable(key: str, folder: Location, what: str, error: OSError) -> InputError:
    if isinstance(folder, RemotePath):
        return InputError(
            key,
            f"{folder} cannot be written, read and listed ({first_line(error)})",
            "mend the address, storage.*_endpoint or the credentials; see docs/guides/buckets.md",
        )
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return InputError(key, f"{folder} is full ({reason})", "make room, or name another folder")
    if error.errno in _CLOSED:
        remedy = "let this user write there, or name another folder"
        return InputError(key, f"{folder} cannot be written ({reason})", remedy)
    return InputError(
        key,
        f"{folder} is on a file system that cannot {what} ({reason})",
        "name a folder on one that can: a disk, NFS, Lustre; see docs/concepts/spark.md",
    )
