"""Rows of progress in the output of a notebook's cell."""

from __future__ import annotations

from typing import Any

from rich.progress import Progress


class NotebookProgress(Progress):
    """Rows that are drawn again in the place where they were drawn first.

    rich itself would take a widget. Clients that run notebooks without a browser, nbclient and what
    is built on it, answer every message of a widget on the socket on which they wait for the end of
    the cell; they can then miss that, and wait until their deadline, or forever. Output that is
    updated needs no answer.
    """

    _place: Any = None

    def start(self) -> None:
        """Draws the rows."""
        from IPython.display import display

        self._place = display(self, display_id=True)  # type: ignore[no-untyped-call]

    def refresh(self) -> None:
        """Draws them again."""
        if self._place is not None:
            self._place.update(self)

    def stop(self) -> None:
        """Draws them for the last time, or nothing in their place."""
        from IPython.display import HTML

        self.refresh()
        if self._place is not None and self.live.transient:
            self._place.update(HTML(""))  # type: ignore[no-untyped-call]
        self._place = None
