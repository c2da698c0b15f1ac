"""Parameters that several servers share: real servers, each on threads of this process."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.models.bert.spec import BertSpec
from pipelines.models.weights import random_weights, weight_shapes
from pipelines.runs.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from pipelines.runs.run import TrainingRun, WorkerTask
from pipelines.settings.load import parse
from pipelines.training.control.authenticated_server import make_identity
from pipelines.training.parameter_server.client import (
    ServedParameters,
    ShardedParameters,
    SocketClient,
    join,
    rows_of,
    shard,
    shard_shapes,
)
from pipelines.training.parameter_server.server import ParameterServer, SharedParameters
from pipelines.training.steppers.numpy_adamw import AdamW

TOKEN = "7" * 64
SPEC = BertSpec(vocabulary=50, layers=1, hidden=16, heads=2, intermediate=32, positions=8)
WEIGHTS = random_weights(SPEC, 3)
MOMENTS = {
    f"{kind}/{name}": np.full_like(value, 1e-3) for name, value in WEIGHTS.items() for kind in "mv"
}
START = Checkpoint(3, SPEC, WEIGHTS, MOMENTS)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 9))
def test_shards_of_all_servers_are_the_arrays(rows, servers):
    arrays = {
        str(number): np.arange(3 * count).reshape(count, 3) for number, count in enumerate(rows)
    }
    shards = [shard(arrays, server, servers) for server in range(servers)]
    together = join(shards)
    assert set(together) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(together[name], array)
        held = [len(part.get(name, ())) for part in shards]
        assert max(held) - min(held) <= 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A run folder with the checkpoint to start from."""
    path = tmp_path_factory.mktemp("run")
    save_checkpoint(path, START, 9)
    return path


@pytest.mark.parametrize("servers", [1, 2, 60])
def test_a_server_reads_its_rows_alone(folder, servers):
    for number in range(servers):
        held = load_checkpoint(folder, 3, rows_of(number, servers))
        expected = shard(WEIGHTS, number, servers)
        shapes = shard_shapes(weight_shapes(SPEC), number, servers)
        assert set(held.weights) == set(expected) == set(shapes)
        for name, value in expected.items():
            np.testing.assert_array_equal(held.weights[name], value)
            assert shapes[name] == value.shape
        assert set(held.moments) == {f"{kind}/{name}" for name in expected for kind in "mv"}


def run_of(servers: int) -> TrainingRun:
    training = {
        "mode": "async",
        "workers": 1,
        "parameter_servers": servers,
        "weight_decay": 0.1,
        "stall_seconds": 5,
    }
    return TrainingRun(
        config=parse({"training": training}),
        plan=None,
        manifest=None,
        lanes_folder=Path(),
        run_folder=Path(),
        first_step=3,
        last_step=12,
    )


@pytest.fixture(params=["plain", "encrypted"])
def connect(folder, request):
    """Starts servers; what is returned gives each worker its way to them."""
    identity = make_identity() if request.param == "encrypted" else None
    fingerprint = identity and identity.fingerprint
    with ExitStack() as servers:

        def start(count: int):
            run, keepers, addresses = run_of(count), [], []
            for number in range(count):
                rows = rows_of(number, count)
                keepers.append(SharedParameters(run, load_checkpoint(folder, 3, rows)))
                server = ParameterServer(keepers[-1], ("127.0.0.1", 0), TOKEN, identity)
                servers.enter_context(server)
                addresses.append(server.address)
            task = WorkerTask(run=run, rank=0, workers=1, monitor=("", 0), token=TOKEN)

            def parts():
                for store, address in zip(keepers, addresses, strict=True):
                    line = SocketClient(address, TOKEN, store.forms, 5.0, fingerprint)
                    yield ServedParameters(line, task)

            return lambda: ShardedParameters(list(parts()))

        yield start


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_servers_make_the_updates_of_adamw(connect, servers):
    parameters = connect(servers)()
    reference = AdamW(WEIGHTS, MOMENTS, weight_decay=0.1)
    for step in range(3, 8):
        weights, made = parameters.pull()
        assert made == step
        gradients = {name: np.cos(value + step) for name, value in weights.items()}
        assert parameters.push(step, gradients, 1e-2) == step + 1
        known = parameters.progress()
        assert (known.applied, known.saved) == (step + 1, 3)
        reference.update(gradients, 1e-2, step + 1)
    weights, moments = parameters.state()
    assert set(weights) == set(WEIGHTS)
    for ours, expected in ((weights, reference.weights), (moments, reference.moments)):
        for name, value in expected.items():
            np.testing.assert_allclose(ours[name], value, rtol=1e-6, err_msg=name)
    parameters.mark_saved(8)
    assert parameters.progress().saved == 8


def test_a_gradient_is_as_old_as_the_oldest_rows(connect):
    join_run = connect(2)
    first, second = join_run(), join_run()
    gradients = {name: np.ones_like(value) for name, value in WEIGHTS.items()}
    first.pull()
    # One server has had an update between the two halves of the second worker's pull.
    part = shard(gradients, 0, 2)
    assert first._parts[0].push(3, part, 1e-3) == 4
    assert second.pull()[1] == 3
    assert first._parts[1].push(3, shard(gradients, 1, 2), 1e-3) == 4
    pulled = 3
    assert second.push(4, gradients, 1e-3) - 1 - pulled == 1
    assert second.pull()[1] == 5


def test_an_unauthenticated_client_is_shown_nothing(connect):
    parameters = connect(2)()
    before, _ = parameters.pull()
    line = parameters._parts[0]._client
    strange = SocketClient(line.address, "8" * 64, line.forms, 5.0, line.fingerprint)
    task = WorkerTask(run=run_of(2), rank=0, workers=1, monitor=("", 0), token="")
    way = ServedParameters(strange, task)
    with pytest.raises(OSError, match=r"ended|refused|reset|[Bb]roken"):
        way.pull()
    with pytest.raises(OSError, match=r"ended|refused|reset|[Bb]roken"):
        way.push(3, shard(before, 0, 2), 1.0)
    after, updates = parameters.pull()
    assert updates == 3
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)
