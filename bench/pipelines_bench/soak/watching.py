"""What the processes of a job hold, by the part that they play in it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines_bench.soak.java_heap import live_heap

if TYPE_CHECKING:
    import psutil

DRIVER, DRIVER_JAVA, CHILDREN = "driver, Python", "driver, Java", "driver's children"
MEMORY, HEAP, THREADS, FILES, SOCKETS, PROCESSES = QUANTITIES = (
    "memory",
    "heap",
    "threads",
    "files",
    "sockets",
    "processes",
)
"""What is counted; memory and heap in MiB, the heap of Java alone."""

SESSION = "session"
LEFT_OVER = (
    "listening ports",
    "temporary files",
    "files in /dev/shm",
    "persisted RDDs",
    "blocks in memory",
)
"""What is counted after a run beside its processes, all of them together."""

Sample = Mapping[str, Mapping[str, float]]
"""By role and quantity."""

_MIB = 2**20
_EXECUTOR_CLASS = "CoarseGrainedExecutorBackend"
_EXECUTOR_ID = "--executor-id"
# Java is asked for its heap by a signal that would end one that has just begun.
_JAVA_READY_SECONDS = 10.0


class Watch:
    """Looks at a process and all that it has started, on this machine.

    Memory of Python is what is a process's alone (USS), so that forks do not count what they share.
    That of Java is what it has outside its heap, where all of the heap is touched as soon as Java
    takes it (``-XX:+AlwaysPreTouch``); the heap is what a full collection leaves.

    Args:
        leader: The driver's Python process.
    """

    def __init__(self, leader: int) -> None:
        import psutil

        self._leader = psutil.Process(leader)
        # What has lost its parent keeps its role.
        self._roles: dict[psutil.Process, str] = {self._leader: DRIVER}

    def sample(self, *, with_heap: bool) -> Sample:
        """Counts of every role that has a process now.

        Args:
            with_heap: Whether Java collects its garbage and tells its memory too.
        """
        import psutil

        found: dict[str, dict[str, float]] = {}
        for process, role in self._processes():
            # A process may end between any two of these lines.
            with suppress(psutil.Error, OSError):
                counts = _counts(process, with_heap=with_heap)
                sums = found.setdefault(role, {})
                for name, count in counts.items():
                    sums[name] = sums.get(name, 0) + count
        return found

    def processes(self) -> list[psutil.Process]:
        """All that live."""
        return [process for process, _ in self._processes()]

    def _processes(self) -> Iterator[tuple[psutil.Process, str]]:
        import psutil

        with suppress(psutil.NoSuchProcess):
            # Parents come first. The script that starts Java becomes Java itself.
            for process in sorted(self._leader.children(recursive=True), key=_age):
                with suppress(psutil.Error):
                    self._roles[process] = self._role(process)
        self._roles = {one: role for one, role in self._roles.items() if one.is_running()}
        yield from self._roles.items()

    def _role(self, process: psutil.Process) -> str:
        import psutil

        parent = process.parent()
        above = self._roles.get(parent, CHILDREN) if parent else CHILDREN
        if process.status() == psutil.STATUS_ZOMBIE:
            # Its parent has not asked how it ended.
            return above
        if process.name() == "java":
            words = process.cmdline()
            if not any(_EXECUTOR_CLASS in word for word in words):
                return DRIVER_JAVA
            return f"executor {words[words.index(_EXECUTOR_ID) + 1]}, Java"
        return above.replace("Java", "Python") if above.startswith("executor") else CHILDREN


def _age(process: psutil.Process) -> float:
    return float(process.create_time())


def _counts(process: psutil.Process, *, with_heap: bool) -> dict[str, float]:
    import psutil

    if process.status() == psutil.STATUS_ZOMBIE:
        return {PROCESSES: 1}
    sockets = files = 0
    for number in Path(f"/proc/{process.pid}/fd").iterdir():
        # It may have been closed meanwhile.
        with suppress(FileNotFoundError):
            is_socket = str(number.readlink()).startswith("socket:")
            sockets, files = sockets + is_socket, files + (not is_socket)
    counts = {
        THREADS: process.num_threads(),
        FILES: files,
        SOCKETS: sockets,
        PROCESSES: 1,
    }
    if process.name() != "java":
        return counts | {MEMORY: process.memory_full_info().uss / _MIB}
    if with_heap and time.time() - _age(process) > _JAVA_READY_SECONDS:
        heap = live_heap(process.pid)
        outside = process.memory_info().rss - heap.committed
        counts |= {HEAP: heap.used / _MIB, MEMORY: outside / _MIB}
    return counts
