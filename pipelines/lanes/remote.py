"""Lanes in an object store: fetched in blocks, ahead of their steps, and kept on a local disk."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from pipelines.errors import PipelineError
from pipelines.files.block_cache import COUNT_FILE, BlockCache
from pipelines.files.copies import cache_folder
from pipelines.files.locations import RemotePath
from pipelines.files.ownership import holds_other_files
from pipelines.lanes.files import LaneManifest, index_path, part_path
from pipelines.lanes.index import IndexEntry, checked, decode_index, index_size
from pipelines.lanes.plan import GranuleAddress
from pipelines.lanes.read_ahead import ReadAhead, Work

CACHE_FOLDER = "lanes"
# The folder of the blocks of some lanes: their digest, and the bytes of a block.
_OF_LANES = re.compile(r"[0-9a-f]{16}-\d+")

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True, kw_only=True)
class Fetching:
    """How lanes are fetched; the defaults were measured (docs/measurements.md).

    Attributes:
        block_bytes: What a request fetches, and a file of the cache holds.
        requests: Made at the same time.
        ahead_bytes: Of granules that wait for their step, in the memory of a worker.
        most_ahead: Granules that wait for their step.
    """

    block_bytes: int = 128 * 2**10
    requests: int = 16
    ahead_bytes: int = 64 * 2**20
    most_ahead: int = 512


class RemoteLanes:
    """Granules of lanes in an object store, fetched ahead of the steps that need them.

    Args:
        folder: The folder of the lanes, or a version of it.
        manifest: What it holds.
        cache_bytes: What this machine keeps of lanes; with 0, granules alone are fetched, and
            again in each epoch.
        fetching: Sizes of blocks and of what is fetched ahead.

    Raises:
        InputError: The folder for copies is not this user's alone.
        OSError: It cannot be made.
    """

    def __init__(
        self, folder: RemotePath, manifest: LaneManifest, cache_bytes: int, fetching: Fetching
    ) -> None:
        # Threads have this alone, so that what reads ahead ends with those who want it.
        self._stored = _StoredLanes(folder, manifest, cache_bytes, fetching)
        self._fetching = fetching
        mean_bytes = 4 * manifest.tokens // (manifest.lanes * manifest.rows) + 1
        self._most = max(min(fetching.ahead_bytes // mean_bytes, fetching.most_ahead), 1)
        self._ahead: ReadAhead[Any] | None = None

    def message(self, address: GranuleAddress) -> pa.Buffer:
        """A granule, which may have been fetched ahead.

        Raises:
            OSError: The store cannot be read.
            PipelineError: It does not hold what was written there.
        """
        return self._stored.message(address) if self._ahead is None else self._ahead.take(address)

    def ahead(self, steps: Iterable[Work]) -> Iterator[Work]:
        """Passes steps on; those that follow are fetched meanwhile."""
        if self._ahead is not None:
            self._ahead.close()
        self._ahead = ReadAhead(steps, self._stored.message, self._fetching.requests, self._most)
        return self._ahead


class _StoredLanes:
    """Granules of lanes in an object store, for many threads.

    Blocks are kept under the digest of the manifest. It follows from every byte of the lanes, so
    that a block is the same wherever, and however often, the lanes were written.

    Args as of :class:`RemoteLanes`.
    """

    def __init__(
        self, folder: RemotePath, manifest: LaneManifest, cache_bytes: int, fetching: Fetching
    ) -> None:
        self._folder = folder
        self._manifest = manifest
        self._block_bytes = fetching.block_bytes
        self._blocks_folder = f"{manifest.digest}-{fetching.block_bytes}"
        self._cache = _cache(folder, cache_bytes) if cache_bytes else None
        self._files = _OncePerKey(_LaneFile)
        self._indices = _OncePerKey(self._read_index)

    def message(self, address: GranuleAddress) -> pa.Buffer:
        """A granule from the cache or the store; raises as :meth:`RemoteLanes.message`."""
        part, granule = divmod(address.row, self._manifest.rows_per_part)
        path = part_path(self._folder, address.lane, part)
        assert isinstance(path, RemotePath)
        entry = IndexEntry(*self._indices[address.lane][address.row].item())
        return self._checked(
            path, entry.offset, entry.length, lambda found: checked(found, entry, path, granule)
        )

    def _read_index(self, lane: int) -> np.ndarray:
        path = index_path(self._folder, lane)
        assert isinstance(path, RemotePath)
        expected = self._manifest.checksums[lane]
        size = index_size(self._manifest.rows)
        return self._checked(path, 0, size, lambda found: decode_index(found, path, expected))

    def _checked(
        self, path: RemotePath, start: int, length: int, check: Callable[[bytes], _Value]
    ) -> _Value:
        """Reads a part of a file, a second time from the store if it is not what was written.

        A disk that lost its power has files of the right length that hold zeros.
        """
        try:
            return check(self._read(path, start, length))
        except PipelineError:
            if self._cache is not None:
                for block in self._blocks(start, length):
                    self._cache.discard(self._name(path, block))
            return check(self._read(path, start, length))

    def _read(self, path: RemotePath, start: int, length: int) -> bytes:
        """A part of a file, shorter where the file ends."""
        if self._cache is None:
            return self._files[path].read(start, length)
        size, parts = self._block_bytes, []
        for block in self._blocks(start, length):
            first = block * size
            fetch = partial(self._fetch_block, path, first)
            inside = max(start - first, 0), min(start + length - first, size)
            parts.append(self._cache.read(self._name(path, block), fetch, *inside))
        return b"".join(parts)

    def _fetch_block(self, path: RemotePath, first: int) -> bytes:
        return self._files[path].read(first, self._block_bytes)

    def _blocks(self, start: int, length: int) -> range:
        """The numbers of the blocks that hold a part of a file."""
        size = self._block_bytes
        return range(start // size, -(-(start + length) // size))

    def _name(self, path: RemotePath, block: int) -> str:
        """What the cache calls a block."""
        return f"{self._blocks_folder}/{path.parent.name}/{path.name}.{block:06d}"


def _cache(folder: RemotePath, cache_bytes: int) -> BlockCache:
    options = folder.store.options
    blocks = cache_folder(options) / CACHE_FOLDER
    # The files that were used least recently are removed from it, whatever they are. The count
    # may be missing: another worker may not have fetched its first block yet.
    there = sorted(path.name for path in blocks.iterdir()) if blocks.is_dir() else []
    if found := [name for name in there if name != COUNT_FILE and not _OF_LANES.fullmatch(name)]:
        raise holds_other_files("storage.cache_folder", blocks, found)
    return BlockCache(
        blocks,
        cache_bytes,
        wait_seconds=options.timeout_seconds + options.retry_seconds,
    )


class _LaneFile:
    """A file of the store that many threads read.

    Args:
        path: Its place.

    Raises:
        OSError: It is not there, or the store cannot be read.
    """

    def __init__(self, path: RemotePath) -> None:
        from pyarrow.fs import PyFileSystem

        self._path = path
        files = path.files
        self._file = path.store.retried(
            f"opening {path}", lambda: files.open_input_file(path.fs_path)
        )
        self.size = int(self._file.size())
        # A file of Arrow's own is read at any place by any thread; others are moved there first.
        self._alone: AbstractContextManager[object] = (
            threading.Lock() if isinstance(files, PyFileSystem) else nullcontext()
        )

    def read(self, start: int, length: int) -> bytes:
        """Bytes of it, fewer where it ends.

        Raises:
            OSError: The store cannot be read.
        """
        wanted = max(min(length, self.size - start), 0)
        return self._path.store.retried(
            f"reading {self._path}", lambda: self._attempt(start, wanted)
        )

    def _attempt(self, start: int, length: int) -> bytes:
        with self._alone:
            found: bytes = self._file.read_at(length, start)
        if len(found) < length:
            raise OSError(f"{self._path}: {len(found):,} of {length:,} bytes came")
        return found


class _OncePerKey(Generic[_Key, _Value]):
    """Values that are made once each, by the thread that needs one first.

    Others wait for it. If it failed it did so for them too: it has tried as long as it may.
    """

    def __init__(self, make: Callable[[_Key], _Value]) -> None:
        self._make = make
        self._made: dict[_Key, Future[_Value]] = {}

    def __getitem__(self, key: _Key) -> _Value:
        own: Future[_Value] = Future()
        # One operation of a dictionary, which other threads see as a whole.
        first = self._made.setdefault(key, own)
        if first is own:
            try:
                own.set_result(self._make(key))
            except BaseException as error:
                own.set_exception(error)
                raise
        return first.result()
