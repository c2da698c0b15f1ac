"""How far an embedding job is, for people: a bar, or a line now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from pipelines.embedding.parts import Part

SECONDS_BETWEEN = 1.0


class PartsProgress:
    """Watches the parts of a job appear in a folder; a context manager on the driver.

    The bar works in a terminal and in a notebook; where output is not a screen, a line is printed
    at each tenth instead.

    Args:
        folder: Where each part becomes `<name>.parquet`.
        parts: All of them; those that are there already count as done.
    """

    def __init__(self, folder: Path, parts: Sequence[Part]) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._folder = folder
        self._rows = {f"{part.name}.parquet": part.rows for part in parts}
        self._total = sum(self._rows.values())
        self._began = time.monotonic()
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("embedding"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:.0f} rows/s"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not (self._console.is_terminal or self._console.is_jupyter),
        )
        self._first = self._done()
        self._printed_tenth = 10 * self._first // max(self._total, 1)
        self._task = self._progress.add_task(
            "embedding", total=self._total, completed=self._first, rate=0.0
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="embedding-bar", daemon=True)

    def __enter__(self) -> PartsProgress:
        self._progress.start()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join(timeout=10 * SECONDS_BETWEEN)
        self._show()
        self._progress.stop()

    def _done(self) -> int:
        return sum(self._rows.get(file.name, 0) for file in self._folder.glob("part-*.parquet"))

    def _watch(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN):
            self._show()

    def _show(self) -> None:
        done = self._done()
        rate = (done - self._first) / max(time.monotonic() - self._began, 1e-9)
        self._progress.update(self._task, completed=done, rate=rate)
        tenth = 10 * done // max(self._total, 1)
        if self._progress.disable and tenth > self._printed_tenth:
            self._printed_tenth = tenth
            self._console.print(
                f"embedding {done}/{self._total} rows  {rate:.0f} rows/s", highlight=False
            )
