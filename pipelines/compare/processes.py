"""The resources of a command: its time, and the memory of its process and of all others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.errors import PipelineError
from pipelines.files import storage
from pipelines.settings import Config
from pipelines.settings import load as configuration

_SECONDS_BETWEEN = 0.25
_GRACE_SECONDS = 10


@dataclass(frozen=True)
class Usage:
    """The resources used by a command.

    Attributes:
        seconds: Wall clock from start to end.
        cpu_seconds: Of the command and all its processes.
        driver_bytes: Peak resident memory of the command and its direct children: a Spark driver's
            Python and its Java. Executors are further down.
        own_bytes: Peak resident memory of all processes together, each without its shared pages
            (files).
    """

    seconds: float
    cpu_seconds: float
    driver_bytes: int
    own_bytes: int


def stage_command(stage: str, config: Config, settings: Path) -> list[str]:
    """Write the settings to a file; return the command for a stage in a separate process.

    A stage is a verb of the command line.
    """
    storage.write_text(settings, configuration.dump(config))
    return cli_command(stage, "--config", str(settings))


def cli_command(*arguments: str) -> list[str]:
    """Return the command line of this package, with this process's Python."""
    call = "import sys; from pipelines.cli import main; sys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-c", call, *arguments]


def own_environment() -> dict[str, str]:
    """Return this process's variables, without those of a driver of spark-submit."""
    gateway = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")
    return {key: value for key, value in os.environ.items() if key not in gateway}


def measure_command(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    deadline_seconds: float,
    on_look: Callable[[], None] = lambda: None,
    log: Path | None = None,
) -> Usage:
    """Run a command and watch its processes, four times a second.

    All its processes end with the call, also after an error.

    Args:
        environment: All of its environment variables.
        deadline_seconds: The limit for the command.
        on_look: Called at each look.
        log: A file for its output; standard error by default.

    Raises:
        PipelineError: The command failed, or did not end in time.
    """
    began = time.monotonic()
    with (
        nullcontext(2) if log is None else log.open("wb") as output,
        started(
            command, output if isinstance(output, int) else output.fileno(), environment
        ) as process,
    ):
        driver_bytes = own_bytes = 0
        # Spark's daemon does not wait for its Python workers, so no parent gets their time. The
        # last observation of each process counts instead.
        spent: dict[tuple[int, float], float] = {}
        try:
            while not _ended(process):
                seen = _observe(process.pid)
                spent |= seen.spent
                driver_bytes = max(driver_bytes, seen.driver_bytes)
                own_bytes = max(own_bytes, seen.own_bytes)
                on_look()
                if time.monotonic() - began > deadline_seconds:
                    raise PipelineError(f"it did not end within {deadline_seconds:.0f} s")
            seconds = time.monotonic() - began
        finally:
            end_session(process.pid, spent)
    if process.returncode:
        cause = "; its error is above" if log is None else f": {_last_words(log)}"
        raise PipelineError(f"it ended with code {process.returncode}{cause}")
    return Usage(seconds, sum(spent.values()), driver_bytes, own_bytes)


def _last_words(log: Path) -> str:
    """Return a command's printed error, or else its last line."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines or [""])[-1].removeprefix("error: ")


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_SECONDS_BETWEEN)
    except subprocess.TimeoutExpired:
        return False
    return True


@dataclass
class _Observed:
    """The processes of a session at one moment; `spent` is by process, in CPU seconds."""

    spent: dict[tuple[int, float], float] = field(default_factory=dict)
    driver_bytes: int = 0
    own_bytes: int = 0


def _observe(leader: int) -> _Observed:
    import psutil

    observed, descendants = _Observed(), _descendants(leader)
    for process in psutil.process_iter():
        # A process may end between any two of these lines.
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError):
            if os.getsid(process.pid) != leader and process.pid not in descendants:
                continue
            times, memory = process.cpu_times(), process.memory_info()
            observed.spent[process.pid, process.create_time()] = times.user + times.system
            # psutil knows shared pages on Linux only.
            observed.own_bytes += memory.rss - getattr(memory, "shared", 0)
            if leader in (process.pid, process.ppid()):
                observed.driver_bytes += memory.rss
    return observed


def _descendants(leader: int) -> set[int]:
    """Return all descendants, also in new sessions, like torchrun's workers."""
    import psutil

    try:
        return {child.pid for child in psutil.Process(leader).children(recursive=True)}
    except psutil.NoSuchProcess:
        return set()


def end_session(leader: int, seen: Collection[tuple[int, float]] = ()) -> None:
    """End the rest of a session, first politely, so that Spark removes its files.

    A second ctrl-c leaves no processes behind. The leader is the session's first process. `seen`
    are further processes with their start times, from new sessions, like torchrun's workers.
    """
    with _uninterrupted():
        for kind, patience in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, 1)):
            until = time.monotonic() + patience
            while (members := _members(leader, seen)) and time.monotonic() < until:
                for member in members:
                    with suppress(ProcessLookupError):
                        os.kill(member, kind)
                time.sleep(_SECONDS_BETWEEN)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore ctrl-c in the block; only the main thread can, and only it gets one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _members(leader: int, seen: Collection[tuple[int, float]]) -> list[int]:
    import psutil

    members = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            is_member = (
                os.getsid(process.pid) == leader or (process.pid, process.create_time()) in seen
            )
            # A zombie has ended; a signal would not remove it.
            if is_member and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process.pid)
    return members


def started(
    command: Sequence[str], output: int, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a command in a new session, for :func:`end_session`.

    The session identifies its processes, even orphans.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=environment,
        start_new_session=True,
    )
