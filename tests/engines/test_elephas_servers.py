"""The parameter servers of the Elephas engine and their clients, without Spark."""

import dataclasses
import http.client
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
import tensorflow as tf
from elephas.utils import bytes_to_weights, weights_to_bytes
from elephas.utils.serialization import model_to_dict
from unauthenticated import approach, tells_nothing

from pipelines.engines.elephas.servers import MAX_HEAD_BYTES
from pipelines.engines.elephas.spark_model import (
    MODES,
    ClientServerFactory,
    GranuleModel,
    encoder_model,
)
from pipelines.errors import PipelineError
from pipelines.lanes.plan import BatchPlan
from pipelines.models.bert.spec import BertSpec
from pipelines.models.frameworks.tensorflow import forward
from pipelines.models.weights import random_weights, weight_shapes
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import TrainingRun, WorkerTask
from pipelines.settings import Config, TrainingSettings
from pipelines.training.control import authenticated_server as doors
from pipelines.training.control.authenticated_server import Identity, make_identity
from pipelines.training.parameter_server.client import ServedParameters, ServedRounds
from pipelines.training.parameter_server.server import (
    LENGTH,
    REQUEST,
    STORES,
    Layout,
    Request,
    forms,
)
from pipelines.training.steppers.numpy_adamw import AdamW

TOKEN = "5" * 64
SPEC = BertSpec(vocabulary=50, layers=1, hidden=8, heads=2, intermediate=16, positions=16)
START = Checkpoint(0, SPEC, random_weights(SPEC, 1), {})


def make_run(mode: str) -> TrainingRun:
    training = TrainingSettings(mode=mode, engine="elephas", round_steps=4, stall_seconds=5)
    plan = BatchPlan(lanes=4, rows=8, granules_per_step=2, seed=1)
    return TrainingRun(
        config=Config(training=training),
        plan=plan,
        manifest=None,
        lanes_folder=Path(),
        run_folder=Path(),
        first_step=0,
        last_step=12,
    )


class Served:
    """A server that runs, with its clients."""

    def __init__(self, transport: str, mode: str, identity: Identity | None = None) -> None:
        self.run, self.transport = make_run(mode), transport
        self.fingerprint = identity and identity.fingerprint
        model = encoder_model(SPEC, START.weights, self.run.config.training)
        self.factory = ClientServerFactory.get_factory(f"granules-{transport}")
        self.server = self.factory.create_server(model_to_dict(model), 0, MODES[mode])
        self.store = STORES[mode](self.run, START)
        self.server.listen(self.store, "127.0.0.1", TOKEN, identity)
        self.address = ("127.0.0.1", self.server.port)
        self.server.start()

    def client(self, token: str = TOKEN):
        client = self.factory.create_client(0)
        client.connection = client.client_class(
            self.address, token, self.store.forms, 30.0, self.fingerprint
        )
        return client

    def way(self, kind, rank: int = 0):
        task = WorkerTask(run=self.run, rank=rank, workers=2, monitor=("", 0), token="")
        return kind(self.client().connection, task)

    def raw(self, body: bytes, name: str = "update", length: int | None = None) -> None:
        """Sends a body with the right token, and waits for the end of the connection."""
        length = len(body) if length is None else length
        heads = {
            "http": f"POST /{name} HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n"
            f"Content-Length: {length}\r\n\r\n".encode(),
            "socket": TOKEN.encode() + self.store.forms[name].letter + LENGTH.pack(length),
        }
        with socket.create_connection(self.address, timeout=30) as connection:
            try:
                connection.sendall(heads[self.transport] + body)
                received = connection.recv(1000)
            except ConnectionError:
                received = b""
        assert received in (b"", b"-") or tells_nothing(received), received


@pytest.fixture(params=["http", "socket"])
def transport(request):
    return request.param


@pytest.fixture
def serve():
    servers = []

    def start(transport: str, mode: str, identity: Identity | None = None) -> Served:
        servers.append(Served(transport, mode, identity))
        return servers[-1]

    yield start
    for served in servers:
        served.server.stop()


def listening() -> set[int]:
    connections = psutil.Process().net_connections("tcp")
    return {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}


def gradients(seed: int) -> dict[str, np.ndarray]:
    return random_weights(SPEC, seed)


