"""What a worker holds of a state that several hold together, and how they see that they differ."""

import multiprocessing
from types import SimpleNamespace

import numpy as np
import pytest
from steppers import SPEC, start_weights

from pipelines.models.arrays import LazyArrays, shapes_of
from pipelines.runs.checkpoint import Checkpoint
from pipelines.settings.load import parse
from pipelines.settings.training import Placement
from pipelines.training.steppers.model_parallel import OwnPart, check_members, worker_groups

WORKERS = 4
SETTINGS = {"framework": "torch", "engine": "torch", "model_parallel": 2, "granules_per_step": 4}


def _checked(folder, rank, differs):
    """What one worker of two replicas says of its state, in a process of its own."""
    import torch
    import torch.distributed as processes

    processes.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORKERS
    )
    config = parse({"training": SETTINGS | {"workers": WORKERS}})
    placement = config.training.placement
    task = SimpleNamespace(
        run=SimpleNamespace(config=config), rank=rank, workers=WORKERS, placement=placement
    )
    groups = worker_groups(task, torch.device("cpu"))
    arrays = {"norm": np.ones(3, np.float32), "words": np.full(3, rank, np.float32)}
    moments = {f"m/{name}": 1e-6 * array for name, array in arrays.items()}
    if differs and rank == 3:
        moments["m/norm"] = -moments["m/norm"]
    told = [groups.members.member, groups.stages.size, groups.copies.rank]
    try:
        own = Checkpoint(1, None, arrays, moments)
        check_members(own, {"words"}, groups.members, torch.device("cpu"))
    except RuntimeError as error:
        told.append(str(error))
    (folder / f"{rank}").write_text("|".join(map(str, told)))


@pytest.mark.slow
@pytest.mark.parametrize("differs", [False, True])
def test_members_compare_the_weights_and_gradients_that_are_not_divided(tmp_path, differs):
    context = multiprocessing.get_context("fork")
    workers = [
        context.Process(target=_checked, args=(tmp_path, rank, differs)) for rank in range(WORKERS)
    ]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    assert [worker.exitcode for worker in workers] == [0] * WORKERS
    told = [(tmp_path / f"{rank}").read_text().split("|") for rank in range(WORKERS)]
    assert [one[:3] for one in told] == [
        ["0", "1", "0"],
        ["1", "1", "0"],
        ["0", "1", "1"],
        ["1", "1", "1"],
    ]
    apart = "after step 1 the state of tensor ranks [1] differs from that of 0, first in m/norm"
    errors = [one[3:] for one in told]
    assert errors[:2] == [[], []]
    if differs:
        assert all(error.startswith(apart) for (error,) in errors[2:])
    else:
        assert errors[2:] == [[], []]


def test_no_array_is_read_before_it_is_asked_for():
    weights, read = start_weights(SPEC), []

    def noted(name):
        read.append(name)
        return weights[name]

    placement = Placement(replicas=2, members=2)
    task = SimpleNamespace(placement=placement, place=placement.place(3))
    whole = Checkpoint(0, SPEC, LazyArrays(shapes_of(weights), noted), {})
    own = OwnPart(task, whole)
    part = own.of(whole).weights
    assert list(part) == list(weights)
    shapes = shapes_of(part)
    assert read == []
    for name, array in part.items():
        axis = own.axes.get(name)
        expected = weights[name] if axis is None else np.array_split(weights[name], 2, axis)[1]
        assert read.pop() == name
        assert shapes[name] == array.shape
        np.testing.assert_array_equal(array, expected)
