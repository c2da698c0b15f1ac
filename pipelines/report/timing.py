"""Where the workers' time went, from the lines that a run logs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PARTS = {
    "arithmetic": "arithmetic",
    "communication": "communication",
    "arithmetic_and_communication": "arithmetic and communication",
    "data": "waiting for data",
    "other": "everything else",
}
"""The parts of a worker's seconds that a line may hold, in the order in which they are shown."""

Lines = Sequence[Mapping[str, Any]]
"""Of ``metrics.jsonl``."""


@dataclass(frozen=True)
class WorkerTime:
    """What a worker did in a run, or several did together.

    Attributes:
        rank: Its number; None where it is of all of them.
        examples: That it trained on.
        tokens: Of these.
        seconds: Of its life, from when it was ready.
        parts: Seconds by part, of :data:`PARTS`.
    """

    rank: int | None
    examples: float
    tokens: float
    seconds: float
    parts: Mapping[str, float]

    @property
    def computed(self) -> float:
        """Seconds of arithmetic, with what was not timed apart from it."""
        return math.fsum(
            self.parts.get(part, 0.0) for part in ("arithmetic", "arithmetic_and_communication")
        )

    @property
    def examples_per_second(self) -> float:
        """By the clock; NaN where no time has passed."""
        return self.examples / self.seconds if self.seconds > 0 else math.nan

    @property
    def own_pace(self) -> float:
        """Examples a second of arithmetic alone; NaN where that is not known."""
        seconds = self.parts.get("arithmetic", 0.0)
        return self.examples / seconds if seconds > 0 else math.nan


def worker_times(lines: Lines) -> list[WorkerTime]:
    """The totals of each worker, by rank; none where the run did not measure them."""
    of_ranks: dict[int, list[Mapping[str, Any]]] = {}
    for line in lines:
        for worker in line.get("workers", ()):
            of_ranks.setdefault(worker["rank"], []).append(worker)
    return [_sum(rank, of_ranks[rank]) for rank in sorted(of_ranks)]


def together(workers: Sequence[WorkerTime]) -> WorkerTime:
    """The sum over all workers, so that its seconds are more than the clock's."""
    return WorkerTime(
        rank=None,
        examples=math.fsum(worker.examples for worker in workers),
        tokens=math.fsum(worker.tokens for worker in workers),
        seconds=math.fsum(worker.seconds for worker in workers),
        parts={
            part: math.fsum(worker.parts.get(part, 0.0) for worker in workers)
            for part in PARTS
            if any(part in worker.parts for worker in workers)
        },
    )


def shares(time: WorkerTime) -> dict[str, float]:
    """The parts of a time as shares of it."""
    whole = max(math.fsum(time.parts.values()), 1e-12)
    return {part: seconds / whole for part, seconds in time.parts.items()}


def shares_by_group(groups: Sequence[Lines]) -> dict[str, list[float]]:
    """The shares of all workers' time by part, a number for each group; none if not measured."""
    by_group = [shares(together(worker_times(group))) for group in groups]
    return {
        part: [group.get(part, 0.0) for group in by_group]
        for part in PARTS
        if any(part in group for group in by_group)
    }


def paces_by_group(groups: Sequence[Lines], *, own: bool) -> dict[int, list[float]]:
    """Examples a second of each worker, a number for each group; NaN where it had no part.

    Args:
        groups: Lines of the run that are next to one another.
        own: Whether a second is one of its own arithmetic, and not one of the clock.
    """
    by_group = [{worker.rank: worker for worker in worker_times(group)} for group in groups]
    ranks = sorted({rank for group in by_group for rank in group if rank is not None})
    return {rank: [_pace(group.get(rank), own=own) for group in by_group] for rank in ranks}


def _pace(worker: WorkerTime | None, *, own: bool) -> float:
    if worker is None:
        return math.nan
    return worker.own_pace if own else worker.examples_per_second


def _sum(rank: int, lines: Lines) -> WorkerTime:
    return WorkerTime(
        rank=rank,
        examples=math.fsum(line["examples"] for line in lines),
        tokens=math.fsum(line["tokens"] for line in lines),
        seconds=math.fsum(line["seconds"] for line in lines),
        parts={
            part: math.fsum(line.get(part, 0.0) for line in lines)
            for part in PARTS
            if any(part in line for line in lines)
        },
    )
