"""The registration of TensorFlowOnSpark's nodes, without Spark."""

import pickle
import socket
import struct
from contextlib import suppress

import pytest
from tensorflowonspark import TFManager, reservation
from unauthenticated import MESSAGES, answer

from pipelines.engines.tensorflowonspark import nodes as module
from pipelines.engines.tensorflowonspark.nodes import (
    NodePlace,
    RegistrationClient,
    RegistrationServer,
    join_run,
    node_place,
    own_identity,
    registering_at,
)
from pipelines.errors import PipelineError
from pipelines.training.control.authenticated_server import make_identity

TOKEN = "4" * 64
NODE = {"executor_id": 1, "host": "a", "port": 7, "addr": ("a", 8), "authkey": b"\x00\xff'\""}


@pytest.fixture
def server():
    """A server that waits for two nodes."""
    made = RegistrationServer(2, "127.0.0.1", "127.0.0.1", TOKEN)
    made.address = made.start()
    yield made
    made.stop()


def test_nodes_find_one_another(server):
    first, second = (RegistrationClient(server.address, TOKEN) for _ in range(2))
    first.register(NODE)
    assert not server.reservations.done()
    second.register(NODE | {"executor_id": 2})
    place = {"address": "127.0.0.1", "fingerprint": None}
    known = [NODE | place, NODE | place | {"executor_id": 2}]
    assert first.await_reservations() == known
    assert node_place(1) == node_place(2) == NodePlace(("127.0.0.1", 7), None)
    assert server.await_reservations(None) == second.get_reservations()
    first.close()
    second.close()


def test_nodes_of_a_run_that_encrypts_know_one_another_by_their_certificates(monkeypatch):
    monkeypatch.setattr(module, "_own_identity", None)
    driver = make_identity()
    with RegistrationServer(1, "127.0.0.1", "127.0.0.1", TOKEN, driver) as server:
        address = server.start()
        node = RegistrationClient(address, TOKEN, driver.fingerprint)
        node.register(NODE)
        node.await_reservations()
        node.close()
        assert node_place(1).fingerprint == own_identity().fingerprint != driver.fingerprint
        with pytest.raises(PipelineError, match="it has another certificate"):
            RegistrationClient(address, TOKEN, own_identity().fingerprint)
        # In clear text, nobody is told anything.
        assert b"address" not in answer(address, TOKEN.encode())


def test_without_the_token_the_library_s_client_learns_and_changes_nothing(server):
    RegistrationClient(server.address, TOKEN).register(NODE)
    for kind in ("QINFO", "QUERY", "STOP", "REG"):
        message = pickle.dumps({"type": kind, "data": NODE})
        assert answer(server.address, struct.pack(">I", len(message)) + message) == b""
    for message in MESSAGES["socket"] + MESSAGES["http"]:
        assert answer(server.address, message) == b""
    assert len(server.reservations.get()) == 1
    wrong = RegistrationClient(server.address, "5" * 64)
    with pytest.raises(OSError, match=r"ended|reset|[Bb]roken"):
        wrong.get_reservations()


@pytest.mark.parametrize(
    "body",
    [pickle.dumps(NODE), b"open('/dev/null')", b"('REG',)", b"\xff"],
    ids=["pickle", "call", "short", "no text"],
)
def test_only_plain_values_are_read(server, body):
    with socket.create_connection(server.address, 5) as connection:
        connection.sendall(TOKEN.encode() + struct.pack(">I", len(body)) + body)
        with suppress(ConnectionError):
            assert connection.recv(1) == b""
    assert server.reservations.get() == []


def test_a_message_that_is_too_long_is_not_read(server):
    with socket.create_connection(server.address, 5) as connection:
        connection.sendall(TOKEN.encode() + struct.pack(">I", module.MAX_MESSAGE_BYTES + 1))
        with suppress(ConnectionError):
            assert connection.recv(1) == b""


def test_the_library_gets_its_server_back(server):
    library = reservation.Server
    with registering_at(server, 5):
        assert reservation.Server(2) is server
        with pytest.raises(TimeoutError), registering_at(server, 0.1):
            pass
        assert reservation.Server(2) is server
    assert reservation.Server is library
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(server.address, 5)


def test_managers_of_nodes_listen_for_their_host_alone(monkeypatch, server):
    monkeypatch.setattr(reservation, "Client", reservation.Client)
    monkeypatch.setattr(TFManager, "start", TFManager.start)
    join_run(TOKEN)
    client = reservation.Client(server.address)
    assert client.get_reservations() == []
    client.close()
    manager = TFManager.start(b"key", ["control"], "remote")
    try:
        assert isinstance(manager.address, str), "a path, and no host and port"
    finally:
        manager.shutdown()
