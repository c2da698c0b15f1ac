"""Owners of files on a shared file system: processes, and checks of their ownership of a folder.

A process number is ambiguous: containers count their own, and numbers are used again. Together with
the machine's boot, the process namespace and the start time it is unique for ever. A process
elsewhere is invisible; heartbeats decide about its files.

A suspended job, or one cut off, may go on after another has taken its folder over. So each job
registers a check of its folder. It runs right before every rename or put into that folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pipelines.files.locations import Location

_WRITTEN = re.compile(r"([0-9a-f]{12})-(\d+)-(\d+)")
_START_FIELD = 18
"""Index of `starttime` in /proc/PID/stat, counted from the state; see proc(5)."""
_ENDED = "ZXx"
"""States of ended processes whose parent has not yet waited for them."""


@dataclass(frozen=True)
class Owner:
    """A process.

    ``realm`` is a digest of the boot and of the namespace of its number. ``started`` counts clock
    ticks from the boot to its start; 0 if unknown.
    """

    realm: str
    process: int
    started: int

    @classmethod
    def here(cls) -> Owner:
        """Return this process."""
        return cls(_realm(), os.getpid(), _started("self") or 0)

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """Read the text of :meth:`__str__`; None for anything else."""
        found = _WRITTEN.fullmatch(text)
        return cls(found[1], int(found[2]), int(found[3])) if found else None

    def __str__(self) -> str:
        return f"{self.realm}-{self.process}-{self.started}"

    def is_gone(self) -> bool | None:
        """Return whether the process has ended; None if unknown here."""
        if self.realm != _realm():
            return None
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # It exists, as another user's.
        # A /proc that was mounted for another namespace lists other processes.
        if not self.started or _link("/proc/self") != str(os.getpid()):
            return False
        started = _started(str(self.process))
        # A /proc that hides the processes of other users (`hidepid`) decides nothing.
        return None if started is None else started != self.started


@cache
def _realm() -> str:
    """Return twelve hexadecimal digits of boot and namespace, or else of the host's name.

    A running process never changes its namespace, nor do its forks. Only `unshare` gives its
    children another one, and they are new processes.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    try:
        parts = [boot.read_text(encoding="ascii").strip(), _link("/proc/self/ns/pid")]
    except OSError:
        parts = [socket.gethostname()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""


def _started(process: str) -> int | None:
    """Return the start of a process; 0 if it has ended as a zombie, None if it is not shown."""
    try:
        status = Path("/proc", process, "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *fields = status.rpartition(")")[2].split()
    return 0 if state in _ENDED else int(fields[_START_FIELD])


# Read and changed by several threads: each use is one call, which Python does not interrupt.
_checks: list[tuple[Location, Callable[[], None]]] = []
"""Folders of this process, with checks that raise when another job has them."""


@contextmanager
def fence(folder: Location, check: Callable[[], None]) -> Iterator[None]:
    """Let all threads of this process publish in a folder only while a check passes.

    The check raises a `PipelineError` when another job has the folder.
    """
    entry = (folder, check)
    _checks.append(entry)
    try:
        yield
    finally:
        _checks.remove(entry)


def check_own(path: Location) -> None:
    """Check the ownership of a place before a change there.

    Raises:
        PipelineError: Another job has taken over the folder.
    """
    for folder, check in tuple(_checks):
        if folder == path or folder in path.parents:
            check()


# A child is another writer; and a check may need a lock that a thread of its parent held.
os.register_at_fork(after_in_child=_checks.clear)
