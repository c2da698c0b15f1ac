"""Progress for people: a live display in terminals and notebooks, lines elsewhere.

Where output is not a terminal (a log of a scheduler, a file) a line says what begins, and further
lines follow after 30 seconds, then ever more rarely: a job of ten hours writes some hundred.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

LINE_SECONDS = 30.0
"""The shortest time between two lines about the same work."""
LINES_PER_DOUBLING = 20
"""The longer work takes, the further its lines are apart: a twentieth of the elapsed time."""
_TICK_SECONDS = 1.0
_JOIN_SECONDS = 5.0


class MessageHandler(logging.StreamHandler[Any]):
    """Writes messages to the present standard error, so that they appear above a progress bar.

    Interruptions are reported at the end of the job, and not by the libraries at work.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """See :class:`logging.Handler`."""
        error = record.exc_info[0] if record.exc_info else None
        if error is not None and issubclass(error, KeyboardInterrupt):
            return
        self.stream = sys.stderr
        super().emit(record)


class _Shown(ABC):
    """A live display in a terminal or a notebook, and lines elsewhere.

    A context manager on the driver.

    Args:
        columns: Of the live display.
        total: Amount of work; None where it is not known.
        done: Amount that is done already.
        stays: Whether the live display is left on the screen at the end.
    """

    def __init__(self, *columns: ProgressColumn, total: int | None, done: int, stays: bool) -> None:
        # Executors import this module too, but show nothing: they need not have rich.
        from rich.console import Console
        from rich.progress import Progress

        self._console = Console(stderr=True)
        is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        # In a notebook rich uses a widget, and without ipywidgets it shows nothing at all.
        is_live = is_live or (self._console.is_jupyter and find_spec("ipywidgets") is not None)
        self._bar = Progress(
            *columns,
            console=self._console,
            disable=not is_live,
            transient=not stays,
            expand=stays,
        )
        self._task = self._bar.add_task("", total=total, completed=done, text="")
        self._began = self._told = time.monotonic()
        self._telling = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._bar.start()
        self._tell()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(_JOIN_SECONDS)
        self._bar.stop()

    @abstractmethod
    def _line(self) -> str:
        """The line to print now, where there is no live display."""

    def _look(self) -> None:  # noqa: B027 - not all displays poll
        """Called every second."""

    def _watch(self) -> None:
        while not self._ended.wait(_TICK_SECONDS):
            self._look()
            now = time.monotonic()
            if now - self._told >= line_interval(now - self._began):
                self._tell()

    def _tell(self) -> None:
        """Prints a line, where there is no live display."""
        with self._telling:
            self._told = time.monotonic()
            if self._bar.disable:
                self._console.print(self._line(), highlight=False, markup=False, soft_wrap=True)


def line_interval(elapsed: float) -> float:
    """Seconds until the next line of work that has taken so long."""
    return max(LINE_SECONDS, elapsed / LINES_PER_DOUBLING)


class WorkProgress(_Shown):
    """A bar for work of a known size; elsewhere also a line at each tenth of it.

    Args:
        name: Of the work, beside the bar.
        done: Amount that is done already.
        line: A format string with ``done``, ``total`` and ``text``.
        text: Shown until the first progress.
    """

    def __init__(self, name: str, total: int, done: int, line: str, text: str = "") -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        super().__init__(
            TextColumn(name),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            total=total,
            done=done,
            stays=True,
        )
        self._total = total
        self._template = line
        self._done, self._text = done, text
        self._told_tenth = -1
        self._moved = False
        self._bar.update(self._task, text=text)

    def move(self, done: int) -> None:
        """Shows that so much is done, and keeps the text."""
        if not self._moved:
            # The first text is about the time before any progress.
            self._moved, self._text = True, ""
        self._done = done
        self._bar.update(self._task, completed=done, text=self._text)

    def show(self, done: int, text: str) -> None:
        """Shows that so much is done.

        Args:
            done: Of the total; less than before where work is made again.
            text: Further information, such as a rate.
        """
        self._moved, self._done, self._text = True, done, text
        self._bar.update(self._task, completed=done, text=text)
        tenth = 10 * done // max(self._total, 1)
        if tenth != self._told_tenth:
            self._told_tenth = tenth
            self._tell()

    def _line(self) -> str:
        return self._template.format(done=self._done, total=self._total, text=self._text)


class Activity(_Shown):
    """A spinner with the elapsed time, for work of unknown size.

    Args:
        name: Of the work.
        part: The first part of it.
        detail: Called every second for the state of the work; may return an empty string.
    """

    def __init__(self, name: str, part: str, detail: Callable[[], str]) -> None:
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            TimeElapsedColumn(),
            total=None,
            done=0,
            stays=False,
        )
        self._name, self._part, self._detail, self._found = name, part, detail, ""
        self._show()

    def turn_to(self, part: str) -> None:
        """Another part of the work begins."""
        self._part, self._found = part, ""
        self._show()

    def _look(self) -> None:
        self._found = self._detail()
        self._show()

    def _show(self) -> None:
        self._bar.update(self._task, text=self._said())

    def _said(self) -> str:
        parts = ", ".join(part for part in (self._part, self._found) if part)
        return f"{self._name}: {parts}" if parts else self._name

    def _line(self) -> str:
        seconds = time.monotonic() - self._began
        return self._said() + (f" ({seconds:.0f} s)" if seconds >= 1 else "")


_CURRENT: ContextVar[Activity | None] = ContextVar("activity", default=None)


@contextmanager
def activity(name: str, part: str = "", detail: Callable[[], str] = str) -> Iterator[None]:
    """Shows an activity while a block runs; within another activity, as a part of that.

    Args:
        name: Of the work.
        part: The first part of it; see :func:`next_part`.
        detail: Called every second, on a thread, for the state of the work.
    """
    if _CURRENT.get() is not None:
        next_part(name)
        yield
        return
    shown = Activity(name, part, detail)
    token = _CURRENT.set(shown)
    try:
        with shown:
            yield
    finally:
        _CURRENT.reset(token)


def next_part(part: str) -> None:
    """Shows that the present activity, if any, has begun another part."""
    shown = _CURRENT.get()
    if shown is not None:
        shown.turn_to(part)
