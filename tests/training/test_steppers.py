"""What every framework's stepper promises: updates, clipping, checkpoints, negatives of a step."""

from collections.abc import Callable
from functools import cache, partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from steppers import (
    EACH_FRAMEWORK,
    FRAMEWORKS,
    PAIR,
    SEVERAL,
    SPEC,
    TRIPLET,
    assert_close,
    fields_of,
    granule,
    work,
)
from steppers import stepper as make_stepper
from thread_pair import run_both

from pipelines.lanes.files import Granule, Side
from pipelines.models.weights import WORDS, random_weights
from pipelines.runs.checkpoint import (
    checkpoint_steps,
    load_checkpoint,
    save_checkpoint,
)
from pipelines.training.steppers.numpy_adamw import AdamW

UNCLIPPED = {"clip_norm": 0.0}
# Several hard negatives hold a pair and a triplet, and steps of pairs are compared throughout.
PAIRS_OR_TRIPLETS = pytest.mark.parametrize(
    "sides", [*(pytest.param(few, marks=pytest.mark.matrix) for few in (PAIR, TRIPLET)), SEVERAL]
)


# All that in-batch negatives can be asked to compare, with two judges of false negatives.
EVERYTHING = {
    "directions": ["query_to_doc", "doc_to_query", "query_to_query", "doc_to_doc"],
    "hardness_strength": 4.0,
    "false_negative_margin": 0.1,
    "dimensions": [16, 5],
    "dimension_weights": [1.0, 0.3],
}
GUIDED = {"false_negative_margin": 0.1, "guide": "teacher"}
BOTH = EVERYTHING | GUIDED
PLAIN_OR_EVERYTHING = pytest.mark.parametrize(
    "keys",
    [
        pytest.param({}, id="plain", marks=pytest.mark.matrix),
        pytest.param(EVERYTHING, id="all", marks=pytest.mark.matrix),
        pytest.param(BOTH, id="guided"),
    ],
)


# Of what other tests hold TensorFlow to, whose graphs take seconds each.
WITH_TORCH = pytest.mark.parametrize(
    "framework", [pytest.param("tensorflow", marks=pytest.mark.matrix), "torch"]
)


@pytest.fixture(params=EACH_FRAMEWORK)
def framework(request) -> str:
    """Every framework in turn."""
    return request.param


@pytest.fixture
def stepper(framework):
    """Makes steppers of every framework in turn."""
    return partial(make_stepper, framework)


@pytest.fixture(scope="module")
def courses(tmp_path_factory) -> Callable[[str], SimpleNamespace]:
    """Finds what a stepper of a framework has made, of which a graph is traced once."""

    @cache
    def find(framework: str) -> SimpleNamespace:
        stepper, folder = make_stepper(framework), tmp_path_factory.mktemp("course")
        begun = [next_step(stepper, number) for number in range(3)]
        taken = stepper.checkpoint(3)
        before = {name: value.copy() for name, value in (taken.weights | taken.moments).items()}
        save_checkpoint(folder, taken, keep=2)
        rest, moments = [next_step(stepper, 3)], stepper.checkpoint(4).moments
        rest += [next_step(stepper, number) for number in (4, 5)]
        return SimpleNamespace(
            stepper=stepper,
            losses=[*begun, *rest],
            taken=taken,
            before=before,
            folder=folder,
            moments=moments,
        )

    return find


@pytest.fixture
def course(framework, courses) -> SimpleNamespace:
    """Six steps of a stepper with the defaults; tests have it load a state before they go on.

    Attributes:
        stepper: That made them.
        losses: Of the steps.
        taken: The checkpoint before the fourth step; it is in a folder too.
        before: Copies of its arrays, of the moment at which it was taken.
        moments: After the fourth step.
    """
    return courses(framework)


def next_step(stepper, number: int, rate: float = 1e-3) -> float:
    """Makes a step of a course; returns its loss."""
    return stepper.step(work(number, granule(number + 1)), rate)


@pytest.mark.parametrize(
    ("framework", "negatives"),
    [
        ("torch", "granule"),
        ("torch", "step"),
        pytest.param("tensorflow", "granule", marks=pytest.mark.matrix),
        pytest.param("tensorflow", "step", marks=pytest.mark.slow),
    ],
)
def test_gradients_at_given_weights_are_those_of_a_step(stepper, negatives):
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


