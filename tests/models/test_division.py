"""How encoders are divided between workers, and which are not."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from pipelines.catalog import ARCHITECTURES
from pipelines.errors import InputError
from pipelines.models.architecture import architecture_of
from pipelines.models.bert.spec import BertSpec
from pipelines.models.static.architecture import StaticSpec
from pipelines.models.weights import (
    check_division,
    part_of,
    part_shape,
    random_weights,
    stage_of,
    weight_shapes,
)
from pipelines.settings.load import parse
from pipelines.settings.training import Place, Placement

SPEC = BertSpec(vocabulary=53, layers=3, hidden=24, heads=6, intermediate=36, positions=16)


@pytest.mark.parametrize("members", [1, 2, 3, 6])
def test_the_parts_make_the_whole(members):
    division = architecture_of(SPEC).division
    placement = Placement(replicas=1, members=members)
    weights = random_weights(SPEC, 1)
    assert division.axes(SPEC).keys() <= weights.keys()
    for name, axis in division.axes(SPEC).items():
        parts = [
            part_of(weights[name], axis, placement, Place(0, 0, member))
            for member in range(members)
        ]
        np.testing.assert_array_equal(np.concatenate(parts, axis), weights[name])
        shape = weights[name].shape
        assert [part.shape for part in parts] == [
            part_shape(shape, axis, members, member) for member in range(members)
        ]
        assert part_shape(shape, None, members, 0) == shape


@pytest.mark.parametrize(("stages", "name"), [*product([1, 2, 3], weight_shapes(SPEC))])
def test_each_weight_has_a_stage(stages, name):
    division = architecture_of(SPEC).division
    stage = stage_of(division, SPEC, name, Placement(replicas=1, stages=stages))
    assert 0 <= stage < stages
    if name.startswith("embeddings."):
        assert stage == 0
    if name.startswith("encoder.layer.2."):
        assert stage == stages - 1


def asked(**training):
    torch = {"engine": "torch", "framework": "torch", "granules_per_step": 12}
    return parse({"training": torch | training})


@pytest.mark.parametrize(
    ("spec", "settings", "message"),
    [
        (SPEC, {"model_parallel": 4, "workers": 4}, "4 does not divide the 6 attention heads"),
        (
            SPEC,
            {"pipeline_parallel": 4, "workers": 4},
            r"has 3 layers for 4 stages\. Set it to at most 3",
        ),
        (
            replace(SPEC, relative_buckets=8),
            {"pipeline_parallel": 2},
            "all layers share one table of relative positions",
        ),
        (
            StaticSpec(vocabulary=50, hidden=16),
            {"model_parallel": 2},
            r"the architecture static\. .*training.sharding: parameters",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(spec, settings, message):
    division = architecture_of(spec).division
    with pytest.raises(InputError, match=message):
        check_division(division, spec, asked(**settings))


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_only_divided_encoders_are_looked_at(kind):
    check_division(ARCHITECTURES.load(kind).division, SPEC, asked(workers=4))


def test_a_division_has_its_forms():
    for kind in ARCHITECTURES:
        architecture = ARCHITECTURES.load(kind)
        assert architecture.division is None or "torch_module" in architecture.forms
