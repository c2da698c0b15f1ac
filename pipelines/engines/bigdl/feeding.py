"""The path of granules from the lane files into the executors' JVMs."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.errors import EngineError, PipelineError
from pipelines.lanes.files import Granule
from pipelines.lanes.plan import first_lane
from pipelines.losses.candidates import Picks, Targets, granule_targets
from pipelines.runs.run import TrainingRun
from pipelines.settings import TrainingSettings

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

PART_TOKENS = 8 * 2**20
"""Tokens in a worker's memory: 32 MiB, and as much again during the read."""

Sizes = dict[tuple[int, int], tuple[int, int]]
"""By step and rank: tokens, and tokens with padding."""


@dataclass(frozen=True)
class StepRange:
    """Steps with their granules in memory together; `last` is one past the last."""

    first: int
    last: int


def replicas(training: TrainingSettings) -> int:
    """Return the copies of the model on a worker, at most one per thread, for equal shares."""
    granules = training.granules_per_step // training.workers
    return max(count for count in range(1, training.threads + 1) if granules % count == 0)


def parts_of(run: TrainingRun, tokens: int) -> Iterator[StepRange]:
    """Cut a run into parts with at most `tokens` on a worker, unless a single step has more."""
    granules = run.plan.granules_per_step // run.config.training.workers
    most = granules * run.manifest.granule * len(run.sides) * run.manifest.max_length
    steps = max(tokens // most, 1)
    for first in range(run.first_step, run.last_step, steps):
        yield StepRange(first, min(first + steps, run.last_step))


def part_bytes(
    context: SparkContext, run: TrainingRun, part: StepRange, sizes: Accumulator[Any]
) -> Any:
    """Return the steps of a part, as an RDD of bytes in the JVM with a partition for each worker.

    `sizes`, of :class:`SizesParam`, collects the size of each step.
    """
    workers = run.config.training.workers
    part_run = replace(run, first_step=part.first, last_step=part.last)
    ranks = context.parallelize(range(workers), workers)
    packed_ranks: Any = ranks.mapPartitionsWithIndex(partial(packed_steps, part_run, sizes))
    return packed_ranks._to_java_object_rdd()


def packed_steps(
    run: TrainingRun, sizes: Accumulator[Any], rank: int, _: Iterator[int]
) -> Iterator[bytes]:
    """Yield a worker's share of each step of a part; `sizes` collects the sizes of the steps.

    Runs on an executor, in Spark's own Python worker.

    Raises:
        EngineError: A lane is unreadable.
    """
    workers = run.config.training.workers
    try:
        reader = run.lane_reader()
        for step, addresses in reader.ahead(run.shares(rank, workers)):
            granules = [reader.granule(address) for address in addresses]
            tokens, padded = (
                sum(getattr(granule, size) for granule in granules)
                for size in ("tokens", "padded_tokens")
            )
            sizes.add({(step.index, rank): (tokens, padded)})
            yield packed(step.index, granules, run)
    except (OSError, PipelineError) as error:
        lane = first_lane(rank, workers, run.plan.granules_per_step)
        cause = f"{type(error).__name__}: {error}"
        host = socket.gethostname()
        raise EngineError("bigdl", cause, rank=rank, host=host, lane=lane) from error


def packed(step: int, granules: list[Granule], run: TrainingRun) -> bytes:
    """Return granules as bytes for the class `Granules` of :mod:`pipelines.engines.bigdl.jvm`.

    The granules have equal numbers of examples. The run has the embedded sides and the targets of
    the loss: scores, or the number of the example's own text, from 1.
    """
    sides = [granule.sides[name] for granule in granules for name in run.sides]
    ids = [packed_texts(side.token_ids, side.lengths) for side in sides]
    lengths = [side.lengths for side in sides]
    found = [granule_targets(run.config.objective, granule, run.sides) for granule in granules]
    # dllib counts from 1.
    targets = [picks.own + 1 if isinstance(picks, Picks) else picks for picks in found]
    excluded = [_locations(picks, run) for picks in found]
    counts = [len(locations) for locations in excluded]
    integers = [np.concatenate(list(arrays)) for arrays in (ids, lengths, [counts], excluded)]
    scores = np.concatenate(targets)
    head = [step, len(granules), len(integers[0]), len(integers[1]), len(scores)]
    numbers = np.concatenate([head, *integers]).astype("<i4")
    return b"".join([numbers.tobytes(), scores.astype("<f4").tobytes()])


def packed_texts(token_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the ids of padded texts [texts, width] one behind the other."""
    return token_ids[np.arange(token_ids.shape[1]) < lengths[:, None]]


def _locations(targets: Targets, run: TrainingRun) -> np.ndarray:
    """Return the indices of excluded candidates in a granule's similarities."""
    if not isinstance(targets, Picks):
        return np.empty(0, np.int64)
    anchors, candidates = targets.excluded.T
    locations: np.ndarray = anchors * (len(run.sides) - 1) * len(targets.own) + candidates
    return locations