def assert_equal(ours, expected, **tolerance) -> None:
    assert set(ours) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(ours[name], value, err_msg=name, **tolerance)


def test_arrays_travel_in_the_binary_form_of_elephas():
    layout, arrays = Layout(weight_shapes(SPEC)), gradients(3)
    data = b"".join(layout.chunks(arrays))
    assert data == weights_to_bytes([arrays[name] for name in weight_shapes(SPEC)])
    assert len(data) == layout.size
    read = dict(zip(weight_shapes(SPEC), bytes_to_weights(data), strict=True))
    assert_equal(read, arrays, rtol=0)


@pytest.mark.parametrize("mode", ["async", "hogwild"])
def test_a_gradient_makes_an_update_of_adamw(serve, transport, mode):
    way = serve(transport, mode).way(ServedParameters)
    expected = AdamW(START.weights, {}, 0.01)
    assert_equal(way.pull()[0], START.weights, rtol=0)
    for step in (0, 1, 2):
        assert way.push(step, gradients(step), 1e-2) == step + 1
        expected.update(gradients(step), 1e-2, step + 1)
    weights, updates = way.pull()
    assert updates == 3
    assert_equal(weights, expected.weights, rtol=1e-6)
    kept, moments = way.state()
    assert_equal(kept, expected.weights, rtol=1e-6)
    assert_equal(moments, expected.moments, rtol=1e-6)
    assert set(kept) == set(weight_shapes(SPEC))


def test_a_resumed_server_counts_on_and_keeps_the_moments():
    run = dataclasses.replace(make_run("async"), first_step=3)
    expected = AdamW(START.weights, {}, 0.01)
    for step in range(3):
        expected.update(gradients(step), 1e-2, step + 1)
    state = Checkpoint(3, SPEC, expected.weights, expected.moments)
    store = STORES["async"](run, state)
    assert store.reading["progress"](Request(), {}) == ((3, 3), None)
    for step in (3, 4):
        header, _ = store.writing["update"](Request(step=step, amount=1e-2), gradients(step))
        assert header.updates == step + 1
        expected.update(gradients(step), 1e-2, step + 1)
    _, held = store.reading["state"](Request(), {})
    assert_equal({name: held[f"weights/{name}"] for name in expected.weights}, expected.weights)
    assert_equal({name: held[name] for name in expected.moments}, expected.moments)
    with pytest.raises(ValueError, match="no gradient of step 2 is due"):
        store.writing["update"](Request(step=2, amount=1e-2), gradients(2))


def test_progress_counts_what_is_applied_without_a_gap(serve, transport):
    way = serve(transport, "async").way(ServedParameters)
    seen = []
    for step in (1, 0, 3):
        way.push(step, gradients(step), 1e-3)
        seen.append((way.progress().applied, way.progress().saved))
    assert seen == [(0, 0), (2, 0), (2, 0)]
    way.mark_saved(2)
    assert way.progress().saved == 2
    with pytest.raises(OSError, match=r"refused|ended"):
        way.mark_saved(3)


def test_a_step_is_applied_once_and_the_lock_is_let_go(serve, transport):
    served = serve(transport, "async")
    served.way(ServedParameters).push(0, gradients(0), 1e-3)
    for step in (0, -1, 12):
        with pytest.raises(OSError, match=r"refused|ended"):
            served.way(ServedParameters).push(step, gradients(0), 1e-3)
    assert served.way(ServedParameters).push(1, gradients(1), 1e-3) == 2


def test_many_workers_at_once_lose_no_update(serve, transport):
    served = serve(transport, "async")

    def work(rank: int) -> None:
        way = served.way(ServedParameters, rank)
        for step in range(rank, 12, 4):
            way.push(step, gradients(0), 1e-3)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    expected = AdamW(START.weights, {}, 0.01)
    for number in range(1, 13):
        expected.update(gradients(0), 1e-3, number)
    weights, updates = served.way(ServedParameters).pull()
    assert updates == 12
    assert_equal(weights, expected.weights, rtol=1e-5, atol=1e-7)


