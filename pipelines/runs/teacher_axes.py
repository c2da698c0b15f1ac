"""A teacher's vectors in as many numbers as the encoder's embeddings have.

They are projected on the axes along which they differ most from zero. No projection to as many
dimensions keeps their inner products better (Eckart and Young, "The approximation of one matrix by
another of lower rank", Psychometrika 1936); vectors are not centred, which would change cosines.
The first axis holds most, so the projected vectors may be cut.

The axes are part of what a run learns: they are written into its folder when it begins, and stay.
"""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np

from pipelines.files import storage
from pipelines.files.run_folder import RunFolder
from pipelines.lanes.plan import GranuleAddress
from pipelines.runs.run import TrainingRun

SAMPLED_GRANULES = 512
"""From which the axes are computed, evenly spread over the lanes."""


def with_axes(run: TrainingRun, width: int) -> TrainingRun:
    """The run with the axes on which its teacher's vectors are projected, if they are.

    Args:
        run: Its folder gets the axes, or has them already.
        width: Of an embedding.
    """
    held = run.teacher
    if held is None or held.width <= width or not run.config.objective.projects_teacher:
        return run
    path = RunFolder(run.run_folder).teacher_axes
    if not path.is_file():
        axes = principal_axes(_second_moment(run, held.width), width)
        # Not by its name, to which numpy would add an ending.
        with storage.built_file(path) as file, file.open("wb") as opened:
            np.save(opened, axes)
    return replace(run, teacher_axes=np.load(io.BytesIO(path.read_bytes())))


def principal_axes(moment: np.ndarray, count: int) -> np.ndarray:
    """The axes along which vectors have the largest mean square.

    Args:
        moment: [width, width], the sum or mean of the vectors' outer products.
        count: How many axes.

    Returns:
        fp32 [width, count], orthogonal and of length 1, the largest first. Of an axis and its
        opposite the one is taken whose largest number is positive.
    """
    _, axes = np.linalg.eigh(moment)
    axes = axes[:, ::-1][:, :count]
    largest = np.abs(axes).argmax(axis=0)
    signs = np.sign(axes[largest, np.arange(axes.shape[1])])
    found: np.ndarray = (axes * signs).astype(np.float32)
    return found


def _second_moment(run: TrainingRun, width: int) -> np.ndarray:
    """The sum of the outer products of the teacher's vectors in some granules."""
    manifest = run.manifest
    granules = manifest.lanes * manifest.rows
    total = np.zeros((width, width))
    reader = run.lane_reader()
    for number in np.linspace(0, granules - 1, min(granules, SAMPLED_GRANULES)).astype(int):
        row, lane = divmod(int(number), manifest.lanes)
        for vectors in reader.granule(GranuleAddress(lane=lane, row=row)).teacher.values():
            total += vectors.T @ vectors
    return total
