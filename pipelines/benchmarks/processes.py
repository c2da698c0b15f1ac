"""What a command takes: its time, and the memory of its own process and of all others."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pipelines.errors import InputError, PipelineError

_SECONDS_BETWEEN = 0.25
_GRACE_SECONDS = 10


@dataclass(frozen=True)
class Usage:
    """What a command took.

    Attributes:
        seconds: Wall clock from its start to its end.
        cpu_seconds: Of the command and all processes that it started.
        driver_bytes: Resident memory at its highest, of the command and the processes that it
            started itself: a Spark driver's Python and its Java. Executors are further down.
    """

    seconds: float
    cpu_seconds: float
    driver_bytes: int


def measure_command(
    command: Sequence[str], *, environment: Mapping[str, str], deadline_seconds: float
) -> Usage:
    """Runs a command and watches its processes, four times a second.

    What it prints goes to standard error. Whatever happens, none of its processes is left.

    Args:
        command: Program and arguments.
        environment: All of its environment variables.
        deadline_seconds: After these it is ended.

    Raises:
        InputError: `psutil` is not installed.
        PipelineError: The command failed, or did not end in time.
    """
    _check_psutil()
    began = time.monotonic()
    # A session of its own tells its processes from others, even those whose parent has ended.
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=2, env=environment, start_new_session=True
    ) as process:
        driver_bytes = 0
        # Spark's Python workers end under a daemon that does not look, so their time is added to
        # no parent's: what was last seen of each process counts.
        spent: dict[tuple[int, float], float] = {}
        try:
            while not _ended(process):
                seen, resident = _observe(process.pid)
                spent |= seen
                driver_bytes = max(driver_bytes, resident)
                if time.monotonic() - began > deadline_seconds:
                    raise PipelineError(f"it did not end within {deadline_seconds:.0f} s")
            seconds = time.monotonic() - began
        finally:
            end_session(process.pid)
    if process.returncode:
        raise PipelineError(f"it ended with code {process.returncode}; its error is above")
    return Usage(seconds, sum(spent.values()), driver_bytes)


def _check_psutil() -> None:
    try:
        import psutil  # noqa: F401
    except ImportError:
        raise InputError("NAME", "growth needs psutil", "pip install psutil") from None


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_SECONDS_BETWEEN)
    except subprocess.TimeoutExpired:
        return False
    return True


def _observe(leader: int) -> tuple[dict[tuple[int, float], float], int]:
    """CPU seconds of each process of a session, and bytes of the leader and its children."""
    import psutil

    spent: dict[tuple[int, float], float] = {}
    driver_bytes = 0
    for process in psutil.process_iter():
        # A process may end between any two of these lines.
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError):
            if os.getsid(process.pid) != leader:
                continue
            times = process.cpu_times()
            spent[process.pid, process.create_time()] = times.user + times.system
            if leader in (process.pid, process.ppid()):
                driver_bytes += process.memory_info().rss
    return spent, driver_bytes


def end_session(leader: int) -> None:
    """Ends what is left of a session: kindly at first, so that Spark removes its files.

    Args:
        leader: The process that it began with.
    """
    for kind, patience in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, 1)):
        until = time.monotonic() + patience
        while (members := _members(leader)) and time.monotonic() < until:
            for member in members:
                with suppress(ProcessLookupError):
                    os.kill(member, kind)
            time.sleep(_SECONDS_BETWEEN)


def _members(leader: int) -> list[int]:
    import psutil

    members = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            is_member = os.getsid(process.pid) == leader
            if is_member and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process.pid)
    return members
