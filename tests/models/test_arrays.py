"""Arrays that are not in memory all at once, and their files."""

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from pipelines.models.arrays import LazyArrays, stored_arrays, stored_order, write_arrays

ARRAYS = {
    "layer.1.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "bias": np.array([1.5, -2.0], np.float32),
    "none": np.zeros((0, 3), np.float32),
    "größe": np.array(2.5, np.float32),
}
TYPES = {"ids": np.arange(3, dtype=np.int64), "half": np.ones(3, np.float16)}


def test_a_file_is_the_one_that_the_library_writes(tmp_path):
    write_arrays(tmp_path / "ours", ARRAYS | TYPES)
    save_file(ARRAYS | TYPES, tmp_path / "theirs", metadata={"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_arrays_are_made_in_the_order_of_the_file_and_one_at_a_time(tmp_path):
    made = []

    def make(name):
        made.append(name)
        return ARRAYS[name]

    lazy = LazyArrays({name: array.shape for name, array in ARRAYS.items()}, make)
    write_arrays(tmp_path / "file", lazy)
    assert made == stored_order(lazy) == stored_order(ARRAYS) == sorted(ARRAYS)
    for name, array in load_file(tmp_path / "file").items():
        np.testing.assert_array_equal(array, ARRAYS[name])


def test_an_array_of_another_size_is_no_part_of_a_file(tmp_path):
    lazy = LazyArrays({"a": (2, 2)}, lambda name: np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=r"a is \[3\], not \[2, 2\]"):
        write_arrays(tmp_path / "file", lazy)


def test_a_file_is_read_array_by_array(tmp_path):
    write_arrays(tmp_path / "file", ARRAYS | TYPES)
    stored = stored_arrays(tmp_path / "file")
    assert {*stored} == {*ARRAYS, *TYPES}
    assert "nothing" not in stored
    for name, array in (ARRAYS | TYPES).items():
        np.testing.assert_array_equal(stored[name], array)
        assert stored[name].dtype == array.dtype
        assert stored.shapes[name] == array.shape
    with pytest.raises(KeyError):
        stored["nothing"]
    stored["bias"][0] = 1
    np.testing.assert_array_equal(stored["bias"], ARRAYS["bias"], "each time from the file")


def test_a_file_that_is_cut_off_is_refused(tmp_path):
    write_arrays(tmp_path / "file", ARRAYS)
    (tmp_path / "file").write_bytes((tmp_path / "file").read_bytes()[:-4])
    with pytest.raises(SafetensorError):
        stored_arrays(tmp_path / "file")
