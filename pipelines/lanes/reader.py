"""Granules read in place from files, or from an object store ahead of their steps."""

from __future__ import annotations

import re
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from pipelines.errors import InputError, PipelineError
from pipelines.files.block_cache import COUNT_FILE, BlockCache
from pipelines.files.copies import cache_folder
from pipelines.files.locations import Location, RemotePath, as_remote
from pipelines.files.ownership import holds_other_files
from pipelines.files.versions import current, home
from pipelines.lanes.files import (
    Granule,
    IndexEntry,
    LaneManifest,
    TeacherVectors,
    checked,
    decode,
    decode_index,
    index_path,
    index_size,
    part_path,
)
from pipelines.lanes.plan import GranuleAddress

Work = TypeVar("Work", bound=tuple[object, Sequence[GranuleAddress]])
"""A step, by any name, and its granules."""

Fetch = Callable[[GranuleAddress], pa.Buffer]


class ReadAhead(Iterator[Work]):
    """Passes steps on while threads fetch the granules of the next ones.

    Fetching begins at once. It ends with the last step, or when nobody holds the iterator any more.

    Args:
        fetch: Gives a granule; the threads call it.
        requests: Threads, each of which waits for one granule.
        most: Granules being fetched or waiting, besides the granules of the step passed on last; a
            step is always fetched as a whole.
    """

    def __init__(self, steps: Iterable[Work], fetch: Fetch, requests: int, most: int) -> None:
        self._steps = iter(steps)
        self._fetch = fetch
        self._most = most
        self._waiting: deque[tuple[Work, dict[GranuleAddress, Future[pa.Buffer]]]] = deque()
        self._count = 0
        self._current: dict[GranuleAddress, Future[pa.Buffer]] = {}
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(requests, thread_name_prefix="lanes")
        # A finalizer that referred to `self` would keep it alive.
        self._end = weakref.finalize(self, _stop, self._pool, self._stopped)
        self._fill()

    def __next__(self) -> Work:
        if not self._waiting:
            self.close()
            raise StopIteration
        work, self._current = self._waiting.popleft()
        self._count -= len(self._current)
        self._fill()
        return work

    def take(self, address: GranuleAddress) -> pa.Buffer:
        """Return a granule of the step passed on last; raise the error of its fetch."""
        future = self._current.pop(address, None)
        # Every request has its own deadline.
        return self._fetch(address) if future is None else future.result()

    def close(self) -> None:
        """Stop fetching."""
        self._current = {}
        self._end()

    def _fill(self) -> None:
        while self._count < self._most:
            work = next(self._steps, None)
            if work is None:
                return
            futures = {
                address: self._pool.submit(_fetch_unless, self._stopped, self._fetch, address)
                for address in work[1]
            }
            self._waiting.append((work, futures))
            self._count += len(futures)


def _fetch_unless(stopped: threading.Event, fetch: Fetch, address: GranuleAddress) -> pa.Buffer:
    if stopped.is_set():
        raise InterruptedError(f"granule {address} is not needed any more")
    return fetch(address)


def _stop(pool: ThreadPoolExecutor, stopped: threading.Event) -> None:
    stopped.set()
    pool.shutdown(wait=False, cancel_futures=True)


CACHE_FOLDER = "lanes"
# The folder of the blocks of some lanes: their digest, and the bytes of a block.
_OF_LANES = re.compile(r"[0-9a-f]{16}-\d+")

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True, kw_only=True)
class Fetching:
    """How lanes are fetched; the defaults were measured (docs/measurements/feeding.md).

    Attributes:
        block_bytes: Size of a request, and of a file in the cache.
        ahead_bytes: Limit of the waiting granules, in a worker's memory.
        most_ahead: The same limit as a number of granules; the smaller one counts.
    """

    block_bytes: int = 128 * 2**10
    requests: int = 16
    ahead_bytes: int = 64 * 2**20
    most_ahead: int = 512


