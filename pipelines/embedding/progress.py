"""The progress bar of a job that makes parts."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from pipelines.embedding.parts import RowRange
from pipelines.files.locations import Location, RemotePath
from pipelines.progress import WorkProgress

SECONDS_BETWEEN = 1.0
SECONDS_BETWEEN_LISTINGS = 10.0
"""Of a folder in a store, where each listing is paid for."""


class PartsProgress:
    """Watches the parts of a job appear in a folder; a context manager on the driver.

    Args:
        folder: Where each part becomes `<name>.parquet`.
        parts: All of them; those that are there already count as done.
        name: Of the work.
    """

    def __init__(
        self, folder: Location, parts: Sequence[RowRange], name: str = "embedding"
    ) -> None:
        self._folder = folder
        self._rows = {f"{part.name}.parquet": part.rows for part in parts}
        self._began = time.monotonic()
        self._first = self._done()
        total = sum(self._rows.values())
        line = f"{name} {{done}}/{{total}} rows  {{text}}"
        self._progress = WorkProgress(name, total, self._first, line)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="embedding-bar", daemon=True)

    def __enter__(self) -> PartsProgress:
        self._progress.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._ended.set()
        self._thread.join(timeout=10 * SECONDS_BETWEEN)
        self._show()
        self._progress.__exit__(*error)

    def _done(self) -> int:
        return sum(self._rows.get(file.name, 0) for file in self._folder.glob("part-*.parquet"))

    def _watch(self) -> None:
        in_store = isinstance(self._folder, RemotePath)
        pause = SECONDS_BETWEEN_LISTINGS if in_store else SECONDS_BETWEEN
        while not self._ended.wait(pause):
            self._show()

    def _show(self) -> None:
        done = self._done()
        if done == self._first:
            return
        rate = (done - self._first) / max(time.monotonic() - self._began, 1e-9)
        self._progress.show(done, f"{rate:.0f} rows/s")
