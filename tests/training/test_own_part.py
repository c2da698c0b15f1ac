"""What a worker reads of a state that several hold together."""

from types import SimpleNamespace

import numpy as np
from steppers import SPEC, start_weights

from pipelines.models.arrays import LazyArrays, shapes_of
from pipelines.runs.checkpoint import Checkpoint
from pipelines.settings.training import Placement
from pipelines.training.steppers.model_parallel import OwnPart


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
