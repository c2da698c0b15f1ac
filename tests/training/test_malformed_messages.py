"""What the driver makes of messages that a worker should not have sent."""

import json

import pytest
from monitor_peer import Peer, end_later
from planned_runs import make_run

from pipelines.errors import EngineError
from pipelines.runs.step_metrics import StepMetrics
from pipelines.training.control.monitor import Monitor

RECORD = {"step": 0, "epoch": 0, "loss": 1.0, "learning_rate": 0.1, "granules": 1}
RECORD |= {"tokens": 3, "padded_tokens": 4, "data_seconds": 0.0, "seconds": 1.0}


@pytest.fixture(autouse=True)
def blamed_soon(monkeypatch):
    """There is no other worker whose word could be waited for."""
    monkeypatch.setattr("pipelines.training.control.monitor.GRACE_SECONDS", 0.05)


@pytest.mark.parametrize(
    "message",
    [
        b'"steps"',
        b"[]",
        b"{}",
        b'{"kind": ["steps"]}',
        b'{"kind": "steps", "records": 1, "waiting": false}',
        b'{"kind": "steps", "records": [1], "waiting": false}',
        b'{"kind": "steps", "records": [{"step": 0}], "waiting": false}',
        b"[" * 100_000,
        json.dumps({"kind": "steps", "records": [RECORD | {"step": "0"}]}).encode(),
        json.dumps({"kind": "steps", "records": [RECORD | {"granules": 1 << 40}]}).encode(),
        json.dumps({"kind": "steps", "records": [RECORD | {"what": 1}]}).encode(),
    ],
)
def test_a_message_that_is_none_is_the_worker_s_error(message):
    metrics = StepMetrics(make_run(3), 1, lambda line: None)
    with (
        pytest.raises(EngineError, match="the driver cannot understand it") as caught,
        Monitor("test", 1, metrics, start_seconds=60, stall_seconds=60) as monitor,
    ):
        peer = Peer(monitor, 0)
        peer.socket.sendall(message + b"\n")
        end_later(peer)
        monitor.wait()
    assert type(caught.value) is EngineError, "no worker is lost"
    assert caught.value.rank == 0
