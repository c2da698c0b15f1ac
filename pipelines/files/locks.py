"""Locks on folders: one job at a time, on any host.

The holder of a lock has a file, and rewrites it every few seconds as a heartbeat. A holder of the
same machine and namespace is looked up among the processes. One from elsewhere is alive as long as
its file changes; after some minutes without a change its lock is taken over. This needs only the
exclusive creation and the atomic replacement of a file. Shared file systems of all kinds have
both, unlike kernel locks, and so have most object stores (:mod:`pipelines.files.conditional`).

The package ``filelock`` does not suffice. Its kernel locks are absent from shared file systems or
end at one machine, and its bare file without an owner stays after a killed job.

Each holder of a shared lock has its own file beside the lock's. A process makes its own file first
and then looks for others', so at most one of two processes in conflict gets the lock.
"""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from typing_extensions import override

from pipelines.errors import PipelineError
from pipelines.files import conditional, storage
from pipelines.files.locations import Location, RemotePath
from pipelines.files.owners import Owner

logger = logging.getLogger(__name__)

LOCK_FILE = ".lock"
"""The lock's file in its folder."""
SILENT_SECONDS = 150.0
"""A lock is taken over after so long without a change by a holder elsewhere.

By then the workers of a run without its driver have ended too: they wait for
:data:`pipelines.training.control.authenticated_server.UNHEARD_SECONDS`.
"""
SHARED = re.compile(r".*\.[0-9a-f]{32}")
"""The names of the files of a shared lock's holders."""
GONE = re.compile(r"\..*\.[0-9a-f]{8}\.gone")
"""The names of files that are being removed."""
_LOG_SECONDS = 5.0
_BEGINNING = b'{"job": '

Place = TypeVar("Place", Path, RemotePath)


class LockFiles(Protocol[Place]):
    """The file operations of locks in one kind of place.

    A holder changes its file every ``beat_seconds``; others look at it every ``poll_seconds``.
    """

    beat_seconds: float
    poll_seconds: float

    def make(self, path: Place, content: bytes) -> bool:
        """Make a file unless it exists, and return whether this call did."""

    def content(self, path: Place) -> bytes | None:
        """Return the content of a file; None if it is absent."""

    def change(self, path: Place, content: bytes) -> None:
        """Replace the whole content of this process's own file."""

    def remove(self, path: Place, known: bytes) -> None:
        """Remove a file while its content is ``known``; of several processes one succeeds."""

    def beside(self, path: Place) -> list[Place]:
        """Return the files of a shared lock's holders."""
        found: Iterator[Any] = path.parent.glob(f"{path.name}.*")
        return sorted(file for file in found if SHARED.fullmatch(file.name))

    def sweep(self, path: Place) -> None:
        """Remove the remains of processes killed while they changed or removed a file."""


class PosixLockFiles(LockFiles[Path]):
    """The operations on a file system."""

    beat_seconds = 2.0
    poll_seconds = 0.1

    @override
    def make(self, path: Path, content: bytes) -> bool:
        return storage.create_file(path, content)

    @override
    def content(self, path: Path) -> bytes | None:
        with suppress(FileNotFoundError):
            return path.read_bytes()
        return None

    @override
    def change(self, path: Path, content: bytes) -> None:
        # On a full disk the file stays as it is.
        aside = storage.aside_name(path, ".part")
        try:
            aside.write_bytes(content)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)

    @override
    def remove(self, path: Path, known: bytes) -> None:
        aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.gone")
        with suppress(FileNotFoundError):
            path.rename(aside)
            if _is_same(aside.read_bytes(), known):
                aside.unlink()
            else:
                aside.rename(path)

    @override
    def sweep(self, path: Path) -> None:
        for file in path.parent.glob(f".{path.name}.*"):
            if GONE.fullmatch(file.name) or storage.is_aside(file.name):
                file.unlink(missing_ok=True)


class StoreLockFiles(LockFiles[RemotePath]):
    """The operations in an object store: requests cost, so holders change files less often."""

    beat_seconds = 4.0
    poll_seconds = 1.0

    @override
    def make(self, path: RemotePath, content: bytes) -> bool:
        return conditional.create(path, content)

    @override
    def content(self, path: RemotePath) -> bytes | None:
        found = conditional.read(path)
        return None if found is None else found.content

    @override
    def change(self, path: RemotePath, content: bytes) -> None:
        found = conditional.read(path)
        if found is not None:
            conditional.replace(found, content)

    @override
    def remove(self, path: RemotePath, known: bytes) -> None:
        # A deletion takes no condition. So the file is emptied first, on condition that it has not
        # changed, and only the process that did so deletes it. An empty file counts as that of an
        # unknown holder, so others leave it alone.
        found = conditional.read(path)
        if found is not None and _is_same(found.content, known) and conditional.replace(found, b""):
            conditional.delete(path)

    @override
    def sweep(self, path: RemotePath) -> None:
        """Do nothing: there are no renames to interrupt."""


