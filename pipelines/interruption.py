"""Ctrl-C and SIGTERM: the job ends in order, and prints the command to continue it."""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType

_ANEW = "run.overwrite=true"
_RESUMING = ("--set", "training.resume=true")
_GO_ON_BY: Mapping[str, tuple[str, ...]] = {
    "prepare": (),
    "train": _RESUMING,
    "run": _RESUMING,
    "embed": (),
    "publish": (),
    "ask": (),
    "mine": (),
    "score": (),
}
"""Commands that can continue, and the arguments that they need for it."""


@dataclass
class Interruption:
    """The signal at the end of a job; without one, its `number` is 0.

    :func:`run_begun` notes the start or the resumption of a run.
    """

    number: int = 0
    run_begun: bool = False

    @property
    def exit_code(self) -> int:
        """Return the exit code as shells have it; 130 for Ctrl-C."""
        return 128 + (self.number or signal.SIGINT)


_current: ContextVar[Interruption | None] = ContextVar("current", default=None)


def run_begun() -> None:
    """Note the start of this job's run in the run folder."""
    current = _current.get()
    if current is not None:
        current.run_begun = True


@contextmanager
def terminated_in_order() -> Iterator[Interruption]:
    """Make SIGTERM raise KeyboardInterrupt while a block runs, for an orderly end of the job.

    Otherwise Python exits at once, and its Java process notices later, with hundreds of lines on
    the terminal. Only the main thread can set signal handlers: elsewhere this does nothing.
    """
    interruption = Interruption()

    def stop(number: int, frame: FrameType | None) -> None:
        # Only once: a second signal must not interrupt the orderly end.
        signal.signal(number, signal.SIG_IGN)
        interruption.number = number
        raise KeyboardInterrupt

    token = _current.set(interruption)
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if is_main else None
    try:
        yield interruption
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before)
        _current.reset(token)


def how_to_go_on(arguments: Sequence[str], *, submitted: bool, run_begun: bool) -> str:
    """Return the message to the user of an interrupted job.

    `arguments` begin with the command's name. If `submitted`, the arguments of spark-submit are
    unknown. Without `run_begun`, the run folder may hold an older run, not to be resumed.
    """
    command = arguments[0] if arguments else ""
    if command not in _GO_ON_BY:
        return "interrupted"
    further = _GO_ON_BY[command] if run_begun else ()
    if further and further[-1] in arguments:
        further = ()
    given = list(arguments)
    if run_begun and _ANEW in given and given[(place := given.index(_ANEW)) - 1] == "--set":
        # The user meant an older run; now it would delete the run to continue.
        del given[place - 1 : place + 1]
    if submitted:
        again = f"submit it again with {shlex.join(further)}" if further else "submit it again"
    else:
        again = shlex.join(["sentence-pipelines", *given, *further])
    return f"interrupted; to go on: {again}"