class RemoteLanes:
    """Granules of lanes in an object store, fetched ahead of their steps.

    `folder` may be a version of the lanes' folder. `cache_bytes` limits this machine's copies of
    lanes; with 0, only granules are fetched, anew in each epoch.

    Raises:
        InputError: The folder for copies does not belong to this user alone.
        OSError: That folder cannot be made.
    """

    def __init__(
        self, folder: RemotePath, manifest: LaneManifest, cache_bytes: int, fetching: Fetching
    ) -> None:
        # Threads hold this object, not `self`: reading ahead ends with its last user.
        self._stored = _StoredLanes(folder, manifest, cache_bytes, fetching)
        self._fetching = fetching
        mean_bytes = 4 * manifest.tokens // (manifest.lanes * manifest.rows) + 1
        self._most = max(min(fetching.ahead_bytes // mean_bytes, fetching.most_ahead), 1)
        self._ahead: ReadAhead[Any] | None = None

    def message(self, address: GranuleAddress) -> pa.Buffer:
        """Return a granule, which may have been fetched ahead.

        Raises:
            OSError: The store cannot be read.
            PipelineError: The bytes differ from the written ones.
        """
        return self._stored.message(address) if self._ahead is None else self._ahead.take(address)

    def ahead(self, steps: Iterable[Work]) -> Iterator[Work]:
        """Pass steps on, and fetch the following ones meanwhile."""
        if self._ahead is not None:
            self._ahead.close()
        self._ahead = ReadAhead(steps, self._stored.message, self._fetching.requests, self._most)
        return self._ahead


class _StoredLanes:
    """Granules of lanes in an object store, for many threads; see :class:`RemoteLanes`.

    The cache keeps blocks under the digest of the manifest. It follows from every byte of the
    lanes, so a block is the same wherever, and however often, the lanes were written.
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
        """Return a granule from the cache or the store; raise as :meth:`RemoteLanes.message`."""
        part, granule = divmod(address.row, self._manifest.rows_per_part)
        path = part_path(self._folder, address.lane, part)
        entry = IndexEntry(*self._indices[address.lane][address.row].item())
        return self._checked(
            path, entry.offset, entry.length, lambda found: checked(found, entry, path, granule)
        )

    def _read_index(self, lane: int) -> np.ndarray:
        path = index_path(self._folder, lane)
        expected = self._manifest.checksums[lane]
        size = index_size(self._manifest.rows)
        return self._checked(path, 0, size, lambda found: decode_index(found, path, expected))

    def _checked(
        self, path: RemotePath, start: int, length: int, check: Callable[[bytes], _Value]
    ) -> _Value:
        """Read a part of a file; read it again from the store if its check fails.

        After a power failure a disk may have files of the right length that hold zeros.
        """
        try:
            return check(self._read(path, start, length))
        except PipelineError:
            if self._cache is not None:
                for block in self._blocks(start, length):
                    self._cache.discard(self._name(path, block))
            return check(self._read(path, start, length))

    def _read(self, path: RemotePath, start: int, length: int) -> bytes:
        """Return a part of a file, shorter where the file ends."""
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
        size = self._block_bytes
        return range(start // size, -(-(start + length) // size))

    def _name(self, path: RemotePath, block: int) -> str:
        return f"{self._blocks_folder}/{path.parent.name}/{path.name}.{block:06d}"


def _cache(folder: RemotePath, cache_bytes: int) -> BlockCache:
    options = folder.store.options
    blocks = cache_folder(options) / CACHE_FOLDER
    # The files that were used least recently are removed from it, whatever they are. The count
    # may be missing: another worker may not have fetched its first block yet.
    names = sorted(path.name for path in blocks.iterdir()) if blocks.is_dir() else []
    if found := [name for name in names if name != COUNT_FILE and not _OF_LANES.fullmatch(name)]:
        raise holds_other_files("storage.cache_folder", blocks, found)
    return BlockCache(
        blocks,
        cache_bytes,
        wait_seconds=options.timeout_seconds + options.retry_seconds,
    )


class _LaneFile:
    """A file of the store, read by many threads.

    Raises:
        OSError: It does not exist, or the store cannot be read.
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
        self._exclusive: AbstractContextManager[object] = (
            threading.Lock() if isinstance(files, PyFileSystem) else nullcontext()
        )

    def read(self, start: int, length: int) -> bytes:
        """Return bytes of the file, fewer where it ends.

        Raises:
            OSError: The store cannot be read.
        """
        wanted = max(min(length, self.size - start), 0)
        return self._path.store.retried(
            f"reading {self._path}", lambda: self._attempt(start, wanted)
        )

    def _attempt(self, start: int, length: int) -> bytes:
        with self._exclusive:
            found: bytes = self._file.read_at(length, start)
        if len(found) < length:
            raise OSError(f"{self._path} gave {len(found):,} of {length:,} bytes")
        return found


class _OncePerKey(Generic[_Key, _Value]):
    """Values made once per key, by the first thread that needs one; the others wait for it.

    Its failure is theirs too: it has already retried as long as it may.
    """

    def __init__(self, make: Callable[[_Key], _Value]) -> None:
        self._make = make
        self._made: dict[_Key, Future[_Value]] = {}

    def __getitem__(self, key: _Key) -> _Value:
        pending: Future[_Value] = Future()
        # One operation of a dictionary, which other threads see as a whole.
        first = self._made.setdefault(key, pending)
        if first is pending:
            try:
                pending.set_result(self._make(key))
            except BaseException as error:
                pending.set_exception(error)
                raise
        return first.result()


class LaneSource(Protocol):
    """A source of granules."""

    def message(self, address: GranuleAddress) -> pa.Buffer:
        """Return a granule as the Arrow message of its record batch, with its checksum compared.

        Raises:
            OSError: The lane cannot be read.
            PipelineError: The bytes differ from the written ones.
        """
        ...

    def ahead(self, steps: Iterable[Work]) -> Iterator[Work]:
        """Pass on steps; their granules are read next, in this order."""
        ...


class MappedLanes:
    """Lanes on a file system, by memory map; one open file per lane."""

    def __init__(self, folder: Location, manifest: LaneManifest) -> None:
        self._folder = folder
        self._manifest = manifest
        self._open: dict[int, tuple[int, pa.Buffer]] = {}
        self._indices: dict[int, np.ndarray] = {}

    def message(self, address: GranuleAddress) -> pa.Buffer:
        """Return a granule without a copy; see :meth:`LaneSource.message`."""
        lane = address.lane
        part, granule = divmod(address.row, self._manifest.rows_per_part)
        if lane not in self._indices:
            path = index_path(self._folder, lane)
            expected = self._manifest.checksums[lane]
            self._indices[lane] = decode_index(path.read_bytes(), path, expected)
        path = part_path(self._folder, lane, part)
        entry = IndexEntry(*self._indices[lane][address.row].item())
        if lane not in self._open or self._open[lane][0] != part:
            self._open[lane] = (part, pa.memory_map(str(path)).read_buffer())
        content = self._open[lane][1]
        # A truncated file gives a short slice, and `checked` then names the file.
        start = min(entry.offset, content.size)
        length = min(entry.length, content.size - start)
        return checked(content.slice(start, length), entry, path, granule)

    def ahead(self, steps: Iterable[Work]) -> Iterator[Work]:
        """Return the steps unchanged: the operating system reads ahead."""
        return iter(steps)


def check_unchanged(folder: Location, manifest: LaneManifest) -> None:
    """Check that a folder still holds the lanes of a manifest.

    Raises:
        PipelineError: They were prepared again, or the folder cannot be read (no proof either way).
    """
    # A version never changes, but goes some time after it was replaced.
    folder = home(folder)
    try:
        digest = LaneManifest.load(current(folder)).digest
    except (InputError, OSError) as error:
        problem = error.problem if isinstance(error, InputError) else error
        raise PipelineError(
            f"{folder} cannot be read any more ({problem}). Restore it, then continue with "
            "training.resume=true."
        ) from error
    if digest != manifest.digest:
        raise PipelineError(
            f"{folder} was prepared again since the run began. Begin anew with run.overwrite=true."
        )


@dataclass(frozen=True)
class Wanted:
    """What to decode of a source's granules: sides, None for all, and a teacher's vectors."""

    sides: Collection[str] | None = None
    teacher: TeacherVectors | None = None


class LaneReader:
    """Reads granules, and compares each with its checksum.

    Args:
        folder: The folder of the lanes, as this process sees it.
        sides: The sides to decode, None for all.
        teacher: The lanes' vectors of a teacher, if wanted.
        by_source: Replaces both where there are several sources.
        cache_bytes: Size of this machine's cache of lanes in object stores.
    """

    def __init__(
        self,
        folder: Location,
        manifest: LaneManifest,
        sides: Collection[str] | None = None,
        teacher: TeacherVectors | None = None,
        *,
        by_source: Sequence[Wanted] = (),
        cache_bytes: int = 0,
        fetching: Fetching | None = None,
    ) -> None:
        self._folder = folder
        self._manifest = manifest
        self._wanted = by_source or (Wanted(sides, teacher),) * max(len(manifest.sources), 1)
        remote = as_remote(folder)
        self._source: LaneSource = (
            MappedLanes(folder, manifest)
            if remote is None
            else RemoteLanes(remote, manifest, cache_bytes, fetching or Fetching())
        )

    def ahead(self, steps: Iterable[Work]) -> Iterator[Work]:
        """Pass steps on, in their order; the granules of the next ones may be fetched meanwhile.

        A step's addresses are the granules read before the next step.
        """
        return self._source.ahead(steps)

    def message(self, address: GranuleAddress) -> pa.Buffer:
        """Return a granule as the Arrow message of its record batch.

        Raises:
            OSError: The lane cannot be read.
            PipelineError: The bytes differ from the written ones, or the lanes were removed or
                prepared again since the manifest was read.
        """
        try:
            return self._source.message(address)
        except (OSError, PipelineError):
            # Lanes that were prepared again look damaged, or have fewer files.
            check_unchanged(self._folder, self._manifest)
            raise

    def batch(self, address: GranuleAddress) -> pa.RecordBatch:
        """Return the record batch of a granule, without a copy; raise as :meth:`message`."""
        return pa.ipc.read_record_batch(self.message(address), self._manifest.schema)

    def granule(self, address: GranuleAddress) -> Granule:
        """Return a granule as padded arrays; raise as :meth:`message`."""
        wanted = self._wanted[self._manifest.source_of(address.row)]
        return decode(self.batch(address), self.number(address), wanted.sides, wanted.teacher)

    def number(self, address: GranuleAddress) -> int:
        """Return a granule's number in the corpus."""
        return address.row * self._manifest.lanes + address.lane

    def __iter__(self) -> Iterator[tuple[GranuleAddress, pa.RecordBatch]]:
        """Yield all granules, row by row."""
        for row in range(self._manifest.rows):
            for lane in range(self._manifest.lanes):
                address = GranuleAddress(lane=lane, row=row)
                yield address, self.batch(address)