_POSIX, _STORE = PosixLockFiles(), StoreLockFiles()


def files_for(path: Location) -> LockFiles[Any]:
    """Return the operations for a kind of place."""
    return _STORE if isinstance(path, RemotePath) else _POSIX


_keys_here: set[str] = set()
"""Keys of the locks that this process holds or is about to hold."""
_held: ContextVar[Mapping[Location, Lock]] = ContextVar("held", default=MappingProxyType({}))


@dataclass(frozen=True)
class Holder:
    """The content of a lock's file.

    ``job`` is a command such as `train`, ``owner`` the text of an
    :class:`~pipelines.files.owners.Owner`. ``key`` is unique to this lock.
    """

    job: str
    host: str
    owner: str
    since: str
    key: str
    beat: int = 0

    @classmethod
    def here(cls, job: str) -> Holder:
        """Return this process as a holder."""
        since = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(job, socket.gethostname(), str(Owner.here()), since, uuid.uuid4().hex)

    @classmethod
    def parse(cls, content: bytes) -> Holder | None:
        """Read a holder, with unknown keys left out; None if the content is torn or not ours."""
        with suppress(ValueError, TypeError):
            known = json.loads(content)
            names = (part.name for part in fields(cls))
            return cls(**{name: known[name] for name in names if name in known})
        return None

    @property
    def process(self) -> Owner | None:
        """The process; None if another release wrote it."""
        return Owner.parse(str(self.owner))

    def is_gone(self) -> bool | None:
        """Return whether the process is gone; None if unknown."""
        process = self.process
        if process is None:
            return None
        # A lock that this process could not remove while a store was away has no holder any more.
        return (process == Owner.here() and self.key not in _keys_here) or process.is_gone()

    def __str__(self) -> str:
        number = self.process.process if self.process else "?"
        return f"`{self.job}`, process {number} on {self.host}, since {self.since}"


class LockedError(PipelineError):
    """Another process holds the lock; ``holder`` is None if its file names none."""

    def __init__(self, path: Location, holder: Holder | None) -> None:
        self.holder: Holder | str = holder or "an unknown job"
        super().__init__(f"{path.parent} is in use by {self.holder}")


class ForeignLockError(LockedError):
    """A user's file has the name of a lock; it stays."""

    def __init__(self, path: Location, file: Location) -> None:
        super().__init__(path, None)
        self.file = file


class Lock:
    """A held lock, kept up by a thread."""

    def __init__(self, path: Location, holder: Holder, *, shared: bool) -> None:
        self.shared = shared
        self._path = path
        self._files = files_for(path)
        self._holder = holder
        self._lost = False
        self._turn = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_up, name="lock", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Read the file, and refuse to go on if another process has taken the lock over.

        Raises:
            PipelineError: One has, as this one was suspended for too long, or the file is gone.
        """
        with self._turn, suppress(OSError):
            # A network file system may be unreachable for a moment, and then decides nothing.
            self._lost = self._lost or not self._is_ours()
        if self._lost:
            raise PipelineError(
                f"another process took over or removed {self._path}, "
                "so this job cannot go on beside it"
            )

    def release(self) -> None:
        """Release the lock; the next process takes over a file that resists removal."""
        self._ended.set()
        self._thread.join(timeout=SILENT_SECONDS)
        if self._lost:
            return
        try:
            self._files.remove(self._path, _line(self._holder))
        except OSError as error:
            # Not raised: it would hide the job's own error, often of the same unreachable store.
            logger.warning("this job cannot remove its lock %s: %s", self._path, error)

    def _is_ours(self) -> bool:
        content = self._files.content(self._path)
        found = None if content is None else Holder.parse(content)
        return content is not None and (found is None or found.key == self._holder.key)

    def _keep_up(self) -> None:
        holder = self._holder
        while not self._ended.wait(self._files.beat_seconds) and not self._lost:
            holder = replace(holder, beat=holder.beat + 1)
            # A network file system may be away for a moment: the next beat may get through.
            with self._turn, suppress(OSError):
                if self._is_ours():
                    self._files.change(self._path, _line(holder))
                else:
                    self._lost = True


@contextmanager
def held(
    path: Location, job: str, *, shared: bool = False, wait_seconds: float = 0.0
) -> Iterator[Lock | None]:
    """Hold a lock while the block runs; yield None in a store without conditional writes.

    There a warning is logged, and the block runs without a lock. A nested block of the same thread
    has the lock already, unless it wants a shared lock exclusively.

    Args:
        path: The file, in an existing folder.
        shared: Whether others that share it may hold it at the same time.

    Raises:
        LockedError: Another process holds it.
        PipelineError: Another process took it over while the block ran.
        OSError: The folder cannot be written.
    """
    path = path.parent.resolve() / path.name
    outer = _held.get().get(path)
    if outer is not None and outer.shared <= shared:
        yield outer
        return
    problem = _unable(path.parent) if isinstance(path, RemotePath) else None
    if problem:
        logger.warning(
            "%s has no lock (%s). Run one job at a time there",
            path.parent,
            problem,
        )
        yield None
        return
    holder = Holder.here(job)
    _keys_here.add(holder.key)
    try:
        lock = _acquired(path, holder, shared=shared, wait_seconds=wait_seconds)
        token = _held.set({**_held.get(), path: lock})
        try:
            yield lock
            lock.check()
        finally:
            _held.reset(token)
            lock.release()
    finally:
        _keys_here.discard(holder.key)


@lru_cache(maxsize=64)
def _unable(folder: RemotePath) -> str | None:
    """Return why a folder of a store cannot have a lock; None if it can."""
    problem = conditional.can_condition(folder.store)
    if problem:
        return problem
    probe = folder / f".probe-{uuid.uuid4().hex}"
    try:
        # Some servers fail at a file without content.
        conditional.create(probe, b"0")
        found = conditional.read(probe)
        follows = found is not None and conditional.replace(found, b"1")
        able = follows and not conditional.create(probe, b"2")
    except conditional.NoConditionalWritesError as error:
        return str(error)
    finally:
        # The error of the write says more than that of the removal.
        with suppress(OSError):
            conditional.delete(probe)
    return None if able else "its server ignores the conditions of writes"


def is_lock(name: str) -> bool:
    """Return whether a file name belongs to a folder's lock, or to one of its sharers."""
    return name == LOCK_FILE or bool(name.startswith(LOCK_FILE) and SHARED.fullmatch(name))


