"""What a teacher's wider vectors are projected on."""

import numpy as np
import pyarrow as pa
import pytest

from pipelines.lanes.teacher import TeacherVectors
from pipelines.runs.teacher_axes import principal_axes


@pytest.fixture
def vectors():
    generator = np.random.default_rng(4)
    found = generator.normal(size=(500, 12)) * np.linspace(3, 0.1, 12) + 0.5
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def test_the_axes_are_those_of_a_truncated_decomposition(vectors):
    axes = principal_axes(vectors.T @ vectors, 4)
    assert (axes.dtype, axes.shape) == (np.float32, (12, 4))
    np.testing.assert_allclose(axes.T @ axes, np.eye(4), atol=1e-6)
    _, sizes, directions = np.linalg.svd(vectors, full_matrices=False)
    np.testing.assert_allclose(np.abs(np.diag(directions[:4] @ axes)), 1, atol=1e-5)
    # The first holds most.
    along = np.linalg.norm(vectors @ axes, axis=0)
    np.testing.assert_allclose(along, sizes[:4], rtol=1e-5)
    # Which of an axis and its opposite is taken does not depend on the library.
    flipped = principal_axes(-(-vectors).T @ vectors, 4)
    np.testing.assert_allclose(axes, flipped, atol=1e-6)
    assert (axes[np.abs(axes).argmax(axis=0), np.arange(4)] > 0).all()


def test_vectors_are_projected_as_they_are_read(vectors):
    held = TeacherVectors(width=12, precision="fp32", source="x")
    column = held.write(vectors.astype(np.float32))
    axes = principal_axes(vectors.T @ vectors, 4)
    projected = held.along(axes).read(column)
    np.testing.assert_allclose(projected, vectors @ axes, atol=1e-6)
    assert held.read(pa.array([], pa.binary())).shape == (0, 12)
