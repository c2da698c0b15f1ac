"""A training ends at a checkpoint before its last step when the driver has asked for it."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from planned_runs import make_run

from pipelines.runs.model_choice import ask_to_end
from pipelines.training.loop import ends_early

PATIENCE = {
    "training": {"workers": 2, "granules_per_step": 2, "patience": 1, "checkpoint_every": 3}
    | {"keep_best": "retrieval.ndcg@10"},
    "evaluation": {"every_checkpoints": 1},
}


def impatient_run(folder):
    from pipelines.settings.load import parse

    return replace(make_run(9, folder=folder), config=parse(PATIENCE))


def end(run, rank, others=0):
    asked = []

    def all_gather(own):
        asked.append(int(own[0]))
        return np.array([*own, others])

    return partial(ends_early, run, SimpleNamespace(rank=rank, all_gather=all_gather)), asked


def test_one_worker_looks_and_all_hear_of_it(tmp_path):
    run = impatient_run(tmp_path)
    first, asked = end(run, 0)
    assert [first(step) for step in (2, 3, 4, 6)] == [False] * 4
    assert asked == [0, 0], "at checkpoints alone"
    ask_to_end(tmp_path)
    assert not first(7)
    assert first(9)
    second, asked = end(run, 1, others=1)
    assert second(3)
    assert asked == [0]


def test_without_patience_nobody_is_asked(tmp_path):
    ask_to_end(tmp_path)
    each, asked = end(make_run(9, folder=tmp_path, checkpoint_every=3), 0)
    assert not each(3)
    assert asked == []


@pytest.mark.slow
def test_a_run_ends_at_its_checkpoint(tmp_path):
    from small_runs import small_run

    from pipelines.engines.local import LocalEngine
    from pipelines.runs.checkpoint import checkpoint_steps

    training = {"patience": 2, "keep_best": "sts.spearman", "checkpoint_every": 4, "log_every": 3}
    evaluation = {"every_checkpoints": 1}
    run = small_run(tmp_path, 12, {"training": training, "evaluation": evaluation})
    lines = []
    ask_to_end(run.run_folder)
    outcome = LocalEngine().train(None, run, lines.append)
    assert outcome.steps == len(outcome.losses) == 4
    assert checkpoint_steps(run.run_folder) == [0, 4]
    assert [line["step"] for line in lines] == [3, 4]
