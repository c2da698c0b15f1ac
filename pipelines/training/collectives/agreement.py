"""Checks that all workers hold the same state after the first step. Runs on executors.

A worker whose gradients were not averaged learns alone, and its loss falls all the same.
"""

from __future__ import annotations

import math

import numpy as np

from pipelines.runs.checkpoint import Checkpoint
from pipelines.training.collectives.base import Collectives

TOLERANCE = 1e-3
"""Relative to an array's norm. Processors of different types round differently, by far less; the
gradients of different texts differ by about their norm."""


def check_agreement(checkpoint: Checkpoint, collectives: Collectives, among: str = "ranks") -> None:
    """Compares weights and moments by two numbers of each; all workers call it. After a step.

    The first moments hold the gradients of the step, so they differ even where a small learning
    rate has hardly changed the weights.

    Args:
        checkpoint: The worker's own state.
        collectives: Between the workers.
        among: What their ranks number, if not all workers of the run.

    Raises:
        FloatingPointError: A worker's state is not finite, and so has nothing to be compared by.
        RuntimeError: They differ; it names the ranks and the first array that differs.
    """
    arrays = {**checkpoint.weights, **checkpoint.moments}
    own = np.array([[_numbers(array) for array in arrays.values()]])
    # [workers, arrays, 2]
    everywhere = np.asarray(collectives.all_gather(own))
    finite = np.isfinite(everywhere).all(axis=(0, 2))
    if not finite.all():
        name = list(arrays)[int(np.flatnonzero(~finite)[0])]
        raise FloatingPointError(
            f"after step {checkpoint.step} {name} holds numbers that are not finite:"
            " lower training.learning_rate"
        )
    allowed = TOLERANCE * everywhere[:1, :, 1:]
    agree = (np.abs(everywhere - everywhere[:1]) <= allowed).all(axis=2)
    if agree.all():
        return
    ranks = np.flatnonzero(~agree.all(axis=1)).tolist()
    name = list(arrays)[int(np.flatnonzero(~agree.all(axis=0))[0])]
    raise RuntimeError(
        f"after step {checkpoint.step} the state of {among} {ranks} is not that of 0, first in"
        f" {name}: the workers did not exchange their gradients"
    )


def _numbers(array: np.ndarray) -> tuple[float, float]:
    """Sum and norm."""
    # Squares of second moments leave the range of fp32.
    flat = array.reshape(-1).astype(np.float64)
    # Infinities of both signs add up to no number.
    with np.errstate(invalid="ignore"):
        return float(flat.sum()), math.sqrt(float(np.dot(flat, flat)))