def test_another_state_is_taken_whole(course):
    course.stepper.load(course.taken)
    assert next_step(course.stepper, 3) == course.losses[3]
    found = course.stepper.checkpoint(4).moments
    assert found.keys() == course.moments.keys()
    for name, value in course.moments.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_checkpoint_stays_what_it_is(course):
    for name, value in (course.taken.weights | course.taken.moments).items():
        np.testing.assert_array_equal(value, course.before[name], err_msg=name)


def test_clipping_bounds_the_norm(stepper):
    free, clipped = stepper(training=UNCLIPPED), stepper(training={"clip_norm": 1e-3})
    for each in (free, clipped):
        each.step(work(0, granule(1)), 1e-3)
    norms = [
        np.sqrt(sum((m**2).sum() for n, m in s.checkpoint(1).moments.items() if n[0] == "m"))
        for s in (free, clipped)
    ]
    # What is told is the norm before clipping: the first moments are a tenth of the gradient.
    assert free.gradient_norm == pytest.approx(10 * norms[0], rel=1e-4)
    assert clipped.gradient_norm == pytest.approx(free.gradient_norm, rel=1e-5)
    free.gradients(work(0, granule(1)), random_weights(SPEC, 3))
    assert free.gradient_norm == pytest.approx(clipped.gradient_norm, rel=1e-5)
    assert norms[1] == pytest.approx(0.1 * 1e-3, rel=1e-3)
    assert norms[0] > 10 * norms[1]


@WITH_TORCH
@pytest.mark.parametrize("dropout", [pytest.param(0.0, marks=pytest.mark.matrix), 0.2])
def test_negatives_of_a_step_of_one_granule_are_the_granules(stepper, dropout):
    curves = []
    for negatives in ("granule", "step"):
        each = stepper({"negatives": negatives}, {"dropout": dropout})
        curves.append([each.step(work(i, granule(i)), 1e-3) for i in range(4)])
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-5)


@pytest.fixture
def a_few_anchors_at_a_time(monkeypatch):
    """So that a step's similarities are computed in several parts, the last of which is smaller."""
    monkeypatch.setattr("pipelines.training.steppers.objectives.SIMILARITIES", 5 * 24)


@pytest.mark.usefixtures("a_few_anchors_at_a_time")
@PAIRS_OR_TRIPLETS
@PLAIN_OR_EVERYTHING
@WITH_TORCH
def test_negatives_of_a_step_are_those_of_one_large_granule(stepper, sides, keys):
    parts = [granule(number, sides) for number in (1, 2, 3)]

    def joined(name: str) -> Side:
        sides = [part.sides[name] for part in parts]
        return Side(
            np.concatenate([side.token_ids for side in sides]),
            np.concatenate([side.lengths for side in sides]),
        )

    whole = Granule(
        number=9,
        groups=np.concatenate([part.groups for part in parts]),
        teacher={name: np.concatenate([part.teacher[name] for part in parts]) for name in sides},
        **fields_of({name: joined(name) for name in sides}),
    )
    start = random_weights(SPEC, 3)
    by_step = stepper({"negatives": "step", **keys}, UNCLIPPED, sides=sides)
    by_granule = stepper(keys, UNCLIPPED, sides=sides)
    loss, cached = by_step.gradients(work(0, *parts), start)
    plain_loss, plain = by_granule.gradients(work(0, whole), start)
    assert loss == pytest.approx(plain_loss, rel=1e-5)
    assert_close(cached, plain)


@WITH_TORCH
def test_a_teacher_tells_other_false_negatives_than_the_model(stepper, course):
    margin = {"false_negative_margin": 0.1}
    losses = [next_step(stepper(some), 0) for some in (margin, margin | {"guide": "teacher"})]
    assert len({round(loss, 4) for loss in (course.losses[0], *losses)}) == 3


