"""The working folders of jobs: made, checked, and locked for one job at a time."""

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
    """A decorator of jobs; their first argument is the settings."""

    def __call__(
        self, job: Callable[Concatenate[Config, _P], _T], /
    ) -> Callable[Concatenate[Config, _P], _T]:
        """Return the job with its surroundings."""


def around_job(enter: Callable[[str, Config], AbstractContextManager[object]]) -> JobDecorator:
    """Run a job inside a context made from its name and the settings."""

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
        reading: Settings of folders to read; many jobs may, while none works there.
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
                stack.enter_context(read_folder(key, _folder(config, key), job))
            yield

    return around_job(folders)


@contextmanager
def work_folder(
    key: str, folder: Location, job: str, lock_file: Location | None = None
) -> Iterator[None]:
    """Make a folder, test its file operations, and keep other jobs out of it.

    A job that fails before its first file leaves none of these folders. The lock file is `.lock` in
    the folder by default.

    Raises:
        InputError: The folder lacks an operation that jobs need.
        PipelineError: Another job works there, or has taken over its lock.
    """
    place = folder if lock_file is None else lock_file.parent
    made: list[Path] = []
    try:
        if isinstance(place, Path):
            # Innermost first, in the order of their removal.
            made += takewhile(lambda path: not path.exists(), (place, *place.parents))
            _make(key, place)
        with _locked(key, folder, lock_file or folder / locks.LOCK_FILE, job):
            check_able(key, place)
            if lock_file is None:
                storage.sweep(folder)
            yield
    finally:
        # `rmdir` fails for folders with content, which stay.
        with suppress(OSError):
            for path in made:
                path.rmdir()


@contextmanager
def read_folder(
    key: str, folder: Location, job: str, lock_file: Location | None = None
) -> Iterator[None]:
    """Keep jobs that write a folder out of it; see :func:`work_folder` for the lock file.

    Raises:
        PipelineError: Another job works there.
    """
    with ExitStack() as stack:
        file = lock_file or folder / locks.LOCK_FILE
        # A read-only folder needs no lock, and the job itself reports a missing one.
        with suppress(OSError):
            stack.enter_context(_locked(key, folder, file, job, shared=True))
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
                f"{error.file} has the name of a lock, and no job wrote it",
                "Move it elsewhere, or name another folder",
            ) from None
        except locks.LockedError as error:
            # Not an InputError: the settings are right, and a later attempt may succeed.
            raise PipelineError(
                f"{key}: {folder} is in use by {error.holder}. "
                "Wait for its end, or name another folder."
            ) from None
        except OSError as error:
            if shared:
                raise
            raise _unable(key, folder, "lock files", error) from None
        if lock is not None and not shared:
            stack.enter_context(fencing.fence(folder, lock.check))
        yield


def check_able(key: str, folder: Location) -> None:
    """Try all file operations of jobs in a folder, to detect an unfit mount at the start.

    Raises:
        InputError: An operation fails; the error names it.
    """
    aside, operation = storage.aside_name(folder / "probe", ".part"), ""
    attempts = _tried(aside) if isinstance(aside, Path) else _tried_in_store(folder)
    try:
        # Each name comes before its attempt, so the last name is that of the failed operation.
        while attempt := next(attempts, None):
            operation = attempt
    except OSError as error:
        raise _unable(key, folder, operation, error) from None
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
        raise OSError(errno.EIO, "it does not return the bytes written")
    probe.unlink()


def _tried(place: Path) -> Iterator[str]:
    """Do all file operations of jobs in a new folder; yield the name of each before it."""
    yield "make folders"
    place.mkdir()
    yield "write files"
    (place / "file").write_bytes(_CONTENT)
    yield "replace the content of a file"
    (place / "file").write_bytes(_CONTENT * 2)
    yield "create a file exclusively"
    (place / "once").touch(exist_ok=False)
    with suppress(FileExistsError):
        (place / "once").touch(exist_ok=False)
        raise OSError(errno.ENOTSUP, "two processes can create the same file")
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
            raise OSError(errno.EIO, "it does not return the bytes written")


def check_place(key: str, folder: Location) -> None:
    """Do as :func:`check_able` with a folder, without making it where it is absent."""
    existing = folder
    if isinstance(folder, Path):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        if not existing.is_dir():
            raise InputError(key, f"{existing} is a file", "Name a folder")
    check_able(key, existing)


def check_room(key: str, folder: Location, needed: int, what: str) -> None:
    """Refuse a disk without room for ``needed`` bytes; ``what`` names their use.

    Raises:
        InputError: They do not fit.
    """
    if isinstance(folder, RemotePath):
        return
    disk = shutil.disk_usage(folder)
    # Mounts without a size of their own report zero.
    if disk.total and disk.free < needed:
        raise InputError(
            key,
            f"{folder} has room for {disk.free / 1e6:.0f} MB, and {what} take "
            f"{needed / 1e6:.0f} MB",
            "Make room, or name another folder",
        )


def _folder(config: Config, key: str) -> Location:
    return location(attrgetter(key)(config), config.storage).absolute()


def _make(key: str, folder: Path) -> None:
    for path in (*reversed(folder.parents), folder):
        if path.exists() and not path.is_dir():
            raise InputError(key, f"{path} is a file", "Name a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in _FULL + _CLOSED:
            raise _unable(key, folder, "make folders", error) from None
        raise InputError(
            key, f"the job cannot make {folder} ({error.strerror})", "Name another folder"
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


def _unable(key: str, folder: Location, operation: str, error: OSError) -> InputError:
    if isinstance(folder, RemotePath):
        return InputError(
            key,
            f"the job cannot write, read and list {folder} ({first_line(error)})",
            "Correct the address, storage.*_endpoint or credentials; see docs/guides/buckets.md",
        )
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return InputError(key, f"{folder} is full ({reason})", "Make room, or name another folder")
    if error.errno in _CLOSED:
        remedy = "Let this user write there, or name another folder"
        return InputError(key, f"this user cannot write to {folder} ({reason})", remedy)
    return InputError(
        key,
        f"{folder} is on a file system that cannot {operation} ({reason})",
        "Name a folder on a disk, NFS or Lustre; see docs/concepts/spark.md",
    )
