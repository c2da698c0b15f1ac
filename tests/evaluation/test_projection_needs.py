"""The map without the library that draws it."""

import numpy as np
import pytest

from pipelines.errors import InputError
from pipelines.evaluation import projection


def test_without_scikit_learn_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setattr(projection, "find_spec", {"sklearn": None}.__getitem__)
    says = r"scikit-learn, .* is not installed, pip install .sentence-pipelines\[evaluation\]"
    with pytest.raises(InputError, match=says):
        projection.place_on_map(np.eye(8), 1)
    np.testing.assert_array_equal(projection.place_on_map(np.ones((8, 2)), 1), np.zeros((8, 2)))
