"""Granules on their way from the lane files into the executors' JVMs."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.errors import EngineError
from pipelines.lanes.files import Granule, LaneReader
from pipelines.lanes.plan import first_lane
from pipelines.objectives import OBJECTIVES
from pipelines.settings import TrainingSettings
from pipelines.training.run import TrainingRun

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

PART_TOKENS = 8 * 2**20
"""Tokens that a worker holds at once: 32 MiB, and as much again while they are read."""

Sizes = dict[tuple[int, int], tuple[int, int]]
"""By step and rank: tokens, and tokens with padding."""


@dataclass(frozen=True)
class Part:
    """Steps whose granules are in memory together.

    Attributes:
        first: The first step.
        last: One past the last.
    """

    first: int
    last: int


def replicas(training: TrainingSettings) -> int:
    """Copies of the model on a worker, each with a thread: they share its granules evenly."""
    granules = training.granules_per_step // training.workers
    return max(count for count in range(1, training.threads + 1) if granules % count == 0)


def parts_of(run: TrainingRun, tokens: int) -> Iterator[Part]:
    """Cuts a run into parts.

    Args:
        run: The run.
        tokens: How many a worker may hold at most, unless a single step has more.
    """
    granules = run.plan.granules_per_step // run.config.training.workers
    most = granules * run.manifest.granule * len(run.sides) * run.manifest.max_length
    steps = max(tokens // most, 1)
    for first in range(run.first_step, run.last_step, steps):
        yield Part(first, min(first + steps, run.last_step))


def part_bytes(context: SparkContext, run: TrainingRun, part: Part, sizes: Accumulator[Any]) -> Any:
    """The steps of a part, as an RDD of bytes in the JVM with a partition for each worker.

    Args:
        context: The Spark context.
        run: The run.
        part: Its part.
        sizes: Of :class:`SizesParam`; told the size of each step.
    """
    workers = run.config.training.workers
    own = replace(run, first_step=part.first, last_step=part.last)
    ranks = context.parallelize(range(workers), workers)
    packed_ranks: Any = ranks.mapPartitionsWithIndex(partial(packed_steps, own, sizes))
    return packed_ranks._to_java_object_rdd()


def packed_steps(
    run: TrainingRun, sizes: Accumulator[Any], rank: int, _: Iterator[int]
) -> Iterator[bytes]:
    """A worker's share of each step. Runs on an executor, in Spark's own Python worker.

    Args:
        run: With the steps of one part.
        sizes: Told the size of each step.
        rank: Number of the worker.

    Raises:
        EngineError: The lanes cannot be read.
    """
    workers = run.config.training.workers
    reader = LaneReader(run.lanes_folder, run.manifest, run.sides)
    scored = OBJECTIVES[run.config.objective.name].needs == "scores"
    try:
        for step, addresses in run.shares(rank, workers):
            granules = [reader.granule(address) for address in addresses]
            tokens, slots = (
                sum(getattr(one, of) for one in granules) for of in ("tokens", "slots")
            )
            sizes.add({(step.index, rank): (tokens, slots)})
            yield packed(step.index, granules, run, scored=scored)
    except (OSError, ValueError) as error:
        lane = first_lane(rank, workers, run.plan.granules_per_step)
        cause = f"{type(error).__name__}: {error}"
        host = socket.gethostname()
        raise EngineError("bigdl", cause, rank=rank, host=host, lane=lane) from error


def packed(step: int, granules: list[Granule], run: TrainingRun, *, scored: bool) -> bytes:
    """Granules as the class `Granules` of :mod:`pipelines.jvm` reads them.

    Args:
        step: Number of their step.
        granules: Of the same number of examples.
        run: Says which sides are embedded.
        scored: Whether the loss compares with the scores; otherwise with the number of the
            example's own text, from 1.
    """
    sides = [granule.sides[name] for granule in granules for name in run.sides]
    ids = [
        side.token_ids[np.arange(side.token_ids.shape[1]) < side.lengths[:, None]] for side in sides
    ]
    lengths = [side.lengths for side in sides]
    targets = [_scores(one) if scored else np.arange(1, one.examples + 1) for one in granules]
    numbers = [np.concatenate(list(arrays)) for arrays in (ids, lengths, targets)]
    head = np.array([step, len(granules), *map(len, numbers)], "<i4")
    types = ("<i4", "<i4", "<f4")
    body = (array.astype(kind).tobytes() for array, kind in zip(numbers, types, strict=True))
    return b"".join([head.tobytes(), *body])


def _scores(granule: Granule) -> np.ndarray:
    assert granule.scores is not None, "the driver has seen that there are scores"
    return granule.scores
