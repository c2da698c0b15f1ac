"""Which state of a run becomes its model, and when a run ends early."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
from steppers import SPEC

from pipelines.errors import InputError
from pipelines.files.prepared_folder import CorpusFolder
from pipelines.files.run_folder import RunFolder
from pipelines.models.adaptation import DOWN, UP, Frozen, effective, of_objective
from pipelines.models.folder import default_start, write_encoder
from pipelines.models.weights import WORDS, random_weights
from pipelines.runs.checkpoint import (
    Checkpoint,
    CheckpointWriter,
    checkpoint_path,
    checkpoint_steps,
    save_checkpoint,
    save_frozen,
    write_files,
)
from pipelines.runs.model_choice import (
    WHOLE,
    Best,
    Metric,
    ask_to_end,
    asked_steps,
    choose,
    compared_steps,
    go_on_to_the_end,
    is_to_end,
    keep_if_best,
    load_best,
    measured_since,
    read_best,
    start_share,
    told_choice,
)
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


@pytest.mark.parametrize("metric", [NDCG, LOSS])
def test_a_state_that_was_measured_and_not_kept_was_not_compared(metric):
    values = {3: 1.0, 6: 3.0, 9: 2.0, 12: 4.0, 15: float("nan")}
    lines = [
        {"step": step, "evaluation": metric.evaluation, metric.figure: metric.sign * value}
        for step, value in values.items()
    ]
    lines += [{"step": 18, "evaluation": "sts", "spearman": 1.0}]
    best = Best(step=6, metric=str(metric), value=metric.sign * 3.0)
    assert compared_steps(lines, metric, best) == {3, 6, 9, 15}
    assert compared_steps(lines, metric, None) == set()


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
    choice = choose(run, training(average_checkpoints=count, checkpoint_every=3), 9)
    assert choice.figures == {"step": 9, "averaged": steps}
    assert choice.checkpoint.encoder_weights[WORDS][0, 0] == np.mean(steps)
    told = told_choice(choice.figures)
    assert told == f"the mean of the {len(steps)} checkpoints of steps {steps[0]} to 9"


def test_the_head_of_a_cross_encoder_is_averaged_too(tmp_path):
    for step in (3, 6):
        kept = state(step)
        head = {"objective.rerank.score.weight": np.full((1, 16), step, np.float32)}
        save_checkpoint(tmp_path, replace(kept, weights={**kept.weights, **head}), keep=9)
    made = choose(tmp_path, training(average_checkpoints=2, checkpoint_every=3), 6).checkpoint
    assert (of_objective(made.averages)["rerank.score.weight"] == 4.5).all()
    assert not any(name.startswith("objective") for name in made.encoder_weights)


AVERAGED = {"average_checkpoints": 3, "checkpoint_every": 3, "keep_checkpoints": 1, "restarts": 0}


def test_checkpoints_that_an_interruption_wrote_are_no_part_of_the_mean(tmp_path):
    models = []
    for run, steps in (("whole", (3, 6, 9, 11)), ("interrupted", (3, 4, 5, 6, 8, 9, 10, 11))):
        writer = CheckpointWriter(tmp_path / run, training(**AVERAGED))
        for step in steps:
            writer.save(state(step), lambda step: None)
        # Of those that were written on the way the newest alone is kept.
        assert checkpoint_steps(tmp_path / run) == [6, 9, 11]
        models.append(choose(tmp_path / run, training(**AVERAGED), 11))
    whole, interrupted = models
    assert interrupted.figures == whole.figures == {"step": 11, "averaged": [6, 9, 11]}
    for name, value in whole.checkpoint.encoder_weights.items():
        np.testing.assert_array_equal(interrupted.checkpoint.encoder_weights[name], value)


def test_a_torn_checkpoint_is_no_part_of_the_mean(run, caplog):
    torn = checkpoint_path(run, 6) / "model.safetensors"
    os.truncate(torn, 100)
    choice = choose(run, training(**AVERAGED), 9)
    assert choice.figures == {"step": 9, "averaged": [3, 9]}
    assert choice.checkpoint.encoder_weights[WORDS][0, 0] == 6
    (message,) = caplog.messages
    assert message.startswith("leaving a torn checkpoint out of the mean (training.average_ch")
    assert str(torn) in message


MATRIX = "encoder.layer.0.attention.self.query.weight"


@pytest.fixture
def lora_run(tmp_path):
    """Two states whose factors differ in their signs alone, so that their products are equal."""
    weights = random_weights(SPEC, 3)
    save_frozen(tmp_path, Frozen(weights=weights, scale=2.0))
    module = MATRIX.removesuffix(".weight")
    for step, sign in ((3, 1), (6, -1)):
        factors = {module + DOWN: np.full((2, 16), sign), module + UP: np.full((16, 2), sign)}
        factors = {name: value.astype(np.float32) for name, value in factors.items()}
        save_checkpoint(tmp_path, Checkpoint(step, SPEC, factors, {}), keep=9)
    return tmp_path, effective(factors, weights, 2.0)


def test_with_lora_the_mean_is_of_the_weights_and_not_of_their_factors(lora_run):
    run, expected = lora_run
    choice = choose(run, training(average_checkpoints=2, checkpoint_every=3), 6)
    assert choice.figures == {"step": 6, "averaged": [3, 6]}
    made = choice.checkpoint.encoder_weights
    assert made.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(made[name], value, err_msg=name)


def test_with_lora_a_moving_average_is_called_that_of_the_factors(lora_run):
    choice = choose(lora_run[0], training(ema=0.9), 6)
    assert choice.figures == {"step": 6, "ema": 0.9, "ema_of": "factors"}
    told = told_choice(choice.figures)
    assert told == "a moving average of each LoRA factor after step 6 (decay 0.9)"


def test_a_mean_is_no_adapter():
    tree = {
        "encoder": {"lora": {"rank": 2, "export": "adapter"}},
        "training": {"average_checkpoints": 2},
    }
    with pytest.raises(InputError, match=r"^training\.average_checkpoints: a mean of LoRA's prod"):
        parse(tree)
    tree["encoder"]["lora"]["export"] = "merged"
    parse(tree)


def test_a_moving_average_takes_the_place_of_the_weights(run):
    save_checkpoint(run, state(12, ema=True), keep=9)
    choice = choose(run, training(ema=0.99), 12)
    assert json.loads(json.dumps(choice.figures)) == {"step": 12, "ema": 0.99}
    assert choice.checkpoint.encoder_weights[WORDS][0, 0] == 6
    told = told_choice(choice.figures)
    assert told == "a moving average of the weights after step 12 (decay 0.99)"


def write_start(run, others: dict) -> None:
    """Writes the start of a run, of which some weights are others than those of its states."""
    weights = random_weights(SPEC, 3) | others
    write_encoder(RunFolder(run).start, SPEC, weights, default_start(), "The start.\n")


@pytest.mark.parametrize("settings", [{}, {"average_checkpoints": 3, "checkpoint_every": 3}])
def test_a_share_of_the_start_is_in_whatever_state_is_the_model(run, settings):
    words = np.full((50, 16), 1, np.float32)
    write_start(run, {WORDS: words})
    trained = choose(run, training(**settings), 9)
    choice = choose(run, training(**settings), 9, 0.25)
    assert choice.figures == {**trained.figures, "start_share": 0.25}
    made, alone = choice.checkpoint.encoder_weights, trained.checkpoint.encoder_weights
    np.testing.assert_array_equal(made[WORDS], 0.25 * words + 0.75 * alone[WORDS])
    assert made.keys() == alone.keys()
    assert made[WORDS].dtype == np.float32
    told = told_choice(choice.figures)
    assert told == f"25% of the start and 75% of {told_choice(trained.figures)}"


def test_with_lora_the_share_is_of_what_the_factors_change(lora_run):
    run, expected = lora_run
    write_start(run, {})
    start = random_weights(SPEC, 3)
    made = choose(run, training(), 6, 0.5).checkpoint.encoder_weights
    for name, value in expected.items():
        np.testing.assert_allclose(made[name], (start[name] + value) / 2, rtol=1e-6, err_msg=name)
        if name != MATRIX:
            np.testing.assert_array_equal(made[name], start[name])


@pytest.mark.parametrize(
    ("encoder", "told"),
    [
        ({"start": "random"}, "random weights hold nothing to keep"),
        ({"lora": {"rank": 2, "export": "adapter"}}, "the adapter holds trained weights only"),
    ],
)
def test_a_share_of_a_start_that_cannot_be_kept_is_refused(encoder, told):
    with pytest.raises(InputError, match=rf"^training\.start_share: {told}"):
        parse({"encoder": encoder, "training": {"start_share": 0.5}})


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
        ({"patience": 2}, r"patience: no metric decides what a gain is"),
        (
            {"keep_best": "a.b", "patience": 2, "feed": "spark"},
            "patience: training.feed `spark`",
        ),
        (
            {"keep_best": "a.b", "patience": 2, "mode": "async"},
            "patience: mode `async` of framework `tensorflow`",
        ),
        ({"ema": 0.9, "framework": "bigdl", "engine": "bigdl"}, "ema: mode `sync` of framework"),
        (
            {"ema": 0.9, "framework": "torch", "engine": "torch", "sharding": "parameters"},
            "ema: training.sharding `parameters`",
        ),
    ],
)
def test_choices_that_nobody_can_follow_are_refused(settings, told):
    with pytest.raises(InputError, match=told):
        training(**settings)


def test_the_best_needs_evaluations():
    with pytest.raises(InputError, match=r"^training\.keep_best: training measures no checkpoint"):
        parse({"training": {"keep_best": "retrieval.ndcg@10"}})


@pytest.mark.parametrize(
    ("titled", "share", "steps"), [(3, 0.5, 24), (0, 0.5, 24), (None, 0.5, 24), (-1, WHOLE, 1)]
)
def test_documents_without_titles_leave_the_start_as_it_is(tmp_path, titled, share, steps):
    corpus = CorpusFolder(tmp_path)
    if titled is not None:
        corpus.statistics.write_text(json.dumps({"titled": titled}))
    asked = training(start_share="titles", epochs=9, max_steps=24)
    assert start_share(asked, corpus) == share
    assert asked_steps(asked, 5, corpus) == steps
    # A share that is told is that one, whatever the documents are.
    assert start_share(training(start_share=0.25), corpus) == 0.25
    assert asked_steps(training(start_share=0.25, epochs=2), 5, corpus) == 10


def test_a_model_that_keeps_the_start_has_its_weights_and_says_so(run):
    write_start(run, {})
    start = random_weights(SPEC, 3)
    choice = choose(run, training(), 9, WHOLE)
    made = choice.checkpoint.encoder_weights
    assert made.keys() == start.keys()
    assert all(np.array_equal(made[name], start[name]) for name in start)
    told = told_choice(choice.figures)
    assert told == "the start weights, since most documents have no title"
