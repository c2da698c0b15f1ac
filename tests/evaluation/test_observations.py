"""What figures are of, kept in a file."""

import numpy as np
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from pipelines.evaluation.intervals import (
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
        assert one.groups is None
        for value, numbers in one.values.items():
            np.testing.assert_array_equal(numbers, given_sets[name].values[value])


def test_without_a_file_nothing_is_known(tmp_path):
    assert read_observations(tmp_path / "observations.parquet") == {}


def test_groups_are_kept_and_files_without_them_are_read(tmp_path):
    path, items = tmp_path / "observations.parquet", np.arange(3)
    values = {"a": np.zeros(3), "b": np.ones(3)}
    grouped = Observations(items, values, np.array([7, 7, -1]))
    write_observations(path, {"packages": grouped, "alone": Observations(items, values)})
    found = read_observations(path)
    np.testing.assert_array_equal(found["packages"].groups, [7, 7, -1])
    assert found["alone"].groups is None
    pq.write_table(pq.read_table(path).drop(["group"]), path)
    earlier = read_observations(path)
    assert earlier["packages"].groups is None
    np.testing.assert_array_equal(earlier["packages"].items, items)
