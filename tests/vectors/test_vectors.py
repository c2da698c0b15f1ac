"""Vectors as columns, and int8 and back, with the error that is promised."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pipelines.errors import InputError
from pipelines.settings import Config
from pipelines.tokens.start import default_start
from pipelines.vectors.embedding import (
    LEVELS,
    model_folder,
    quantised,
    restored,
    shortened,
    vector_array,
    vectors_of,
)
from pipelines.vectors.parts import read_inputs
from pipelines.vectors.plan import options_for

VALUES = st.floats(-1e3, 1e3, width=32, allow_subnormal=False)


@given(arrays(np.float32, st.tuples(st.integers(0, 5), st.integers(1, 9)), elements=VALUES))
def test_quantising_is_off_by_half_a_scale_at_most(vectors) -> None:
    values, scales = quantised(vectors)
    assert values.dtype == np.int8
    assert np.abs(values.astype(int)).max(initial=0) <= LEVELS
    error = np.abs(restored(values, scales).astype(float) - vectors)
    assert (error <= scales[:, None] * (0.5 + 1e-4)).all()
    zero = (vectors == 0).all(axis=1)
    assert (restored(values, scales)[zero] == 0).all()


def test_quantised_unit_vectors_keep_their_direction() -> None:
    vectors = np.random.default_rng(4).standard_normal((500, 384)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    back = restored(*quantised(vectors))
    cosines = (back * vectors).sum(axis=1) / np.linalg.norm(back, axis=1)
    assert cosines.min() >= 0.9998
    bound = np.sqrt(384) / (2 * LEVELS) * np.abs(vectors).max(axis=1)
    assert (np.linalg.norm(back - vectors, axis=1) <= bound).all()


def test_shortened_vectors_have_length_one_where_the_model_says_so() -> None:
    vectors = np.array([[3.0, 4.0, 12.0], [0.0, 0.0, 5.0]], np.float32)
    np.testing.assert_allclose(shortened(vectors, 2, normalise=True), [[0.6, 0.8], [0, 0]])
    np.testing.assert_array_equal(shortened(vectors, 2, normalise=False), vectors[:, :2])
    assert shortened(vectors, 3, normalise=True) is vectors


@pytest.mark.parametrize("kind", [np.float32, np.int8])
def test_columns_and_back(kind) -> None:
    values = np.arange(6).reshape(3, 2).astype(kind)
    column = vector_array(values, np.array([True, False, True, True]))
    column.validate(full=True)
    assert column.to_pylist() == [[0, 1], None, [2, 3], [4, 5]]
    np.testing.assert_array_equal(vectors_of(column.drop_null()), values)
    np.testing.assert_array_equal(vectors_of(column.slice(2)), values[1:])
    nothing = vector_array(values[:0], np.zeros(2, bool))
    assert nothing.to_pylist() == [None, None]


def test_vectors_of_several_sizes_are_refused() -> None:
    for rows in ([[1.0], [2.0, 3.0]], [[1.0], [2.0, 3.0, 4.0]]):
        with pytest.raises(ValueError, match="differ in length"):
            vectors_of(pa.array(rows, pa.list_(pa.float32())))


def test_the_packaged_model_has_a_name() -> None:
    assert options_for(Config(), "default").model == default_start()
    assert model_folder("default") == default_start()


def test_a_folder_with_the_name_of_the_packaged_model_is_not_passed_over(tmp_path, monkeypatch):
    (tmp_path / "default").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"^embedding\.model: .* folder of that name\. Write \./"):
        model_folder("default")
    assert model_folder("./default").absolute() == tmp_path / "default"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("a.csv", "format to csv"), ("a.jsonl.gz", "format to jsonl"), ("a.csv.parquet", "Repair it")],
)
def test_the_ending_of_a_file_that_is_not_parquet_names_its_format(tmp_path, name, remedy) -> None:
    (tmp_path / name).write_text("text")
    with pytest.raises(InputError, match=remedy):
        read_inputs([tmp_path / name])