def of_two_workers():
    """Everything at once in each framework; TensorFlow's graph grows with the sides."""
    for framework, sides, keys in product(
        FRAMEWORKS, (PAIR, TRIPLET, SEVERAL), ({}, EVERYTHING, BOTH)
    ):
        usual = keys is BOTH and sides is (SEVERAL if framework == "torch" else PAIR)
        slow = [pytest.mark.slow] if framework == "tensorflow" else []
        yield pytest.param(framework, sides, keys, marks=slow if usual else pytest.mark.matrix)


@pytest.mark.usefixtures("a_few_anchors_at_a_time")
@pytest.mark.parametrize(("framework", "sides", "keys"), list(of_two_workers()))
def test_two_workers_share_the_gradient_of_a_step(stepper, sides, keys):
    objective, training = {"negatives": "step", **keys}, {"dropout": 0.1, "clip_norm": 0.0}
    granules, start = [granule(number, sides) for number in range(4)], random_weights(SPEC, 3)

    def part(collectives):
        each = stepper(objective, training, collectives=collectives, sides=sides)
        own = granules[2 * collectives.rank :][:2]
        return each.gradients(work(0, *own), start)

    ((loss, first), (other_loss, second)), _ = run_both(part)
    alone = stepper(objective, training, sides=sides)
    expected_loss, expected = alone.gradients(work(0, *granules), start)
    # Each worker has the loss of its own anchors.
    assert (loss + other_loss) / 2 == pytest.approx(expected_loss, rel=1e-5)
    assert_close({name: (first[name] + second[name]) / 2 for name in first}, expected)


# TensorFlow makes a graph for each, which takes a second: of these what is compared with differs.
# (`simcse` is in `test_objectives.py`.)
UNLIKE = [("listwise_kl", SEVERAL, 0.0), ("similarity_distillation", PAIR, 0.0)]
OBJECTIVES = [
    ("in_batch_negatives", PAIR, 0.0),
    ("in_batch_negatives", TRIPLET, 0.0),
    ("cosine_regression", PAIR, 0.0),
    ("simcse", ("anchor", "anchor"), 0.1),
    *UNLIKE,
]


@pytest.mark.parametrize(
    ("framework", "name", "sides", "dropout"),
    [*(("torch", *case) for case in OBJECTIVES), *(("tensorflow", *case) for case in UNLIKE)],
)
def test_every_objective_learns_its_granule(framework, name, sides, dropout):
    each = make_stepper(framework, {"name": name}, {"dropout": dropout}, sides=sides)
    losses = [each.step(work(i, granule(1, SEVERAL)), 3e-3) for i in range(30)]
    assert np.mean(losses[-3:]) < 0.7 * np.mean(losses[:3])


def test_a_checkpoint_continues_as_if_nothing_had_happened(stepper, course):
    second = stepper(checkpoint=load_checkpoint(course.folder, 3))
    rest = [next_step(second, number) for number in range(3, 6)]
    np.testing.assert_allclose(rest, course.losses[3:], rtol=1e-6)


def test_a_state_without_numbers_is_not_kept_though_its_loss_is_one(course, tmp_path: Path):
    course.stepper.load(course.taken)
    assert np.isfinite(next_step(course.stepper, 3, 1e39))
    with pytest.raises(FloatingPointError, match=r"after step 3 the weight .*Lower training"):
        save_checkpoint(tmp_path, course.stepper.checkpoint(4), keep=2)
    assert checkpoint_steps(tmp_path) == []


def test_the_moving_average_follows_the_weights_and_goes_on(stepper, course, tmp_path: Path):
    each = stepper(training={"ema": 0.5})
    expected = {name: value.astype(np.float64) for name, value in random_weights(SPEC, 3).items()}
    for index in range(4):
        each.step(work(index, granule(index)), 1e-2)
        made = each.checkpoint(index + 1)
        # Of a young average the newest weights have more.
        share = 1 - min(0.5, (2 + index) / (11 + index))
        for name, value in made.weights.items():
            expected[name] += share * (value - expected[name])
        if index == 1:
            save_checkpoint(tmp_path, made, keep=2)
            each = stepper(training={"ema": 0.5}, checkpoint=load_checkpoint(tmp_path, 2))
    assert_close(made.averages, expected)
    assert_close(made.encoder_weights, expected)
    assert not np.array_equal(made.averages[WORDS], made.weights[WORDS])
    assert {name.split("/")[0] for name in course.taken.moments} == {"m", "v"}
