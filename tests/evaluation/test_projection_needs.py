"""The map without the library that draws it."""

import numpy as np

from pipelines import libraries
from pipelines.evaluation import samples as projection


def test_without_scikit_learn_there_is_no_map_and_one_line_names_the_extra(monkeypatch, caplog):
    monkeypatch.setattr(libraries, "find_spec", {"sklearn": None}.__getitem__)
    monkeypatch.setattr(libraries, "_TOLD", set())
    for _ in range(2):
        np.testing.assert_array_equal(projection.place_on_map(np.eye(8), 1), np.zeros((8, 2)))
    assert caplog.messages == [
        "the map of the report is left out: scikit-learn is not installed, "
        'pip install "sentence-pipelines[evaluation]"'
    ]
