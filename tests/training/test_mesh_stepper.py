"""Mesh TensorFlow makes the updates of TensorFlow alone, on the servers of several processes."""

import multiprocessing
import socket
from contextlib import ExitStack
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
from steppers import IDS, PAIR, granule, stepper, work

from pipelines.models.bert.spec import BertSpec
from pipelines.models.weights import random_weights
from pipelines.runs.checkpoint import Checkpoint
from pipelines.settings.load import parse
from pipelines.settings.training import Placement
from pipelines.training.control.authenticated_server import TOKEN_BYTES

pytestmark = pytest.mark.skipif(
    find_spec("mesh_tensorflow") is None, reason="Mesh TensorFlow is not installed: make mesh"
)

# A vocabulary that two members cannot share evenly.
SPEC = BertSpec(vocabulary=51, layers=2, hidden=16, heads=4, intermediate=32, positions=16)
GRANULES = 4
STEPS = 3
SECONDS = 300
TRAINING = {"framework": "tensorflow", "precision": "fp32", "weight_decay": 0.1, "dropout": 0.2}


def start():
    return Checkpoint(0, SPEC, random_weights(SPEC, 3), {})


def train(made, first, last, replica=0, replicas=1):
    """Losses and norms of steps, of the granules of a replica."""
    each, found = GRANULES // replicas, []
    for index in range(first, last):
        own = range(GRANULES * index + each * replica, GRANULES * index + each * (replica + 1))
        loss = made.step(work(index, *map(granule, own)), 1e-2)
        found.append((loss, made.gradient_norm))
    return np.array(found), made.checkpoint(last)


def work_as(rank, members, ports, answer):
    """A worker of a mesh; in a process of its own."""
    from pipelines.engines.mesh.cluster import MeshRing, _Place, _server
    from pipelines.engines.mesh.stepper import MeshStepper
    from pipelines.training.collectives.ring import Ring

    placement = Placement(replicas=len(ports) // members, members=members)
    config = parse({"training": TRAINING | {"workers": len(ports), "model_parallel": members}})
    run = SimpleNamespace(config=config, sides=PAIR, special_ids=IDS)
    run.by_source = (run,)
    place = placement.place(rank)
    task = SimpleNamespace(run=run, rank=rank, placement=placement, place=place)
    with ExitStack() as stack:
        addresses = [("127.0.0.1", ring) for ring, _ in ports]
        ring = stack.enter_context(Ring(rank, addresses, "t" * TOKEN_BYTES))
        target = _server(task, [_Place("127.0.0.1", *both, None) for both in ports])
        ring.join(SECONDS, SECONDS)
        made = MeshStepper(task, start(), MeshRing(ring, target))
        found = train(made, 0, STEPS, place.replica, placement.replicas)
        answer.put((rank, found))
        # The others' servers are needed until the chief has its checkpoint.
        ring.gather(np.empty(0, np.uint8))


def free_ports(count):
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in held]


@pytest.mark.parametrize(("workers", "members"), [(2, 2), (4, 2)], ids=str)
def test_a_mesh_makes_the_steps_of_one_process(workers, members):
    ports = free_ports(2 * workers)
    ports = list(zip(ports[::2], ports[1::2], strict=True))
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    processes = [
        context.Process(target=work_as, args=(rank, members, ports, answer), daemon=True)
        for rank in range(workers)
    ]
    alone = stepper("tensorflow", training=TRAINING, checkpoint=start())
    try:
        for process in processes:
            process.start()
        expected, last = train(alone, 0, STEPS)
        found = dict(answer.get(timeout=SECONDS) for _ in processes)
        for process in processes:
            process.join(SECONDS)
            assert process.exitcode == 0
    finally:
        for process in processes:
            process.kill()
    for steps, _ in found.values():
        np.testing.assert_allclose(steps, expected, rtol=1e-4)
    whole = found[0][1]
    assert whole.weights.keys() == last.weights.keys()
    assert whole.moments.keys() == last.moments.keys()
    for name, value in {**last.weights, **last.moments}.items():
        there = {**whole.weights, **whole.moments}[name]
        np.testing.assert_allclose(there, value, rtol=1e-3, atol=2e-4, err_msg=name)
    assert not found[1][1].weights, "the chief alone has the arrays"
    # What it wrote, one process goes on from.
    resumed = stepper("tensorflow", training=TRAINING, checkpoint=whole)
    further, _ = train(alone, STEPS, STEPS + 1)
    np.testing.assert_allclose(train(resumed, STEPS, STEPS + 1)[0], further, rtol=1e-3)