def test_a_round_takes_the_mean_by_granules(serve, transport):
    served = serve(transport, "sync")
    first, second = served.way(ServedRounds, 0), served.way(ServedRounds, 1)
    state = first.pull(0)
    assert_equal(
        {k: v for k, v in state.items() if k.startswith("w")},
        {f"weights/{name}": value for name, value in START.weights.items()},
        rtol=0,
    )
    ours = {name: np.full_like(value, 4.0) for name, value in state.items()}
    theirs = {name: np.full_like(value, 1.0) for name, value in state.items()}
    second.push(4, theirs, 1)
    assert first._client.ask("parameters", Request(step=4))[1] is None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second.pull, 4)
        first.push(4, ours, 2)
        after = waiting.result(120)
    assert_equal(after, {name: value - 3.0 for name, value in state.items()}, atol=1e-6)
    assert_equal(first.pull(4), after, rtol=0)


def test_a_round_that_the_others_do_not_finish_ends_in_an_error(serve, transport):
    served = serve(transport, "sync")
    way = served.way(ServedRounds)
    way._seconds = 0.2
    way.push(4, way.pull(0), 2)
    with pytest.raises(TimeoutError, match=r"training\.stall_seconds"):
        way.pull(4)
    with pytest.raises(OSError, match=r"refused|ended"):
        served.way(ServedRounds).push(4, served.way(ServedRounds).pull(0), 2)


def test_unauthenticated_clients_learn_and_change_nothing(serve, transport):
    served = serve(transport, "async")
    way = served.way(ServedParameters)
    before = way.pull()[0]
    answers, staying = approach(served.address, transport)
    assert all(map(tells_nothing, answers)), answers
    with pytest.raises(OSError, match=r"refused|ended|reset|[Bb]roken"):
        served.client("6" * 64).update_parameters(gradients(0), Request(amount=1.0))
    after, updates = way.pull()
    assert updates == 0
    assert_equal(after, before, rtol=0)
    staying.close()


