"""One job at a time in an output folder.

The job that writes has a file beside the folder, and changes it every few seconds. A file that no
longer changes is of a job that was killed, on whichever host, and is taken over. This needs of the
file system only that it makes a file once, so it works on shared folders of all kinds.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipelines.errors import InputError, PipelineError

KEY = "embedding.output"
BEAT_SECONDS = 2.0
SILENT_SECONDS = 30.0
"""A job that has not changed its file for so long is gone."""
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Holder:
    """What stands in the file.

    Attributes:
        host: Of the job.
        process: Of the driver.
        key: Of this job alone.
        beat: Counts up.
    """

    host: str
    process: int
    key: str
    beat: int

    def line(self) -> bytes:
        """As it is written, always of the same length, over the one before."""
        return f'["{self.host}", {self.process}, "{self.key}", "{self.beat:012d}"]\n'.encode()


class WriterLock:
    """The right to write into a folder, kept up by a thread.

    Args:
        path: The file, which is there.
        holder: What stands in it.
    """

    def __init__(self, path: Path, holder: Holder) -> None:
        self._path = path
        self._holder = holder
        self._lost = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_up, name="embedding-lock", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Makes sure that no other job took this one for gone.

        Raises:
            PipelineError: One did, because this process stood still for too long.
        """
        if self._lost:
            raise PipelineError(
                f"{self._path} was taken over by another process, since this one stood still"
            )

    def release(self) -> None:
        """Lets the next job write."""
        self._ended.set()
        self._thread.join(timeout=SILENT_SECONDS)
        if not self._lost:
            _remove(self._path, self._holder)

    def _keep_up(self) -> None:
        beat = 0
        while not self._ended.wait(BEAT_SECONDS):
            beat += 1
            held = self._holder
            try:
                with self._path.open("r+b") as file:
                    found = _parsed(file.read())
                    if found is None or found.key != held.key:
                        break
                    file.seek(0)
                    file.write(Holder(held.host, held.process, held.key, beat).line())
            except FileNotFoundError:
                break
            except OSError:
                # A network file system that is away for a moment: the next beat may get through.
                continue
        self._lost = not self._ended.is_set()


@contextmanager
def only_writer(folder: Path, silent_seconds: float = SILENT_SECONDS) -> Iterator[WriterLock]:
    """Keeps other jobs from writing into a folder while the block runs.

    Args:
        folder: Need not be there; its parent is made.
        silent_seconds: Of another job's file, after which that job is gone.

    Raises:
        InputError: Another job is at work there, or nothing can be written.
    """
    real = folder.resolve()
    path = real.parent / f".{real.name}.lock"
    holder = Holder(socket.gethostname(), os.getpid(), uuid.uuid4().hex, 0)
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        while not _made(path, holder):
            _await_gone(path, folder, silent_seconds)
    except OSError as error:
        raise InputError(
            KEY, f"{folder} cannot be written ({error.strerror})", "name another folder"
        ) from None
    lock = WriterLock(path, holder)
    try:
        yield lock
    finally:
        lock.release()


def _made(path: Path, holder: Holder) -> bool:
    try:
        with path.open("xb") as file:
            file.write(holder.line())
    except FileExistsError:
        return False
    return True


def _await_gone(path: Path, folder: Path, silent_seconds: float) -> None:
    """Removes the file of a job that is gone; returns too when the file has gone by itself."""
    first = _read(path)
    since = time.monotonic()
    while path.exists():
        found = _read(path)
        if found is not None and found != first:
            raise InputError(
                KEY,
                f"process {found.process} on {found.host} is writing {folder}",
                "wait for its end, or name another folder",
            )
        if (found is not None and _has_died(found)) or time.monotonic() - since > silent_seconds:
            _remove(path, found)
            return
        time.sleep(POLL_SECONDS)


def _has_died(holder: Holder) -> bool:
    """Whether it is known at once; a number of a process may have been given to another."""
    if holder.host != socket.gethostname():
        return False
    try:
        os.kill(holder.process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _remove(path: Path, holder: Holder | None) -> None:
    """Removes the file if it is the holder's; of several that do so, one succeeds."""
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        path.rename(aside)
    except FileNotFoundError:
        return
    found = _read(aside)
    if found is not None and holder is not None and found.key != holder.key:
        aside.rename(path)
    else:
        aside.unlink()


def _read(path: Path) -> Holder | None:
    try:
        return _parsed(path.read_bytes())
    except FileNotFoundError:
        return None


def _parsed(data: bytes) -> Holder | None:
    """None of a file that is being written for the first time."""
    try:
        host, process, key, beat = json.loads(data)
        return Holder(host, process, key, int(beat))
    except ValueError:
        return None
