"""Steps of several sources: each has the loss and the sides of its own, in every framework."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from steppers import (
    EACH_FRAMEWORK,
    PAIR,
    SEVERAL,
    SPEC,
    TRIPLET,
    assert_close,
    granule,
    prepare_here,
    work,
)

from pipelines.catalog import STEPPERS
from pipelines.models.weights import random_weights
from pipelines.runs.checkpoint import Checkpoint
from pipelines.settings.load import parse
from pipelines.training.collectives.base import SingleProcess

SOURCES = [
    {"name": "pairs", "pairs": "columns"},
    {"name": "step", "pairs": "columns", "objective": {"negatives": "step", "temperature": 0.1}},
    {"name": "scored", "score_column": "s", "objective": {"name": "cosent"}},
    {"name": "hard", "pairs": "triplets", "objective": {"name": "triplet"}},
    {"name": "alone", "pairs": "single", "objective": {"name": "simcse"}},
    {
        "name": "asked",
        "pairs": "triplets",
        "triplet_columns": ["a", "b", "c", "d", "e"],
        "score_columns": ["f", "g", "h", "i"],
        "objective": {"name": "listwise_kl"},
    },
]
SIDES = (PAIR, PAIR, PAIR, TRIPLET, ("anchor", "anchor"), SEVERAL)


def mixture(framework):
    """A run of all sources, as far as a stepper looks at it."""
    config = parse(
        {
            "corpus": {
                "format": "csv",
                "inputs": ["a.csv"],
                "pairs": "columns",
                "sources": SOURCES,
            },
            "training": {"framework": framework, "precision": "fp32", "dropout": 0.1},
        }
    )
    alone = tuple(
        SimpleNamespace(config=one, sides=sides)
        for one, sides in zip(config.by_source(), SIDES, strict=True)
    )
    for one in alone:
        one.by_source = (one,)
    return SimpleNamespace(config=config, by_source=alone)


def stepper_of(run, framework):
    factory = STEPPERS.load(framework)
    prepare_here(factory, run.config.training)
    checkpoint = Checkpoint(0, SPEC, random_weights(SPEC, 3), {})
    return factory(SimpleNamespace(run=run), checkpoint, SingleProcess())


# TensorFlow makes a graph for each loss, which takes seconds.
@pytest.mark.parametrize(
    ("framework", "numbers"),
    [
        ("torch", range(len(SOURCES))),
        pytest.param("tensorflow", (1, 4), marks=pytest.mark.slow),
        pytest.param("tensorflow", (5,), marks=pytest.mark.matrix),
    ],
)
def test_a_step_has_the_gradient_of_its_source_alone(framework, numbers):
    run, start = mixture(framework), random_weights(SPEC, 3)
    together = stepper_of(run, framework)
    for number in numbers:
        alone = run.by_source[number]
        some = work(0, granule(number, SEVERAL), granule(9, SEVERAL))
        loss, gradients = together.gradients(replace(some, source=number), start)
        expected_loss, expected = stepper_of(alone, framework).gradients(some, start)
        assert loss == pytest.approx(expected_loss, rel=1e-6)
        assert_close(gradients, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("framework", EACH_FRAMEWORK)
def test_a_granule_that_comes_again_has_other_noise(framework):
    together, start = stepper_of(mixture(framework), framework), random_weights(SPEC, 3)
    once = work(0, granule(1, SEVERAL))
    losses = [
        float(together.gradients(replace(once, visit=visit), start)[0]) for visit in (0, 0, 1)
    ]
    assert losses[0] == losses[1] != losses[2]
    # Of one source, visits are epochs.
    assert float(together.gradients(replace(once, epoch=1), start)[0]) == losses[2]
