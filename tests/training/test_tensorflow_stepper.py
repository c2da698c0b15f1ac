"""TensorFlow's updates: AdamW as PyTorch has it, and the negatives of a whole step."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pipelines.config import parse
from pipelines.encoder.spec import EncoderSpec
from pipelines.encoder.weights import random_weights
from pipelines.lanes.files import Granule, Side
from pipelines.lanes.plan import noise_seed
from pipelines.training.adamw import AdamW
from pipelines.training.checkpoint import (
    Checkpoint,
    checkpoint_steps,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)
from pipelines.training.exchange import Alone
from pipelines.training.feed import StepWork

SPEC = EncoderSpec(vocabulary=50, layers=1, hidden=16, heads=2, intermediate=32, positions=16)


PAIR, TRIPLET = ("left", "right"), ("left", "right", "negative")


def granule(number: int, sides=PAIR, examples: int = 6) -> Granule:
    generator = np.random.default_rng(number)

    def side() -> Side:
        lengths = generator.integers(2, 9, examples).astype(np.int32)
        ids = generator.integers(1, 50, (examples, 8)).astype(np.int32)
        return Side(ids * (np.arange(8) < lengths[:, None]), lengths)

    scores = generator.random(examples).astype(np.float32)
    return Granule(number=number, scores=scores, **{name: side() for name in sides})


# What the settings of an objective need elsewhere, to be accepted.
CORPUS = {
    "twins": {"pairs": "single"},
    "cosine_regression": {"pairs": "columns", "score_column": "score"},
}


def stepper(objective=None, training=None, checkpoint=None, exchange=None, sides=PAIR):
    from pipelines.training.tensorflow import TensorFlowStepper

    objective = objective or {}
    corpus = CORPUS.get(objective.get("name"), {})
    config = parse({"objective": objective, "training": training or {}, "corpus": corpus})
    task = SimpleNamespace(run=SimpleNamespace(config=config, sides=sides))
    checkpoint = checkpoint or Checkpoint(0, SPEC, random_weights(SPEC, 3), {})
    return TensorFlowStepper(task, checkpoint, exchange or Alone())


def work(index: int, *granules: Granule) -> StepWork:
    return StepWork(index, 0, list(granules))


def test_the_update_is_pytorchs_adamw():
    import tensorflow as tf
    import torch

    ours = stepper(training={"weight_decay": 0.1, "clip_norm": 0.0})
    weights = {name: torch.tensor(value) for name, value in random_weights(SPEC, 3).items()}
    decayed = [value for value in weights.values() if value.ndim > 1]
    rest = [value for value in weights.values() if value.ndim == 1]
    theirs = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    )
    generator = np.random.default_rng(1)
    for index, rate in enumerate([1e-2, 5e-3, 2e-3]):
        gradients = [generator.normal(size=v.shape).astype(np.float32) for v in weights.values()]
        scalars = [1.0, rate, 0.9 ** (index + 1), 0.999 ** (index + 1)]
        loss, *rest_of_them = [tf.constant(value, tf.float32) for value in scalars]
        ours._update([tf.constant(value) for value in gradients], loss, *rest_of_them)
        for group in theirs.param_groups:
            group["lr"] = rate
        for value, gradient in zip(weights.values(), gradients, strict=True):
            value.grad = torch.tensor(gradient)
        theirs.step()
    for name, value in ours.checkpoint(3).weights.items():
        np.testing.assert_allclose(value, weights[name].numpy(), atol=2e-6, err_msg=name)


@pytest.mark.parametrize("negatives", ["granule", "step"])
def test_gradients_at_given_weights_are_those_of_a_step(negatives):
    training = {"weight_decay": 0.1, "clip_norm": 0.5}
    whole, worker = (stepper({"negatives": negatives}, training) for _ in range(2))
    start = random_weights(SPEC, 3)
    server = AdamW(start, {}, weight_decay=0.1)
    for index in range(3):
        part = work(index, granule(2 * index), granule(2 * index + 1))
        expected = whole.step(part, 1e-2)
        loss, gradients = worker.gradients(part, server.weights)
        assert loss == pytest.approx(expected, rel=1e-5)
        server.update(gradients, 1e-2, index + 1)
    for name, value in whole.checkpoint(3).weights.items():
        np.testing.assert_allclose(server.weights[name], value, atol=1e-5, err_msg=name)


def test_another_state_is_taken_whole():
    one, other = stepper(), stepper()
    for index in range(2):
        one.step(work(index, granule(index)), 1e-2)
    other.load(one.checkpoint(2))
    losses = [each.step(work(2, granule(2)), 1e-2) for each in (one, other)]
    assert losses[0] == losses[1]
    for name, value in one.checkpoint(3).moments.items():
        np.testing.assert_array_equal(other.checkpoint(3).moments[name], value, err_msg=name)


def test_clipping_bounds_the_norm():
    free, clipped = stepper(training={"clip_norm": 0.0}), stepper(training={"clip_norm": 1e-3})
    for each in (free, clipped):
        each.step(work(0, granule(1)), 1e-3)
    norms = [
        np.sqrt(sum((m**2).sum() for n, m in s.checkpoint(1).moments.items() if n[0] == "m"))
        for s in (free, clipped)
    ]
    assert norms[1] == pytest.approx(0.1 * 1e-3, rel=1e-3)
    assert norms[0] > 10 * norms[1]


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_negatives_of_a_step_of_one_granule_are_the_granules(dropout):
    curves = []
    for negatives in ("granule", "step"):
        each = stepper({"negatives": negatives}, {"dropout": dropout})
        curves.append([each.step(work(i, granule(i)), 1e-3) for i in range(4)])
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-5)


@pytest.mark.parametrize("sides", [PAIR, TRIPLET])
def test_negatives_of_a_step_are_those_of_one_large_granule(sides):
    parts = [granule(1, sides), granule(2, sides)]

    def joined(name: str) -> Side:
        sides = [getattr(part, name) for part in parts]
        return Side(
            np.concatenate([side.token_ids for side in sides]),
            np.concatenate([side.lengths for side in sides]),
        )

    whole = Granule(number=9, **{name: joined(name) for name in sides})
    by_step, by_granule = stepper({"negatives": "step"}, sides=sides), stepper(sides=sides)
    (_, cached), (_, plain) = by_step._across(work(0, *parts)), by_granule._within(work(0, whole))
    assert_close(cached, plain)
    losses = [
        (by_step.step(work(i, *parts), 1e-3), by_granule.step(work(i, whole), 1e-3))
        for i in range(3)
    ]
    np.testing.assert_allclose(*zip(*losses, strict=True), rtol=1e-5)


def assert_close(gradients, expected):
    for gradient, other in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient, other, rtol=1e-4, atol=1e-5)


class OneOfTwo:
    """A worker of two that is told what the other one gathers."""

    workers = 2

    def __init__(self, rank: int, gathered: list) -> None:
        self.rank = rank
        self._gathered = iter(gathered)

    def gather(self, tensor):
        return next(self._gathered)


@pytest.mark.parametrize("sides", [PAIR, TRIPLET])
def test_two_workers_share_the_gradient_of_a_step(sides):
    objective, training = {"negatives": "step"}, {"dropout": 0.1}
    alone = stepper(objective, training, sides=sides)
    granules = [granule(number, sides) for number in range(4)]
    inputs = [alone._inputs(each, 0) for each in granules]
    gathered = [
        np.concatenate([alone._embed(texts) for texts in side])
        for side in zip(*inputs, strict=True)
    ]
    shares = [
        stepper(objective, training, exchange=OneOfTwo(rank, gathered), sides=sides)._across(
            work(0, *granules[2 * rank : 2 * rank + 2])
        )
        for rank in (0, 1)
    ]
    loss, gradients = alone._across(work(0, *granules))
    assert [float(each) for each, _ in shares] == pytest.approx([float(loss)] * 2, rel=1e-5)
    (_, first), (_, second) = shares
    assert_close([(a + b) / 2 for a, b in zip(first, second, strict=True)], gradients)


@pytest.mark.parametrize(
    ("name", "sides", "dropout"),
    [
        ("twins", ("left", "left"), 0.1),
        ("in_batch_negatives", PAIR, 0.0),
        ("in_batch_negatives", TRIPLET, 0.0),
        ("cosine_regression", PAIR, 0.0),
    ],
)
def test_every_objective_learns_its_granule(name, sides, dropout):
    each = stepper({"name": name}, {"dropout": dropout}, sides=sides)
    losses = [each.step(work(i, granule(1, TRIPLET)), 3e-3) for i in range(30)]
    assert np.mean(losses[-3:]) < 0.7 * np.mean(losses[:3])


def test_every_side_has_noise_of_its_own():
    each = stepper({}, {"dropout": 0.1}, sides=TRIPLET)
    seeds = [tuple(texts.seed) for texts in each._inputs(granule(3, TRIPLET), 1)]
    assert seeds == [noise_seed(17, 1, 3, site) for site in range(3)]


def test_a_checkpoint_continues_as_if_nothing_had_happened(tmp_path: Path):
    straight = stepper()
    curve = [straight.step(work(i, granule(i)), 1e-3) for i in range(6)]
    first = stepper()
    for index in range(3):
        first.step(work(index, granule(index)), 1e-3)
    save_checkpoint(tmp_path, first.checkpoint(3), keep=2)
    second = stepper(checkpoint=load_checkpoint(tmp_path, 3))
    rest = [second.step(work(i, granule(i)), 1e-3) for i in range(3, 6)]
    np.testing.assert_allclose(rest, curve[3:], rtol=1e-6)


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path):
    for step in (0, 5, 10, 15):
        checkpoint = Checkpoint(step, SPEC, random_weights(SPEC, 3), {})
        save_checkpoint(tmp_path, checkpoint, keep=2)
    assert checkpoint_steps(tmp_path) == [10, 15]
    assert newest_checkpoint(tmp_path) == 15