def is_left(name: str) -> bool:
    """Return whether a file name belongs to an interrupted release of a lock."""
    return LOCK_FILE in name and GONE.fullmatch(name) is not None


def held_here() -> tuple[Lock, ...]:
    """Return the locks of the blocks around the caller."""
    return tuple(_held.get().values())


def check_held() -> None:
    """Do :meth:`Lock.check` for each lock of the blocks around the caller."""
    for lock in held_here():
        lock.check()


def _acquired(path: Location, holder: Holder, *, shared: bool, wait_seconds: float) -> Lock:
    deadline = time.monotonic() + wait_seconds
    file = path.with_name(f"{path.name}.{holder.key}") if shared else path
    while True:
        try:
            return _tried(path, file, holder)
        except LockedError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(files_for(path).poll_seconds)


def _tried(path: Location, file: Location, holder: Holder) -> Lock:
    files = files_for(path)
    while not files.make(file, _line(holder)):
        _refuse_if_alive(path, file)
    lock = Lock(file, holder, shared=file != path)
    try:
        # A shared holder excludes exclusive ones only.
        for rival in [path] if lock.shared else files.beside(path):
            _refuse_if_alive(path, rival)
        if not lock.shared:
            files.sweep(path)
    except BaseException:
        lock.release()
        raise
    return lock


def _refuse_if_alive(path: Location, file: Location) -> None:
    """Remove the file of a dead holder; refuse a live one."""
    files = files_for(file)
    first, began = files.content(file), time.monotonic()
    logged = False
    while (content := files.content(file)) is not None:
        if _is_foreign(content):
            raise ForeignLockError(path, file)
        found = Holder.parse(content)
        silent = time.monotonic() - began
        is_gone = found.is_gone() if found else None
        # A file that changes has a live holder, whatever its content.
        if is_gone is False or (content != first and not is_gone):
            raise LockedError(path, found)
        if is_gone or silent > SILENT_SECONDS:
            files.remove(file, content)
            return
        if silent > _LOG_SECONDS and not logged:
            logged = True
            logger.info("waiting for a heartbeat of the holder of %s: %s", file, found or "unknown")
        time.sleep(files.poll_seconds)


def _is_same(content: bytes, known: bytes) -> bool:
    # Heartbeats change the content of a holder's file, and never its key.
    found, holder = Holder.parse(content), Holder.parse(known)
    return content == known or bool(found and holder and found.key == holder.key)


def _line(holder: Holder) -> bytes:
    return f"{json.dumps(asdict(holder))}\n".encode()


def _is_foreign(content: bytes) -> bool:
    """Return whether no release wrote a file, not even a process killed meanwhile."""
    if content.startswith(_BEGINNING[: len(content)]):
        return False
    try:
        known = json.loads(content)
    except (ValueError, RecursionError):
        return True
    return not (isinstance(known, dict) and {"owner", "key"} <= known.keys())
