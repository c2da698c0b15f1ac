"""A file in an object store as Python's streams read one."""

from __future__ import annotations

import io
from functools import cached_property

from pipelines.files.stores import Store


class RangeReader(io.RawIOBase):
    """A file in a store, of which each read is one request, made again when it is lost.

    Args:
        store: Has the file.
        path: In the store's file system.
        name: For messages.

    Raises:
        FileNotFoundError: There is no such file.
    """

    def __init__(self, store: Store, path: str, name: str) -> None:
        super().__init__()
        self._store = store
        self._name = name
        self._place = 0
        self._file = store.retried(
            f"opening {name}", lambda: store.open().files.open_input_file(path)
        )

    @cached_property
    def _size(self) -> int:
        return int(self._file.size())

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """The next byte that is read."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to another byte; nothing is read."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = max(base + offset, 0)
        return self._place

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Reads some bytes, fewer at the end of the file."""
        wanted = max(min(len(buffer), self._size - self._place), 0)
        if not wanted:
            return 0
        found = self._store.retried(
            f"reading {self._name}", lambda: self._file.read_at(wanted, self._place)
        )
        buffer[: len(found)] = found
        self._place += len(found)
        return len(found)

    def close(self) -> None:
        """Closes the file."""
        if not self.closed:
            self._file.close()
        super().close()
