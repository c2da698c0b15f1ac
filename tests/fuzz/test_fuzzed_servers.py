"""What the servers of a run are sent by anybody, and by workers that are not as they should be."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from free_addresses import free_addresses
from hypothesis import given
from hypothesis import strategies as st
from monitor_peer import Peer, end
from mutations import EXAMPLES, damaged, fuzzed
from planned_runs import make_run
from served_registration import registration
from served_strangers import (
    HELLO_SECONDS,
    PATIENCE_SECONDS,
    TOKEN,
    Served,
    allocates_little,
    crowd,
    ends_waiting,
    learns_nothing,
)
from steppers import SPEC
from unauthenticated import answer

from pipelines.errors import EngineError
from pipelines.models.weights import random_weights
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import TrainingRun
from pipelines.runs.step_metrics import StepMetrics
from pipelines.settings.load import parse
from pipelines.training.collectives.ring import Ring
from pipelines.training.control.monitor import Monitor
from pipelines.training.parameter_server.client import SocketClient
from pipelines.training.parameter_server.server import (
    ACCEPTED,
    LENGTH,
    REFUSED,
    REQUEST,
    ParameterServer,
    Request,
    SharedParameters,
)

WEIGHTS = random_weights(SPEC, 3)
MOMENTS = {f"{kind}/{name}": np.zeros_like(one) for name, one in WEIGHTS.items() for kind in "mv"}


def make_monitor(workers: int = 1) -> Monitor:
    metrics = StepMetrics(make_run(3), workers, lambda line: None)
    return Monitor("test", workers, metrics, start_seconds=20, stall_seconds=20)


@contextmanager
def monitor() -> Iterator[Served]:
    with make_monitor() as made:
        hello = {"kind": "hello", "token": made.token, "rank": 0, "host": "a", "lane": 0}
        lines = (hello, {"kind": "ready"}, {"kind": "steps", "records": [], "waiting": False})
        talk = b"".join(json.dumps(line).encode() + b"\n" for line in lines)

        def check() -> None:
            assert made.address_of(0) is None
            peer = Peer(made, 0)
            peer.send("done")
            made.wait()
            threading.Thread(target=end, args=(peer,), daemon=True).start()

        yield Served(made.address, made.token.encode(), talk, check)


@contextmanager
def parameter_server() -> Iterator[Served]:
    run = TrainingRun(
        config=parse({"training": {"mode": "async", "workers": 1}}),
        plan=None,
        manifest=None,
        lanes_folder=Path(),
        run_folder=Path(),
        first_step=3,
        last_step=12,
    )
    store = SharedParameters(run, Checkpoint(3, SPEC, WEIGHTS, MOMENTS))
    talk = TOKEN.encode() + b"".join(requests(store))
    with ParameterServer(store, ("127.0.0.1", 0), TOKEN) as server:

        def check() -> None:
            client = SocketClient(server.address, TOKEN, store.forms, PATIENCE_SECONDS)
            header, weights = client.ask("parameters", Request())
            assert header.updates >= 3
            assert weights is not None
            assert {name: one.shape for name, one in weights.items()} == {
                name: one.shape for name, one in WEIGHTS.items()
            }

        yield Served(server.address, TOKEN.encode(), talk, check)


def requests(store: SharedParameters) -> Iterator[bytes]:
    """One of each kind, with a gradient of nothing."""
    gradients = {name: np.zeros_like(one) for name, one in WEIGHTS.items()}
    for form in store.forms.values():
        yield form.letter + LENGTH.pack(form.size) + REQUEST.pack(*Request(step=3))
        yield from form.sends.chunks(gradients if form.letter == b"u" else {})


@contextmanager
def ring() -> Iterator[Served]:
    with ExitStack() as stack:
        addresses = stack.enter_context(free_addresses(2))
        rings = [stack.enter_context(Ring(rank, addresses, TOKEN)) for rank in range(2)]

        def check() -> None:
            with ThreadPoolExecutor(2) as threads:
                list(threads.map(lambda one: one.join(PATIENCE_SECONDS, PATIENCE_SECONDS), rings))
                sums = list(threads.map(lambda one: one.sum(np.ones(3)), rings))
            assert [one.tolist() for one in sums] == [[2, 2, 2]] * 2

        talk = TOKEN.encode() + LENGTH.pack(1)
        yield Served(addresses[0], TOKEN.encode(), talk, check)


SERVERS = {
    "monitor": monitor,
    "parameter server": parameter_server,
    "registration": registration,
    "ring": ring,
}


@pytest.fixture(params=SERVERS)
def served(request) -> Iterator[Served]:
    with SERVERS[request.param]() as made:
        yield made


def test_strangers_learn_and_change_nothing(served):
    learns_nothing(served)
    served.check()


def test_what_strangers_announce_is_given_no_memory(served):
    allocates_little(served)
    served.check()


def test_strangers_that_say_too_little_are_closed_in_time(served, monkeypatch):
    monkeypatch.setattr(
        "pipelines.training.control.authenticated_server.HELLO_SECONDS", HELLO_SECONDS
    )
    ends_waiting(served)
    served.check()


def test_a_crowd_of_silent_strangers_keeps_nobody_else_out(served):
    with crowd(served):
        served.check()


def test_damaged_requests_of_a_worker_are_answered_or_refused():
    with parameter_server() as served:
        token, request = served.token, served.talk.removeprefix(served.token)

        @fuzzed
        @given(damaged(request))
        def ask(message: bytes) -> None:
            assert answer(served.address, token + message)[:1] in (b"", ACCEPTED, REFUSED)

        ask()
        served.check()


def is_no_message(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return True
    except RecursionError:
        pass
    return False


NO_MESSAGES = damaged(json.dumps({"kind": "saved", "step": 3}).encode()) | st.binary(max_size=60)
UNKNOWN = st.text(max_size=9).map(lambda kind: json.dumps({"kind": f"{kind}?"}).encode())


@pytest.mark.parametrize("hello", [b'{"token": "a", "rank": Infinity}', b"[" * 4000, b"1"])
def test_a_hello_of_another_form_is_refused_without_an_error(hello, caplog):
    caplog.set_level("DEBUG")
    with monitor() as served:
        assert answer(served.address, hello + b"\n") == b""
        served.check()
    assert "broke" not in caplog.text


def test_a_worker_that_cannot_be_understood_is_named():
    said = "the driver cannot understand it "
    with (
        pytest.raises(EngineError, match=rf"^engine test, rank \d+, host host-\d+, .*: {said}"),
        make_monitor(10 * EXAMPLES) as made,
    ):
        ranks = count()

        @fuzzed
        @given(UNKNOWN | NO_MESSAGES.map(lambda one: one.replace(b"\n", b"")).filter(is_no_message))
        def say(line: bytes) -> None:
            rank = next(ranks)
            peer = Peer(made, rank)
            peer.socket.sendall(line + b"\n")
            # The driver hangs up, and knows why.
            assert end(peer) == b""
            assert said in str(made._shared.workers[rank].failure)

        say()
        made.wait()
