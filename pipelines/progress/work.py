"""Work that is shown while it goes on, and the jobs that it is a part of."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Self

from pipelines.progress.display import Display, JobDisplay


class Work(ABC):
    """Work that is shown while it goes on: by itself, or in the display of the job around it.

    A context manager on the driver.

    Attributes:
        name: Of the work.
        total: Its amount; None where that is not known.
        done: Amount that is done.
        stays: Whether it is left on the screen at its end, where it is shown by itself.
        quiet: Seconds before its first line, where there is no screen.
    """

    stays = False
    quiet = 0.0

    def __init__(self, name: str, total: int | None, done: int) -> None:
        self.name, self.total, self.done = name, total, done
        self.began = time.monotonic()
        self._display: Display | None = None

    def __enter__(self) -> Self:
        self.began = time.monotonic()
        self._display = _JOB.get() or Display(stays=self.stays)
        self._display.begin(self)
        return self

    def __exit__(self, *_: object) -> None:
        display, self._display = self._display, None
        if display is not None:
            display.end(self)

    @abstractmethod
    def state(self) -> str:
        """How far it is, beside its name on the screen."""

    @abstractmethod
    def line(self) -> str:
        """The line to print now, where there is no screen."""

    def look(self) -> None:  # noqa: B027 - not all work is polled
        """Called every second, on a thread."""

    def _changed(self, *, tell: bool = False) -> None:
        if self._display is not None:
            self._display.refresh()
            if tell:
                self._display.tell()


class WorkProgress(Work):
    """A bar for work of a known size; elsewhere also a line at each tenth of it.

    Args:
        name: Of the work, beside the bar.
        done: Amount that is done already.
        line: A format string with ``done``, ``total`` and ``text``.
        text: Shown until the first progress.
    """

    stays = True

    def __init__(self, name: str, total: int, done: int, line: str, text: str = "") -> None:
        super().__init__(name, total, done)
        self._amount = total
        self._template = line
        self._text = text
        self._told_tenth = -1
        self._moved = False

    def move(self, done: int) -> None:
        """Shows that so much is done, and keeps the text."""
        if not self._moved:
            # The first text is about the time before any progress.
            self._moved, self._text = True, ""
        # The display looks every second, and there may be a thousand steps in one.
        self.done = done

    def show(self, done: int, text: str) -> None:
        """Shows that so much is done.

        Args:
            done: Of the total; less than before where work is made again.
            text: Further information, such as a rate.
        """
        self._moved, self.done, self._text = True, done, text
        tenth = 10 * done // max(self._amount, 1)
        tell, self._told_tenth = tenth != self._told_tenth, tenth
        self._changed(tell=tell)

    def state(self) -> str:
        """Amounts, and the text."""
        return f"{self.done}/{self._amount} {self._text}"

    def line(self) -> str:
        """By the template."""
        line = self._template.format(done=self.done, total=self._amount, text=self._text)
        # There is no text between the first progress and the first that is shown with one.
        return line.rstrip()


class Activity(Work):
    """The elapsed time, for work of unknown size.

    Args:
        name: Of the work.
        part: The first part of it.
        detail: Called every second for the state of the work; may return an empty string.
        quiet: Seconds before its first line, where there is no screen.
    """

    def __init__(self, name: str, part: str, detail: Callable[[], str], quiet: float) -> None:
        super().__init__(name, None, 0)
        self.quiet = quiet
        self._part, self._detail, self._found = part, detail, ""

    def turn_to(self, part: str) -> None:
        """Another part of the work begins."""
        self._part, self._found = part, ""
        self._changed()

    def look(self) -> None:
        """Asks for the detail."""
        self._found = self._detail()

    def state(self) -> str:
        """The part, and the detail."""
        return ", ".join(part for part in (self._part, self._found) if part)

    def line(self) -> str:
        """Name, state and seconds."""
        said = f"{self.name}: {self.state()}" if self.state() else self.name
        seconds = time.monotonic() - self.began
        return said + (f" ({seconds:.0f} s)" if seconds >= 1 else "")


_JOB: ContextVar[JobDisplay | None] = ContextVar("job", default=None)
_CURRENT: ContextVar[Activity | None] = ContextVar("activity", default=None)


@contextmanager
def job(
    name: str, stages: Sequence[str], expected: Mapping[str, float] = MappingProxyType({})
) -> Iterator[Mapping[str, float]]:
    """One display for all that a block shows; within another job, a part of that.

    Args:
        name: Of the job.
        stages: The names of what the job is made of, in their order; the first one begins at
            once. An activity, or work of a known size, that has the name of a stage begins it.
        expected: Seconds that stages may take, where an earlier job has shown it: by them the
            time that is left of the job is told.

    Yields:
        The seconds that the stages took, each once it has ended; none within another job.
    """
    if _JOB.get() is not None:
        yield {}
        return
    shown = JobDisplay(name, stages, expected)
    token = _JOB.set(shown)
    try:
        shown.open()
        yield shown.seconds
        shown.end_stages()
    finally:
        shown.close()
        _JOB.reset(token)


@contextmanager
def activity(
    name: str, part: str = "", detail: Callable[[], str] = str, *, quiet: float = 0.0
) -> Iterator[None]:
    """Shows an activity while a block runs; within another activity, as a part of that.

    Args:
        name: Of the work.
        part: The first part of it; see :func:`next_part`.
        detail: Called every second, on a thread, for the state of the work.
        quiet: Seconds before its first line, where there is no screen.
    """
    if _CURRENT.get() is not None:
        next_part(name)
        yield
        return
    shown = Activity(name, part, detail, quiet)
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
