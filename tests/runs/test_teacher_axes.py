"""What a teacher's wider vectors are projected on."""

import numpy as np
import pyarrow as pa
import pytest
from lanes_factory import write_small_lanes

from pipelines.lanes.files import TeacherVectors
from pipelines.lanes.plan import BatchPlan, GranuleAddress
from pipelines.runs.run import TrainingRun, principal_axes, with_axes
from pipelines.settings.load import parse


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


def a_run(folder, manifest, **objective) -> TrainingRun:
    config = parse({"objective": objective, "teacher": {"model": "teacher"}})
    plan = BatchPlan(lanes=manifest.lanes, rows=manifest.rows, granules_per_step=2, seed=1)
    return TrainingRun(
        config=config,
        plan=plan,
        manifest=manifest,
        lanes_folder=folder / "lanes",
        run_folder=folder / "run",
        first_step=0,
        last_step=4,
    )


def test_a_run_begins_with_the_axes_of_its_lanes_and_keeps_them(tmp_path, vectors):
    held = vectors[:80].reshape(40, 2, 12).astype(np.float32)
    manifest = write_small_lanes(tmp_path / "lanes", vectors=held)
    run = a_run(tmp_path, manifest, name="embedding_distillation")
    begun = with_axes(run, 4)
    granule = begun.lane_reader().granule(GranuleAddress(lane=1, row=2))
    axes = principal_axes(vectors[:80].T @ vectors[:80], 4)
    # Lane 1 holds the second half, and row 2 the third four of it.
    expected = held[28:32] @ axes
    np.testing.assert_allclose(granule.teacher["anchor"], expected[:, 0], atol=1e-5)
    np.testing.assert_allclose(granule.teacher["positive"], expected[:, 1], atol=1e-5)
    # What a run has begun with stays, whatever would be computed.
    np.save(tmp_path / "run" / "teacher_axes.npy", np.eye(12, 4, dtype=np.float32))
    again = with_axes(run, 4).lane_reader().granule(GranuleAddress(lane=1, row=2))
    np.testing.assert_array_equal(again.teacher["anchor"], held[28:32, 0, :4])


@pytest.mark.parametrize(
    ("width", "objective"),
    [
        (12, {"name": "embedding_distillation"}),
        (4, {"name": "embedding_distillation", "reduction": "cut"}),
        (4, {"name": "similarity_distillation"}),
        (4, {"name": "in_batch_negatives"}),
    ],
)
def test_vectors_that_fit_or_are_not_to_be_projected_stay(tmp_path, vectors, width, objective):
    held = vectors[:80].reshape(40, 2, 12).astype(np.float32)
    manifest = write_small_lanes(tmp_path / "lanes", vectors=held)
    run = a_run(tmp_path, manifest, **objective)
    assert with_axes(run, width) is run
    assert not (tmp_path / "run").exists()
