"""Encrypted connections to the servers of a run: who is told the token, and what others see."""

from __future__ import annotations

import pickle
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import pytest
from monitor_peer import Peer
from planned_runs import make_run
from relays import SilentRelay

from pipelines.errors import PipelineError
from pipelines.runs.run import WorkerTask
from pipelines.runs.step_metrics import StepMetrics, StepRecord
from pipelines.training.collectives.ring import Ring
from pipelines.training.control import authenticated_server as doors
from pipelines.training.control.authenticated_server import (
    SocketTokenServer,
    connect,
    make_identity,
)
from pipelines.training.control.monitor import Monitor
from pipelines.training.control.reporter import Reporter, report_lost

pytestmark = pytest.mark.slow

SECONDS = 30.0
RECORD = StepRecord(
    step=0,
    epoch=0,
    loss=1.0,
    learning_rate=0.1,
    granules=2,
    tokens=3,
    padded_tokens=4,
    data_seconds=0.0,
    seconds=1.0,
)


@pytest.fixture(scope="module")
def identity():
    return make_identity()


@contextmanager
def both_ends(identity):
    """A client's end of an encrypted connection, and the server's."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        accepted = []

        def accept():
            accepted.append(stack.enter_context(identity.guard(listening.accept()[0])))
            accepted[0].shake_hands()

        thread = threading.Thread(target=accept)
        thread.start()
        client = connect(listening.getsockname(), SECONDS, identity.fingerprint)
        stack.enter_context(client)
        thread.join(SECONDS)
        accepted[0].settimeout(SECONDS)
        yield client, accepted[0]


def received(connection, size: int) -> bytes:
    with connection.makefile("rb") as file:
        return file.read(size)


@contextmanager
def at_work(task: WorkerTask):
    """A worker that makes a step and is done; it leaves when the driver lets it."""

    def work():
        with Reporter(task) as reporter:
            reporter.ready()
            reporter.step_done(RECORD)
            reporter.done()

    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join(SECONDS)
    assert not thread.is_alive()


def task_of(monitor: Monitor, address=None, fingerprint=None) -> WorkerTask:
    return WorkerTask(
        run=make_run(3),
        rank=0,
        workers=1,
        monitor=address or monitor.address,
        token=monitor.token,
        fingerprint=fingerprint or monitor.fingerprint,
    )


@pytest.fixture
def make_monitor():
    def make(identity) -> Monitor:
        metrics = StepMetrics(make_run(3), 1, lambda line: None)
        return Monitor("test", 1, metrics, start_seconds=60, stall_seconds=60, identity=identity)

    return make


def test_a_key_stays_in_its_process(identity):
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(identity)
    assert make_identity().fingerprint != identity.fingerprint
    assert len(bytes.fromhex(identity.fingerprint)) == 32


def test_a_server_with_another_certificate_is_not_told_the_token(identity, make_monitor):
    told = []

    def listen(connection: socket.socket) -> None:
        told.append(connection.recv(1000))

    impostor = SocketTokenServer(("127.0.0.1", 0), listen, token="0" * 64, identity=identity)
    impostor.open()
    address = impostor.server_address
    with make_monitor(make_identity()) as monitor:
        task = task_of(monitor, address)
        for act in (lambda: Reporter(task), lambda: report_lost(task, "died")):
            with pytest.raises(PipelineError, match="it has another certificate"):
                act()
        deadline = time.monotonic() + SECONDS
        while len(told) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    impostor.close()
    assert told == [b"", b""]


def test_a_server_that_does_not_encrypt_is_not_told_the_token(make_monitor):
    with make_monitor(None) as monitor, SilentRelay(monitor.address) as relay:
        task = task_of(monitor, relay.address, make_identity().fingerprint)
        with pytest.raises(OSError, match=r"encrypted|reset"):
            Reporter(task)
    assert monitor.token.encode() not in relay.passed


def test_a_client_in_clear_text_is_refused_at_once(identity, make_monitor):
    with make_monitor(identity) as monitor:
        began = time.monotonic()
        stranger = Peer(monitor, 0)
        with suppress(ConnectionError):
            assert stranger.socket.recv(1000) == b""
        assert time.monotonic() - began < doors.HELLO_SECONDS
        assert not monitor._shared.workers


def test_who_connects_and_is_silent_holds_up_nobody(identity, make_monitor, monkeypatch):
    monkeypatch.setattr(doors, "HELLO_SECONDS", 2.0)
    with ExitStack() as stack:
        monitor = make_monitor(identity)
        silent = [socket.create_connection(monitor.address, SECONDS) for _ in range(70)]
        # The first record of a handshake, of which the rest does not come.
        silent[-1].sendall(b"\x16\x03\x01\x02\x00")
        stack.enter_context(at_work(task_of(monitor)))
        stack.enter_context(monitor)
        assert monitor.wait().losses == (1.0,)
        for one in silent:
            with suppress(ConnectionError):
                assert one.recv(1) == b""
            one.close()


@pytest.mark.parametrize("encrypted", [False, True])
def test_the_token_is_not_among_the_packets(identity, make_monitor, encrypted):
    """In clear text it is, or this test would see nothing."""
    monitor = make_monitor(identity if encrypted else None)
    with SilentRelay(monitor.address) as relay:
        with at_work(task_of(monitor, relay.address)), monitor:
            assert monitor.wait().losses == (1.0,)
        seen = bytes(relay.passed)
    for word in (monitor.token.encode(), b'"steps"', b"leave"):
        assert (word in seen) != encrypted


def test_gradients_are_not_among_the_packets(identity):
    gradient = np.frombuffer(b"what no stranger may read" * 160, np.uint8)
    token = "t" * 64
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [one.getsockname() for one in held]
    for one in held:
        one.close()
    with (
        Ring(0, addresses, token, identity, identity.fingerprint) as first,
        SilentRelay(addresses[0]) as relay,
        Ring(1, [relay.address, addresses[1]], token, identity, identity.fingerprint) as second,
    ):
        sums = {}

        def work(ring):
            ring.join(SECONDS, SECONDS)
            sums[ring.rank] = ring.gather(gradient)

        threads = [threading.Thread(target=work, args=(ring,)) for ring in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
    assert sums[0].tobytes() == sums[1].tobytes() == 2 * gradient.tobytes()
    assert len(relay.passed) > gradient.nbytes
    assert b"stranger" not in relay.passed
    assert token.encode() not in relay.passed


def test_both_ends_send_while_they_receive(identity):
    """From several threads, records and pieces of all sizes; each message comes whole."""
    sizes = [0, 1, 100, 16_384, 16_385, 300_000, 1_000_000]
    messages = [bytes([number]) * size for number, size in enumerate(sizes, start=65)]
    with both_ends(identity) as ends:
        heard = {}

        def hear(number: int) -> None:
            heard[number] = received(ends[number], 2 * sum(sizes))

        threads = [threading.Thread(target=hear, args=(number,)) for number in (0, 1)]
        threads += [
            threading.Thread(target=lambda end=end: [end.sendall(one) for one in messages])
            for end in ends
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
    for told in heard.values():
        assert sorted(told) == sorted(b"".join(2 * messages))


def test_what_is_sent_without_waiting_comes_whole_or_not_at_all(identity):
    with both_ends(identity) as (client, server):
        message, sent = b"x" * 9_999 + b"\n", 0
        client.settimeout(None)
        with pytest.raises(BlockingIOError):
            while sent < 10_000:
                sent += client.send(message, socket.MSG_DONTWAIT) == len(message)
        heard = []

        def hear():
            heard.append(received(server, (sent + 1) * len(message)))

        reader = threading.Thread(target=hear)
        reader.start()
        client.sendall(message)
        reader.join(SECONDS)
    assert heard == [(sent + 1) * message]


def test_nothing_is_waited_for_that_is_there_already(identity):
    """Two messages that arrive at once; the system knows of neither once one was read."""
    with both_ends(identity) as (client, server):
        server.settimeout(None)
        with pytest.raises(BlockingIOError):
            server.recv(100, socket.MSG_DONTWAIT)
        client.sendall(b"here\n")
        client.sendall(b"leave\n")
        time.sleep(0.5)
        assert server.recv(5) == b"here\n"
        assert server.recv(100, socket.MSG_DONTWAIT) == b"leave\n"
        client.close()
        assert server.recv(100) == b""


def test_what_was_changed_on_the_way_is_noticed(identity):
    with both_ends(identity) as (client, server):
        # Past the encryption, as somebody in the network would.
        socket.socket.sendall(client, b"\x17\x03\x03\x00\x20" + bytes(32))
        with pytest.raises(ConnectionError, match="the encrypted connection broke"):
            server.recv(100)


def test_a_wait_has_its_limit(identity):
    with both_ends(identity) as (client, server):
        server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            server.recv(1)
        assert client.send(b"x") == 1
        assert server.recv(1) == b"x"


def test_the_connection_s_options_are_those_of_tcp(identity):
    with both_ends(identity) as (client, _):
        doors.detect_cut_connection(client)
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
        assert client.fileno() > 0
