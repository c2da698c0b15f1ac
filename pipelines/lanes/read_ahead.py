"""Has threads fetch what steps will need, a bounded number of granules ahead."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import pyarrow as pa

from pipelines.lanes.plan import GranuleAddress

Work = TypeVar("Work", bound=tuple[object, Sequence[GranuleAddress]])
"""Whatever names a step, and the granules that it needs."""

Fetch = Callable[[GranuleAddress], pa.Buffer]


class ReadAhead(Iterator[Work]):
    """Passes steps on while threads fetch the granules of those that follow.

    It begins at once, and ends with the last step, or when nobody has the iterator any more.

    Args:
        steps: In the order in which they are made.
        fetch: Gives a granule; is called by the threads.
        requests: Threads, each of which waits for one granule.
        most: Granules that are fetched, or wait to be taken, beside those of the step that was
            passed on; a step is always fetched as a whole.
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
        """A granule of the step that was passed on last; raises what fetching it raised."""
        future = self._current.pop(address, None)
        # Every request has its own deadline.
        return self._fetch(address) if future is None else future.result()

    def close(self) -> None:
        """Fetches nothing any more."""
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
