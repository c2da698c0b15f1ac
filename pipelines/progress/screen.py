"""rich's tables and rows of progress, in terminals and in the output of notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import Progress
from rich.segment import Segment

from pipelines.errors import printable


class Screen(Console):
    """A console on which no text controls the terminal, and brackets and colons are literal.

    Text is sanitised as it is drawn, in any table or line. Sanitise a cell's arbitrary text
    beforehand, so that its width is right.
    """

    def __init__(self, *, stderr: bool = False, **options: Any) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """See :meth:`rich.console.Console.render`."""
        for text, style, control in super().render(renderable, options):
            # A control is the library's own, and moves the cursor.
            yield Segment(text if control else printable(text), style, control)


class NotebookProgress(Progress):
    """Rows that are drawn again in the same place, without a widget.

    rich itself would take a widget. Clients without a browser (nbclient and tools built on it)
    answer every message of a widget on the socket on which they wait for the end of the cell. They
    can then miss that end, and wait until their deadline, or forever. Updated output needs no
    answer.
    """

    _place: Any = None

    def start(self) -> None:
        """Draw the rows."""
        from IPython.display import display

        self._place = display(self, display_id=True)  # type: ignore[no-untyped-call]

    def refresh(self) -> None:
        """Draw the rows again."""
        if self._place is not None:
            self._place.update(self)

    def stop(self) -> None:
        """Draw the rows for the last time, or nothing in their place."""
        from IPython.display import HTML

        self.refresh()
        if self._place is not None and self.live.transient:
            self._place.update(HTML(""))  # type: ignore[no-untyped-call]
        self._place = None
