"""How far work is, for people: a bar on a screen, elsewhere a line at each tenth."""

from __future__ import annotations

from types import TracebackType


class WorkProgress:
    """A bar in a terminal or a notebook; a context manager on the driver.

    Where output is no screen, a line is printed when work first moves on, and at each tenth.

    Args:
        name: What is done, as the bar says it.
        total: How much there is to do.
        done: How much of it is done already.
        line: The line, with places for ``done``, ``total`` and ``text``.
    """

    def __init__(self, name: str, total: int, done: int, line: str) -> None:
        # Modules that executors import import this one; they show nothing.
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._total = total
        self._line = line
        self._printed_tenth = -1
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn(name),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not (self._console.is_terminal or self._console.is_jupyter),
        )
        self._task = self._bar.add_task(name, total=total, completed=done, text="")

    def __enter__(self) -> WorkProgress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def show(self, done: int, text: str) -> None:
        """Shows that so much is done.

        Args:
            done: Of the total; less than before where work is made again.
            text: What else there is to say, such as a rate.
        """
        self._bar.update(self._task, completed=done, text=text)
        tenth = 10 * done // max(self._total, 1)
        if self._bar.disable and tenth != self._printed_tenth:
            self._printed_tenth = tenth
            line = self._line.format(done=done, total=self._total, text=text)
            self._console.print(line, highlight=False)
