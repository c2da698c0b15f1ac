"""Which process owns something on a shared file system, and what is no longer its own.

The number of a process is ambiguous: each container counts its own, and numbers are used
again. With the boot of the machine, the namespace of processes and the time of the start it names
one process for ever. Of a process elsewhere nothing is known; what it owns is judged by signs of
life.

A job that was suspended, or cut off from the others, may go on after another one has taken its
folder over. So whoever works in a folder says how it is known that the folder is still its own, and
all that makes something appear in a folder asks here first, as the last thing before a rename or a
put.
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
"""Of `starttime` in /proc/PID/stat, counted from behind the state; see proc(5)."""
_ENDED = "ZXx"
"""States of processes that have ended; the parent has not asked for how."""


@dataclass(frozen=True)
class Owner:
    """A process.

    Attributes:
        realm: Digest of the boot and the namespace in which its number means something.
        started: Clock ticks from the boot to its start; 0 where the system does not say.
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
        """Return what :meth:`__str__` wrote; None of anything else."""
        found = _WRITTEN.fullmatch(text)
        return cls(found[1], int(found[2]), int(found[3])) if found else None

    def __str__(self) -> str:
        return f"{self.realm}-{self.process}-{self.started}"

    def is_gone(self) -> bool | None:
        """Return whether the process has ended; None where that cannot be known from here."""
        if self.realm != _realm():
            return None
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # It is there, of another user.
        # A /proc that was mounted for another namespace lists other processes.
        if not self.started or _link("/proc/self") != str(os.getpid()):
            return False
        started = _started(str(self.process))
        # A /proc that hides the processes of other users (`hidepid`) decides nothing.
        return None if started is None else started != self.started


@cache
def _realm() -> str:
    """Return twelve hexadecimal digits, the same for a whole host where the system does not say.

    A namespace never changes under a process that has been started, nor under those it forks, but
    for `unshare`, which changes the one of its children: they are started anew.
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
    """Return when a process was started; 0 of one that has ended and left its number.

    None of one that is not shown, be it that it is gone.
    """
    try:
        status = Path("/proc", process, "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *fields = status.rpartition(")")[2].split()
    return 0 if state in _ENDED else int(fields[_START_FIELD])


# Read and changed by several threads: each use is one call, which Python does not interrupt.
_checks: list[tuple[Location, Callable[[], None]]] = []
"""Of this process: a folder, and what raises when the folder is another's."""


@contextmanager
def fence(folder: Location, check: Callable[[], None]) -> Iterator[None]:
    """Have all threads of this process publish in a folder only as long as a check passes.

    Args:
        check: Raises a `PipelineError` when the folder is another's.
    """
    entry = (folder, check)
    _checks.append(entry)
    try:
        yield
    finally:
        _checks.remove(entry)


def check_own(path: Location) -> None:
    """Check, before something appears at a place or goes from there, that it is still ours.

    Raises:
        PipelineError: It is in a folder that another job has taken over.
    """
    for folder, check in tuple(_checks):
        if folder == path or folder in path.parents:
            check()


# A child is another writer; and a check may need a lock that a thread of its parent held.
os.register_at_fork(after_in_child=_checks.clear)
