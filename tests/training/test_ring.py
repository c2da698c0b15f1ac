"""What workers add up and gather in a ring, and who may stand in it."""

import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import numpy as np
import psutil
import pytest
from free_addresses import free_addresses
from hypothesis import given, settings
from hypothesis import strategies as st
from rings import START_SECONDS, TOKEN, WAIT_SECONDS, in_ring

from pipelines.training.collectives.ring import ALWAYS_BYTES, BLOCK_ELEMENTS, Ring, gather_bytes
from pipelines.training.control.authenticated_server import TOKEN_BYTES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("workers", [2, 3, 5])
def test_every_worker_has_the_same_sum_to_the_last_bit(workers, encrypted):
    noise = np.random.default_rng(7).normal(size=(workers, 3, 1001)).astype(np.float32)
    sums = in_ring(workers, lambda ring: ring.sum(noise[ring.rank]), encrypted=encrypted)
    np.testing.assert_allclose(sums[0], noise.sum(0), rtol=1e-4, atol=1e-5)
    assert {one.tobytes() for one in sums} == {sums[0].tobytes()}
    assert sums[0].shape == (3, 1001)


@settings(max_examples=10)
@given(workers=st.integers(2, 4), elements=st.integers(0, 9))
def test_arrays_smaller_than_the_ring_are_added_up_too(workers, elements):
    sums = in_ring(
        workers, lambda ring: ring.sum(np.arange(elements, dtype=np.float32) + ring.rank)
    )
    expected = workers * np.arange(elements) + sum(range(workers))
    assert all(np.array_equal(one, expected) for one in sums)


@pytest.mark.parametrize("encrypted", [False, True])
def test_arrays_larger_than_what_the_system_holds_for_a_connection(encrypted):
    size = 20 * BLOCK_ELEMENTS + 3

    def add_up(ring):
        return ring.sum(np.full(size, ring.rank + 1, np.float32))

    assert all((one == 3).all() for one in in_ring(2, add_up, encrypted=encrypted))


@settings(max_examples=10)
@given(st.lists(st.integers(0, 5), min_size=2, max_size=4))
def test_what_is_gathered_stands_by_rank(lengths):
    def gather(ring):
        return ring.gather(np.full((lengths[ring.rank], 2), ring.rank, np.int64))

    expected = np.repeat(np.arange(len(lengths)), lengths)[:, None].repeat(2, 1)
    for one in in_ring(len(lengths), gather):
        assert one.dtype == np.int64
        np.testing.assert_array_equal(one, expected)


def test_no_worker_makes_room_for_more_rows_than_a_step_can_have():
    def announce_or_gather(ring):
        if ring.rank == 1:
            ring._send(np.frombuffer((1 << 40).to_bytes(8, "big"), np.uint8)).result()
            return is_told.wait(WAIT_SECONDS)
        with pytest.raises(ConnectionError, match=r"^the ring to worker 1 .*announces 35184"):
            ring.gather(np.ones((3, 8), np.float32))
        is_told.set()
        return "told"

    is_told = threading.Event()
    assert in_ring(2, announce_or_gather) == ["told", True]


@pytest.mark.parametrize("encrypted", [False, True])
def test_any_number_of_bytes_is_gathered_where_others_have_none(encrypted):
    sizes = [0, 2 * ALWAYS_BYTES + 5, 0, 3]
    sent = [np.full(size, rank, np.uint8) for rank, size in enumerate(sizes)]
    found = in_ring(
        len(sizes), lambda ring: gather_bytes(ring.gather, sent[ring.rank]), encrypted=encrypted
    )
    assert all(np.array_equal(one, np.concatenate(sent)) for one in found)


@pytest.mark.parametrize("encrypted", [False, True])
def test_gathering_passes_what_is_encrypted(encrypted):
    def gather(ring):
        return ring.gather(np.full((ring.rank, 2), ring.rank, np.int64))

    for one in in_ring(3, gather, encrypted=encrypted):
        assert one[:, 0].tolist() == [1, 2, 2]


@pytest.mark.parametrize("workers", [2, 3])
def test_each_worker_has_its_own_rows_of_the_sum(workers):
    rows = np.arange(workers * 2 * 3, dtype=np.float32).reshape(workers * 2, 3)
    parts = in_ring(workers, lambda ring: ring.reduce_scatter(rows * (ring.rank + 1)))
    expected = rows * sum(range(1, workers + 1))
    np.testing.assert_array_equal(np.concatenate(parts), expected)


def test_a_neighbour_that_leaves_is_an_error_and_no_wait():
    def leave_or_sum(ring):
        if ring.rank == 1:
            ring.__exit__()
            return None
        with pytest.raises(ConnectionError) as caught:
            ring.sum(np.ones(1 << 22, np.float32))
        # Whoever is told leaves in turn: the other may see that first.
        assert re.match(r"the ring to worker [012] broke \(.+\)$", str(caught.value))
        return "told"

    assert in_ring(3, leave_or_sum) == ["told", None, "told"]


def test_a_neighbour_that_is_silent_for_too_long_is_named():
    is_told = threading.Event()

    def sum_or_be_silent(ring):
        if ring.rank == 1:
            return is_told.wait(WAIT_SECONDS)
        with pytest.raises(TimeoutError, match=r"^the ring to worker 1 broke \(timed out\)$"):
            ring.sum(np.ones(3, np.float32))
        is_told.set()
        return "told"

    assert in_ring(2, sum_or_be_silent, wait_seconds=0.5) == ["told", True]


def test_no_operation_waits_for_a_worker_that_has_not_joined():
    """The neighbours of the second are there long before the third has found its own."""

    def be_late(ring):
        if ring.rank == 2:
            time.sleep(4)

    sums = in_ring(3, lambda ring: ring.sum(np.ones(3)), wait_seconds=2.0, before=be_late)
    assert [one.tolist() for one in sums] == [[3, 3, 3]] * 3


@pytest.mark.parametrize("there", [True, False], ids=["silent", "absent"])
def test_a_neighbour_that_does_not_come_has_a_deadline(there):
    with free_addresses(2) as addresses, ExitStack() as stack:
        ring = stack.enter_context(Ring(0, addresses, TOKEN))
        if there:
            stack.enter_context(Ring(1, addresses, TOKEN))
        with pytest.raises(TimeoutError, match="worker 1 did not join"):
            ring.join(0.5, WAIT_SECONDS)


@pytest.mark.parametrize("token", ["x" * TOKEN_BYTES, "t" * (TOKEN_BYTES - 1)])
def test_who_has_no_token_takes_nobodys_place(token):
    with (
        free_addresses(2) as addresses,
        Ring(0, addresses, TOKEN) as first,
        Ring(1, addresses, TOKEN) as second,
    ):
        # Hung up on before all is read, a stranger may see a reset.
        with (
            socket.create_connection(addresses[0], timeout=10) as stranger,
            suppress(ConnectionError),
        ):
            stranger.sendall(token.encode() + b"\0" * 7 + b"\1")
            assert stranger.recv(100) == b""
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda one: one.join(START_SECONDS, WAIT_SECONDS), (first, second)))
            sums = threads.map(lambda one: one.sum(np.ones(3, np.float32)), (first, second))
            assert [one.tolist() for one in sums] == [[2, 2, 2]] * 2


def test_it_listens_at_its_own_address_alone():
    with free_addresses(2) as addresses, Ring(0, addresses, TOKEN):
        ours = [
            one.laddr.ip
            for one in psutil.Process().net_connections("tcp")
            if one.status == psutil.CONN_LISTEN and one.laddr.port == addresses[0][1]
        ]
    assert ours == ["127.0.0.1"]
