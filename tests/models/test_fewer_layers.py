"""Students that begin with some of the layers of their teacher."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import InputError
from pipelines.models.bert.spec import BertSpec
from pipelines.models.fewer_layers import chosen_layers, with_layers
from pipelines.models.static.spec import StaticSpec
from pipelines.models.weights import check_weights, random_weights

SPEC = BertSpec(vocabulary=20, layers=6, hidden=8, heads=2, intermediate=16, positions=8)


@given(
    st.integers(1, 48).flatmap(lambda layers: st.tuples(st.just(layers), st.integers(1, layers)))
)
def test_chosen_layers_are_spaced_evenly(numbers):
    layers, count = numbers
    chosen = chosen_layers(layers, count)
    assert len(set(chosen)) == count
    assert chosen == sorted(chosen)
    assert chosen[-1] == layers - 1
    steps = [after - before for before, after in pairwise(chosen)]
    assert not steps or max(steps) - min(steps) <= 1


def test_the_layers_of_the_start_are_those_of_the_student():
    weights = random_weights(SPEC, 1)
    spec, kept = with_layers(SPEC, weights, 3)
    assert spec.layers == 3
    check_weights(spec, kept)
    for place, layer in enumerate([0, 2, 5]):
        name = "attention.self.query.weight"
        student, teacher = f"encoder.layer.{place}.{name}", f"encoder.layer.{layer}.{name}"
        assert kept[student] is weights[teacher]
    assert kept["embeddings.LayerNorm.weight"] is weights["embeddings.LayerNorm.weight"]


@pytest.mark.parametrize(
    ("spec", "count", "said"),
    [
        (SPEC, 7, "the start has 6 layers, at most 6"),
        (StaticSpec(vocabulary=20, hidden=8), 1, "architecture static keeps all it has"),
    ],
)
def test_layers_that_are_not_there_are_refused(spec, count, said):
    with pytest.raises(InputError, match=said) as refused:
        with_layers(spec, random_weights(spec, 1), count)
    assert refused.value.key == "encoder.keep_layers"
