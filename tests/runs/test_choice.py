"""Which state of a run becomes its model, and when a run ends early."""

import json

import numpy as np
import pytest
from steppers import SPEC

from pipelines.errors import InputError
from pipelines.models.weights import WORDS, random_weights
from pipelines.runs.best import (
    Best,
    Metric,
    ask_to_end,
    go_on_to_the_end,
    is_to_end,
    keep_if_best,
    load_best,
    measured_since,
    read_best,
)
from pipelines.runs.checkpoint import Checkpoint, save_checkpoint, write_files
from pipelines.runs.choice import choose, told_choice
from pipelines.settings.load import parse

NDCG = Metric(evaluation="retrieval", figure="ndcg@10")
LOSS = Metric(evaluation="pairs", figure="alignment", sign=-1)


def state(step: int, ema: bool = False) -> Checkpoint:
    """Whose word embedding is the step everywhere."""
    weights = random_weights(SPEC, 3) | {WORDS: np.full((50, 16), step, np.float32)}
    averages = {f"ema/{name}": value / 2 for name, value in weights.items()} if ema else {}
    return Checkpoint(step, SPEC, weights, averages)


def keep(folder, tmp_path, metric, step, value):
    written = tmp_path / f"written-{step}"
    written.mkdir(exist_ok=True)
    write_files(written, state(step))
    return keep_if_best(folder, metric, step, value, written)


@pytest.mark.parametrize(("metric", "best"), [(NDCG, 6), (LOSS, 9)])
def test_the_best_state_is_kept_whatever_becomes_of_its_checkpoint(tmp_path, metric, best):
    run = tmp_path / "run"
    assert read_best(run, str(metric)) is None
    kept = [
        keep(run, tmp_path, metric, step, value)
        for step, value in ((3, 50.0), (6, 52.0), (9, 40.0), (12, 40.0), (15, 52.0))
    ]
    assert kept == [True, metric.sign > 0, metric.sign < 0, False, False]
    found = read_best(run, str(metric))
    assert found == Best(step=best, metric=str(metric), value=52.0 if best == 6 else 40.0)
    assert load_best(run).step == best
    assert load_best(run).weights[WORDS][0, 0] == best
    # By another metric nothing is known yet.
    assert read_best(run, "another.metric") is None


def test_evaluations_since_the_best_are_counted_once_a_step():
    lines = [
        {"step": step, "evaluation": name, figure: 1.0}
        for step in (3, 6, 9, 12)
        for name, figure in (("retrieval", "ndcg@10"), ("pairs", "alignment"))
    ]
    lines += [{"step": 15, "evaluation": "retrieval", "mrr@10": 1.0}]
    best = Best(step=6, metric=str(NDCG), value=1.0)
    assert measured_since(lines, NDCG, best) == 2


def test_a_request_to_end_can_be_taken_back(tmp_path):
    assert not is_to_end(tmp_path)
    ask_to_end(tmp_path)
    assert is_to_end(tmp_path)
    go_on_to_the_end(tmp_path)
    go_on_to_the_end(tmp_path)
    assert not is_to_end(tmp_path)


def training(**settings):
    evaluation = {"every_checkpoints": 1}
    return parse({"training": settings, "evaluation": evaluation}).training


@pytest.fixture
def run(tmp_path):
    for step in (0, 3, 6, 9):
        save_checkpoint(tmp_path / "run", state(step), keep=9)
    return tmp_path / "run"


def test_the_model_is_the_last_state_unless_told(run):
    choice = choose(run, training(), 9)
    assert choice.figures == {"step": 9}
    assert choice.checkpoint.encoder_weights[WORDS][0, 0] == 9
    assert told_choice(choice.figures) == "the state after step 9"


@pytest.mark.parametrize(("count", "steps"), [(2, [6, 9]), (3, [3, 6, 9]), (7, [3, 6, 9])])
def test_checkpoints_are_averaged_but_for_the_start(run, count, steps):
    choice = choose(run, training(average_checkpoints=count), 9)
    assert choice.figures == {"step": 9, "averaged": steps}
    assert choice.checkpoint.encoder_weights[WORDS][0, 0] == np.mean(steps)
    told = told_choice(choice.figures)
    assert told == f"the mean of the {len(steps)} checkpoints of steps {steps[0]} to 9"


def test_a_moving_average_takes_the_place_of_the_weights(run):
    save_checkpoint(run, state(12, ema=True), keep=9)
    choice = choose(run, training(ema=0.99), 12)
    assert json.loads(json.dumps(choice.figures)) == {"step": 12, "ema": 0.99}
    assert choice.checkpoint.encoder_weights[WORDS][0, 0] == 6
    told = told_choice(choice.figures)
    assert told == "a moving average of the weights after step 12 (decay 0.99)"


def test_the_best_state_is_the_model_and_without_one_the_last(run, tmp_path):
    best = training(keep_best=str(NDCG))
    assert choose(run, best, 9).figures == {"step": 9}
    keep(run, tmp_path, NDCG, 3, 50.5)
    choice = choose(run, best, 9)
    assert choice.figures == {"step": 3, "best_by": "retrieval.ndcg@10", "value": 50.5}
    assert choice.checkpoint.encoder_weights[WORDS][0, 0] == 3
    told = told_choice(choice.figures)
    assert told == "the state after step 3, the best by retrieval.ndcg@10 (50.5)"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"ema": 0.9, "average_checkpoints": 2}, r"average_checkpoints: training\.ema averages"),
        ({"keep_best": "a.b", "average_checkpoints": 2}, "average_checkpoints: the model cannot"),
        ({"patience": 2}, r"patience: nothing says what is a gain"),
        (
            {"keep_best": "a.b", "patience": 2, "feed": "spark"},
            "patience: with training.feed `spark`",
        ),
        (
            {"keep_best": "a.b", "patience": 2, "mode": "async"},
            "patience: mode `async` of framework `tensorflow`",
        ),
        ({"ema": 0.9, "framework": "bigdl", "engine": "bigdl"}, "ema: mode `sync` of framework"),
        (
            {"ema": 0.9, "framework": "torch", "engine": "torch", "sharding": "parameters"},
            "ema: with training.sharding `parameters`",
        ),
    ],
)
def test_choices_that_nobody_can_follow_are_refused(settings, told):
    with pytest.raises(InputError, match=told):
        training(**settings)


def test_the_best_needs_evaluations():
    with pytest.raises(InputError, match=r"^training\.keep_best: no checkpoint is measured"):
        parse({"training": {"keep_best": "retrieval.ndcg@10"}})
