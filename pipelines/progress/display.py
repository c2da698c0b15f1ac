"""The display of work while it goes on, and of the jobs around it."""

from __future__ import annotations

import logging
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, Self

from pipelines.errors import printable

if TYPE_CHECKING:
    from rich.progress import Task


_JOB: ContextVar[JobDisplay | None] = ContextVar("job", default=None)
_CURRENT: ContextVar[Activity | None] = ContextVar("activity", default=None)
LINE_SECONDS = 30.0
"""The shortest time between two lines about the same work."""
SHORT_SECONDS = 5.0
"""The silence of mostly short commands: most end, or refuse their input, within it."""
LINES_PER_DOUBLING = 20
"""Lines of long work are further apart: a twentieth of the elapsed time."""
_TICK_SECONDS = 1.0
_JOIN_SECONDS = 5.0


def say(text: str, file: IO[str] | None = None) -> None:
    """Print a line, without control of the terminal."""
    print(printable(text), file=file)


class MessageHandler(logging.StreamHandler[Any]):
    """A log handler for the present standard error, so above a progress bar.

    The job reports interruptions at its end, not the libraries at work.
    """

    def format(self, record: logging.LogRecord) -> str:
        """See :class:`logging.Handler`."""
        return printable(super().format(record))

    def emit(self, record: logging.LogRecord) -> None:
        """See :class:`logging.Handler`."""
        error = record.exc_info[0] if record.exc_info else None
        if error is not None and issubclass(error, KeyboardInterrupt):
            return
        # rich replaces `sys.stderr` while a display is live.
        self.stream = sys.stderr
        super().emit(record)


class Work(ABC):
    """Work with a display: its own, or that of the job around it.

    A context manager on the driver.

    Attributes:
        total: Its amount; None if unknown.
        stays: Whether its own display stays on the screen at its end.
        quiet: Seconds before its first line, without a screen.
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
        """Return its progress, shown beside its name on the screen."""

    @abstractmethod
    def line(self) -> str:
        """Return the present line, for output without a screen."""

    def look(self) -> None:  # noqa: B027 - not all work is polled
        """Update its progress; called every second, on a thread."""

    def _changed(self, *, tell: bool = False) -> None:
        if self._display is not None:
            self._display.refresh()
            if tell:
                self._display.tell()


class WorkProgress(Work):
    """A bar for work of a known size; without a screen also a line at each tenth of it.

    ``line`` is a format string with ``done``, ``total`` and ``text``; ``text`` shows until the
    first progress.
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
        """Show the finished amount, and keep the text."""
        if not self._moved:
            # The first text is about the time before any progress.
            self._moved, self._text = True, ""
        # No refresh: the display looks every second, and a second may have a thousand steps.
        self.done = done

    def show(self, done: int, text: str) -> None:
        """Show the finished amount and a text; repeated work may lower the amount."""
        self._moved, self.done, self._text = True, done, text
        tenth = 10 * done // max(self._amount, 1)
        tell, self._told_tenth = tenth != self._told_tenth, tenth
        self._changed(tell=tell)

    def state(self) -> str:
        """Return the amounts, and the text."""
        return f"{self.done}/{self._amount} {self._text}"

    def line(self) -> str:
        """Fill the template."""
        line = self._template.format(done=self.done, total=self._amount, text=self._text)
        # Between the first `move` and the first `show`, the text is empty.
        return line.rstrip()


class Activity(Work):
    """The elapsed time, for work of unknown size."""

    def __init__(self, name: str, part: str, detail: Callable[[], str], quiet: float) -> None:
        super().__init__(name, None, 0)
        self.quiet = quiet
        self._part, self._detail, self._found = part, detail, ""

    def turn_to(self, part: str) -> None:
        """Begin another part of the work."""
        self._part, self._found = part, ""
        self._changed()

    def look(self) -> None:
        """Ask for the detail."""
        self._found = self._detail()

    def state(self) -> str:
        """Return the part, and the detail."""
        return ", ".join(part for part in (self._part, self._found) if part)

    def line(self) -> str:
        """Return name, state and seconds."""
        name = f"{self.name}: {self.state()}" if self.state() else self.name
        seconds = time.monotonic() - self.began
        return name + (f" ({seconds:.0f} s)" if seconds >= 1 else "")


