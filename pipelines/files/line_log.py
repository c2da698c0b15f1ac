"""A file that grows by lines, where files can grow; in a store it is written anew now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

from pipelines.files import storage
from pipelines.files.locations import Location, RemotePath

FLUSH_SECONDS = 10.0
"""Between two writes of a file in a store, at least."""
_GROWTH = 0.02
"""By which it must have grown too, so that what is written in all stays within limits."""


class LineLog:
    """The lines of a file; only one process writes it.

    Args:
        path: Of the file, which need not be there.
    """

    def __init__(self, path: Location) -> None:
        self._path = path
        self._held: list[str] | None = None
        self._flushed_lines = 0
        self._flushed = time.monotonic()

    def add(self, line: str) -> None:
        """Adds a line; in a store it may be seen some seconds later, and after :meth:`flush`."""
        if not isinstance(self._path, RemotePath):
            storage.add_line(self._path, line)
            return
        self._lines.append(line)
        waited = time.monotonic() - self._flushed > FLUSH_SECONDS
        if waited and len(self._lines) > self._flushed_lines * (1 + _GROWTH):
            self.flush()

    def keep(self, is_wanted: Callable[[str], bool]) -> None:
        """Drops the other lines."""
        if self._held is None and not self._path.exists():
            return
        self._held = [line for line in self._lines if is_wanted(line)]
        self._write()

    def flush(self) -> None:
        """Writes what a store does not have yet."""
        is_behind = self._held is not None and len(self._held) != self._flushed_lines
        if is_behind and isinstance(self._path, RemotePath):
            self._write()

    @property
    def _lines(self) -> list[str]:
        if self._held is None or not isinstance(self._path, RemotePath):
            # A process may have been killed between the bytes of one character.
            exists = self._path.exists()
            self._held = self._path.read_text("utf-8", "replace").splitlines() if exists else []
            self._flushed_lines = len(self._held)
        return self._held

    def _write(self) -> None:
        assert self._held is not None, "lines are read before they are written"
        storage.write_text(self._path, "".join(f"{line}\n" for line in self._held))
        self._flushed, self._flushed_lines = time.monotonic(), len(self._held)
