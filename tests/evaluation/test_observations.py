"""What figures are of, kept in a file."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipelines.evaluation.observations import (
    Observations,
    read_observations,
    write_observations,
)

NUMBERS = st.lists(st.floats(allow_nan=False, width=64), min_size=1, max_size=6)


@given(sets=st.dictionaries(st.text(min_size=1, max_size=5), NUMBERS, max_size=3))
def test_what_is_written_is_read(sets, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "observations.parquet"
    given_sets = {
        name: Observations(
            np.arange(len(numbers)) - 2, {"a": np.array(numbers), "b": -np.array(numbers)}
        )
        for name, numbers in sets.items()
    }
    write_observations(path, given_sets)
    found = read_observations(path)
    assert found.keys() == given_sets.keys()
    for name, one in found.items():
        assert list(one.values) == ["a", "b"]
        np.testing.assert_array_equal(one.items, given_sets[name].items)
        for value, numbers in one.values.items():
            np.testing.assert_array_equal(numbers, given_sets[name].values[value])


def test_without_a_file_nothing_is_known(tmp_path):
    assert read_observations(tmp_path / "observations.parquet") == {}
