"""rich's tables and rows of progress, in terminals and in notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import Progress
from rich.segment import Segment

from pipelines.errors import printable


class Screen(Console):
    """A console with literal brackets and colons, and without control of the terminal by texts.

    It sanitises text at its output, in any table or line. Sanitise a cell's arbitrary text
    beforehand: the table needs its width.
    """

    def __init__(self, *, stderr: bool = False, **options: Any) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """See :meth:`rich.console.Console.render`."""
        for text, style, control in super().render(renderable, options):
            # A control comes from rich itself, and moves the cursor.
            yield Segment(text if control else printable(text), style, control)


class NotebookProgress(Progress):
    """Rows at a fixed place in the output, without a widget.

    rich itself would take a widget. Clients without a browser (nbclient and tools built on it)
    answer a widget's messages on the socket of the cell's end. They can then miss that end, and
    wait until their deadline, or forever. Updated output needs no answer.
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