@pytest.mark.parametrize("line", [100, 7_000, 64 * 1024])
def test_a_head_without_a_token_is_bounded(serve, line):
    """Whatever its lines are, it is refused before it ends, and before the time for it is over."""
    served = serve("http", "async")
    header = b"X: " + b"a" * (line - 5) + b"\r\n"
    sent = header * (MAX_HEAD_BYTES // line + 1)
    connections = [socket.create_connection(served.address, timeout=5) for _ in range(8)]
    began = time.monotonic()
    for connection in connections:
        connection.sendall(b"POST /update HTTP/1.1\r\n" + sent)
    for connection in connections:
        assert connection.recv(100).startswith(b"HTTP/1.1 431 ")
        connection.close()
    assert time.monotonic() - began < doors.HELLO_SECONDS
    assert_equal(served.way(ServedParameters).pull()[0], START.weights, rtol=0)


def test_an_encrypting_server_serves_its_clients_and_nobody_in_clear_text(serve, transport):
    served = serve(transport, "async", make_identity())
    way = served.way(ServedParameters)
    weights, _ = way.pull()
    assert_equal(weights, START.weights, rtol=0)
    assert way.push(0, gradients(0), 1e-3) == 1
    with pytest.raises(OSError, match=r"refused|ended|reset|[Bb]roken"):
        served.client("6" * 64).update_parameters(gradients(0), Request(amount=1.0))
    served.fingerprint = None
    with pytest.raises((OSError, http.client.HTTPException)):
        served.way(ServedParameters).pull()
    served.fingerprint = make_identity().fingerprint
    with pytest.raises(PipelineError, match="it has another certificate"):
        served.way(ServedParameters).pull()
    assert way.pull()[1] == 1


def test_a_malformed_message_changes_nothing(serve, transport):
    served = serve(transport, "async")
    way = served.way(ServedParameters)
    before = way.pull()[0]
    numbers, ours = (
        REQUEST.pack(0, 0, 1e-3),
        [gradients(0)[name] for name in sorted(weight_shapes(SPEC))],
    )
    whole = weights_to_bytes(ours)
    double = weights_to_bytes([value.astype(np.float64) for value in ours])
    integers = weights_to_bytes([value.astype(np.uint32) for value in ours])
    turned = weights_to_bytes([value.T for value in ours])
    assert len(turned) == len(whole) == served.store.forms["update"].sends.size
    for body in (
        numbers + whole[:-4],
        numbers + whole + b"\x00" * 4,
        numbers + double,
        numbers + integers,
        numbers + turned,
        numbers + struct.pack("<I", 2**31) + whole[4:],
        REQUEST.pack(0, 0, float("nan")) + whole,
        b"",
    ):
        served.raw(body)
    served.raw(numbers + whole, length=2**62)
    after, updates = way.pull()
    assert updates == 0
    assert_equal(after, before, rtol=0)
    assert way.push(0, gradients(0), 1e-3) == 1


def test_silent_unauthenticated_clients_are_closed_and_keep_nobody_out(
    serve, transport, monkeypatch
):
    monkeypatch.setattr(doors, "HELLO_SECONDS", 1.0)
    served = serve(transport, "async")
    way = served.way(ServedParameters)
    way.pull()
    silent = [
        socket.create_connection(served.address, 5) for _ in range(doors.MAX_UNAUTHENTICATED + 9)
    ]
    assert served.way(ServedParameters).pull()[1] == 0
    for stranger in silent:
        stranger.settimeout(30)
        assert stranger.recv(1) == b""
        stranger.close()
    time.sleep(1.0)
    assert way.pull()[1] == 0, "who has shown the token may be silent"


def test_a_server_that_was_stopped_is_gone(transport, monkeypatch):
    monkeypatch.setattr(doors, "HELLO_SECONDS", 100.0)
    threads, ports = set(threading.enumerate()), listening()
    served = Served(transport, "async")
    way = served.way(ServedParameters)
    way.pull()
    silent = socket.create_connection(served.address, 5)
    began = time.monotonic()
    served.server.stop()
    served.server.stop()
    assert time.monotonic() - began < 50, "it waits for nobody who is silent"
    assert listening() == ports
    assert set(threading.enumerate()) <= threads
    with pytest.raises(OSError, match=r".*"):
        way.pull()
    silent.close()


def test_a_server_that_never_started_is_gone(transport):
    ports = listening()
    served = make_run("async")
    model = encoder_model(SPEC, START.weights, served.config.training)
    factory = ClientServerFactory.get_factory(f"granules-{transport}")
    server = factory.create_server(model_to_dict(model), 0, MODES["async"])
    server.listen(STORES["async"](served, START), "127.0.0.1", TOKEN)
    assert len(listening() - ports) == 1
    server.stop()
    assert listening() == ports


def test_the_keras_model_is_the_encoder():
    model = encoder_model(SPEC, START.weights, TrainingSettings())
    again = tf.keras.models.model_from_json(model.to_json())
    again.set_weights(model.get_weights())
    token_ids, lengths = tf.constant([[2, 5, 9], [2, 7, 0]]), tf.constant([3, 2])
    ours = tf.function(again)(token_ids, lengths)
    expected = tf.function(forward)(SPEC, START.weights, token_ids, lengths)
    np.testing.assert_allclose(ours, expected, rtol=1e-6)
    assert [v.shape for v in model.get_weights()] == list(weight_shapes(SPEC).values())


class OneUpdate:
    """In place of Spark's job: the only worker makes an update, and ends."""

    def __init__(self, client, task: WorkerTask) -> None:
        self._way = ServedParameters(client.connection, task)

    def mapPartitions(self, train):  # noqa: N802 - named by Spark
        return self

    def collect(self) -> None:
        self._way.push(0, gradients(3), 1e-2)


@pytest.mark.parametrize("mode", ["async", "hogwild"])
def test_the_master_network_holds_the_result(mode):
    task = WorkerTask(run=make_run(mode), rank=0, workers=1, monitor=("", 0), token=TOKEN)
    model = GranuleModel(task, START, host="127.0.0.1", bind="127.0.0.1", identity=None)
    try:
        model.fit(OneUpdate(model.client, task))
    finally:
        model.close()
    expected = AdamW(START.weights, {}, 0.01)
    expected.update(gradients(3), 1e-2, 1)
    network = model.master_network
    found = dict(zip(weight_shapes(SPEC), network.get_weights(), strict=True))
    assert_equal(found, expected.weights, rtol=1e-6)


def test_a_synchronous_run_knows_no_other_requests():
    assert set(forms("sync", weight_shapes(SPEC))) == {"parameters", "update"}