@contextmanager
def job(
    name: str, stages: Sequence[str], expected: Mapping[str, float] = MappingProxyType({})
) -> Iterator[Mapping[str, float]]:
    """Show a block in one display; within another job, as a part of that job.

    Args:
        stages: In their order; the first begins at once. An activity, or work of a known size, with
            the name of a stage begins it.
        expected: Seconds of stages, if an earlier job has measured them; they give the remaining
            time of the job.

    Yields:
        The seconds of the ended stages; none within another job.
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
    """Show an activity during a block; within another activity, as a part of that activity.

    A thread calls ``detail`` every second for the state of the work.
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
    """Show another part of the present activity, if any."""
    shown = _CURRENT.get()
    if shown is not None:
        shown.turn_to(part)


class Display:
    """Rows of a live display in a terminal or a notebook, and lines elsewhere."""

    def __init__(self, *, stays: bool) -> None:
        # Imported late: executors import this module too, show nothing, and may lack rich.
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        from pipelines.progress.screen import NotebookProgress, Screen

        self._console = Screen(stderr=True)
        in_notebook = self._console.is_jupyter
        is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._bar = (NotebookProgress if in_notebook else Progress)(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[state]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            # Output to a file or another program must not go through the display.
            redirect_stdout=sys.stdout.isatty(),
            disable=not (is_live or in_notebook),
            transient=not stays,
            expand=True,
        )
        # The display shows the last one: it began inside of those before it.
        self._works: list[Work] = []
        self._row: Task | None = None
        self._printed, self._line = time.monotonic(), ""
        # The job's thread begins and ends work, and the thread below reads it.
        # Reentrant: `show` refreshes and prints while it holds the lock.
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def begin(self, work: Work) -> None:
        """Show work, until its end."""
        self._row = self.add_row(work.name)
        self.show(work)
        self.open()

    def end(self, work: Work) -> None:
        """Take the work off the display."""
        self.refresh()
        self.close()

    @property
    def _work(self) -> Work | None:
        return self._works[-1] if self._works else None

    def open(self) -> None:
        """Put the display on the screen."""
        self._bar.start()
        self._thread.start()

    def close(self) -> None:
        """Close the display; its last state stays on the screen if it `stays`."""
        self._ended.set()
        self._thread.join(_JOIN_SECONDS)
        self._bar.stop()

    def add_row(self, name: str) -> Task:
        """Return a row below the others, for new work."""
        self._bar.add_task(name, total=None, state="", left="")
        return self._bar.tasks[-1]

    def show(self, work: Work) -> None:
        """Turn to other work in the present row."""
        with self._lock:
            self._works.append(work)
            self._turn_to(work)
            self.refresh()
            self._bar.refresh()
            self.tell()

    def refresh(self) -> None:
        """Show the present state."""
        with self._lock:
            row, work = self._row, self._work
            if row is None or work is None:
                return
            self._bar.update(row.id, completed=work.done, state=self.state_of(work))
            self._bar.update(row.id, left=_left(row.time_remaining))

    def state_of(self, work: Work) -> str:
        """Return the text of the present row."""
        return work.state()

    def line_of(self, work: Work | None) -> str:
        """Return a line for the log."""
        return "" if work is None else work.line()

    def tell(self) -> None:
        """Print a line, unless there is a screen."""
        with self._lock:
            work, now = self._work, time.monotonic()
            if work is not None and now - work.began < work.quiet:
                return
            line, before = self.line_of(work), self._printed
            self._printed = now
            # A job and its first work often begin together, with the same line.
            is_new = line != self._line or self._printed - before >= _TICK_SECONDS
            self._line = line
            if self._bar.disable and line and is_new:
                self._console.print(line, soft_wrap=True)

    def _turn_to(self, work: Work) -> None:
        if self._row is not None:
            self._row.total = work.total
            # rich stops the clock of a row once it is full.
            self._row.finished_time = None
            self._bar.update(self._row.id, completed=work.done, state="", left="")

    def _watch(self) -> None:
        while not self._ended.wait(_TICK_SECONDS):
            work = self._work
            if work is None:
                continue
            work.look()
            self.refresh()
            self._bar.refresh()
            now = time.monotonic()
            is_first = bool(work.quiet) and not self._line
            if is_first or now - self._printed >= line_interval(now - work.began):
                self.tell()


