"""Granules are fetched ahead of their step: a bounded number, in order, and until nobody reads."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest
from waiting import await_threads_gone

from pipelines.lanes.plan import GranuleAddress
from pipelines.lanes.reader import ReadAhead

STEPS = 40
EACH = 3


def steps() -> Iterator[tuple[int, tuple[GranuleAddress, ...]]]:
    for step in range(STEPS):
        yield step, tuple(GranuleAddress(lane=lane, row=step) for lane in range(EACH))


class Fetched:
    """Notes what is fetched, and gives the row of each granule."""

    def __init__(self, failing_row: int = -1) -> None:
        self.addresses: list[GranuleAddress] = []
        self._failing_row = failing_row

    def __call__(self, address: GranuleAddress) -> pa.Buffer:
        self.addresses.append(address)
        if address.row == self._failing_row:
            raise OSError(f"row {address.row} is gone")
        return pa.py_buffer(str(address).encode())


def await_count(fetched: Fetched, count: int) -> None:
    deadline = time.monotonic() + 120
    while len(fetched.addresses) < count:
        assert time.monotonic() < deadline, fetched.addresses
        time.sleep(0.005)


def test_every_step_finds_its_granules_and_no_granule_is_fetched_twice():
    fetched, seen = Fetched(), []
    reader = ReadAhead(steps(), fetched, requests=4, most=7)
    for step, addresses in reader:
        seen.append(step)
        for address in addresses:
            assert reader.take(address).to_pybytes() == str(address).encode()
    assert seen == list(range(STEPS))
    wanted = {address for _, addresses in steps() for address in addresses}
    assert len(fetched.addresses) == len(wanted)
    assert set(fetched.addresses) == wanted
    await_threads_gone("lanes")


@pytest.mark.parametrize("most", [1, 7, 30])
def test_it_begins_at_once_and_goes_no_further_than_it_may(most):
    fetched = Fetched()
    reader = ReadAhead(steps(), fetched, requests=2, most=most)
    # Whole steps: the last of them may go beyond.
    first = -(-most // EACH) * EACH
    await_count(fetched, first)
    next(reader)
    await_count(fetched, first + EACH)
    time.sleep(0.05)
    assert len(fetched.addresses) == first + EACH
    reader.close()
    await_threads_gone("lanes")


def test_an_error_waits_for_the_step_that_needs_the_granule():
    reader = ReadAhead(steps(), Fetched(failing_row=5), requests=4, most=60)
    for step, addresses in reader:
        if step == 5:
            with pytest.raises(OSError, match="row 5 is gone"):
                reader.take(addresses[0])
            break
        for address in addresses:
            reader.take(address)
    reader.close()


def test_what_nobody_reads_any_more_is_not_fetched():
    slow, began = threading.Event(), threading.Event()

    def fetch(address: GranuleAddress) -> pa.Buffer:
        began.set()
        slow.wait(120)
        return pa.py_buffer(b"")

    reader = ReadAhead(steps(), fetch, requests=2, most=90)
    assert began.wait(120)
    del reader
    gc.collect()
    slow.set()
    await_threads_gone("lanes")