class JobDisplay(Display):
    """A row for the whole job, and below it one for each begun stage.

    Args:
        stages: In their order. Work with the name of a stage begins it; other work belongs to the
            latest stage.

    Attributes:
        seconds: By ended stage.
    """

    def __init__(self, name: str, stages: Sequence[str], expected: Mapping[str, float]) -> None:
        super().__init__(stays=True)
        self.seconds: dict[str, float] = {}
        self._stages = stages
        self._expected = expected
        self._stage = 0
        self._stage_began = time.monotonic()
        self._job_row = self.add_row(name)

    def open(self) -> None:
        """Begin with the first stage."""
        self._begin_stage(0)
        super().open()
        self.tell()

    def begin(self, work: Work) -> None:
        """Show work in the row of its stage."""
        if work.name in self._stages[self._stage + 1 :]:
            self._end_stage()
            self._begin_stage(self._stages.index(work.name))
        self.show(work)

    def end(self, work: Work) -> None:
        """Leave the last state in the row of its stage, until further work."""
        with self._lock:
            self.refresh()
            self._bar.refresh()
            # The end of a stage has removed its works already.
            if work in self._works:
                self._works.remove(work)
            if (around := self._work) is not None:
                self._turn_to(around)

    def end_stages(self) -> None:
        """Show the end of the job."""
        self._end_stage()
        self._show_job(len(self._stages))

    def refresh(self) -> None:
        """Show the present state, of the whole job too."""
        with self._lock:
            super().refresh()
            self._bar.update(self._job_row.id, left=_left(self._seconds_left()))

    def state_of(self, work: Work) -> str:
        """Return the work's state, and its name unless equal to the stage's."""
        state = work.state()
        if work.name == self._stages[self._stage]:
            return state
        return f"{work.name}: {state}" if state else work.name

    def line_of(self, work: Work | None) -> str:
        """Return the work's line, preceded by the stage."""
        stage = self._stages[self._stage]
        line = stage if work is None else work.line()
        staged = line if line.startswith(stage) else f"{stage}: {line}"
        return f"{self._counted(self._stage)}{staged}"

    def _counted(self, stage: int) -> str:
        count = len(self._stages)
        return f"{stage + 1}/{count} " if count > 1 else ""

    def _seconds_left(self) -> float | None:
        """Return the job's; None unless known for the rest of this stage and all later ones."""
        present, *later = self._stages[self._stage :]
        left = None if self._row is None else self._row.time_remaining
        if left is None and present in self._expected:
            elapsed = time.monotonic() - self._stage_began
            left = max(0.0, self._expected[present] - elapsed)
        if left is None or not self._expected.keys() >= set(later):
            return None
        return left + sum(self._expected[stage] for stage in later)

    def _show_job(self, ended: int) -> None:
        count = len(self._stages)
        state = f"{ended} of {count} stages"
        self._bar.update(self._job_row.id, total=count, completed=ended, state=state, left="")

    def _begin_stage(self, number: int) -> None:
        self._stage = number
        self._stage_began = time.monotonic()
        self._show_job(number)
        self._row = self.add_row(f"{self._counted(number)}{self._stages[number]}")

    def _end_stage(self) -> None:
        with self._lock:
            row, self._row = self._row, None
            self._works.clear()
            elapsed = time.monotonic() - self._stage_began
            self.seconds[self._stages[self._stage]] = round(elapsed, 1)
            if row is not None:
                self._bar.update(row.id, total=1, completed=1, state="", left="")


def line_interval(elapsed: float) -> float:
    """Return seconds until the next line, for elapsed seconds of work."""
    return max(LINE_SECONDS, elapsed / LINES_PER_DOUBLING)


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f"{timedelta(seconds=max(0, int(seconds)))} left"
