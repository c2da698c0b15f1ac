"""Measures the worker's wait for granules: a training's `data_seconds` at the speed of a GPU.

Steps compute nothing, and last as long as on an accelerator of so many pairs a second. The lanes
are on a local disk, in its cache. Two feeds are timed in turn, by the clock of a training's steps:
one that reads a step's granules when they are asked for, and the feed of a training, which reads
them during the step before. The processor's time for a granule does not vary with other load.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from rich.table import Table

from pipelines.lanes.files import LaneManifest
from pipelines.lanes.plan import BatchPlan
from pipelines.lanes.reader import LaneReader
from pipelines.progress import next_part
from pipelines.progress.screen import Screen
from pipelines.settings import Config
from pipelines.training.loop import StepTimer
from pipelines.training.steppers.base import StepWork, one_ahead
from pipelines_bench.bucket import GRANULES_PER_PACED_STEP, write_random_lanes

LANES, ROWS = 16, 80
PACES = (5_000, 20_000)
STEPS, ROUNDS = 100, 5
FEEDS: dict[str, Callable[[Iterator[StepWork]], Iterator[StepWork]]] = {
    "when asked for": iter,
    "one step ahead": one_ahead,
}


def measure(config: Config, data: str | None) -> dict[str, Any]:
    """Runs the comparison.

    Args:
        config: Is not used.
        data: A prepared folder; None for lanes of random tokens, as long as sentences.

    Returns:
        ``pairs_per_cpu_second`` that the feed can read, and ``waiting_share``, of a step, by pace
        and feed: the median of the rounds.
    """
    with TemporaryDirectory(prefix="waits-") as work:
        local = Path(data) / "lanes" if data else Path(work) / "lanes"
        manifest = LaneManifest.load(local) if data else write_random_lanes(local, LANES, ROWS)
        next_part("the feed alone")
        rates = [_pairs_per_cpu_second(local, manifest) for _ in range(ROUNDS)]
        shares: dict[int, dict[str, list[float]]] = {
            pace: {name: [] for name in FEEDS} for pace in PACES
        }
        for number in range(ROUNDS):
            for pace, of_pace in shares.items():
                for name in FEEDS:
                    next_part(f"round {number + 1} of {ROUNDS}, {pace:,} pairs/s, {name}")
                    of_pace[name].append(_waiting_share(local, manifest, pace, name))
    _print(shares)
    return {
        "pairs_per_cpu_second": round(statistics.median(rates)),
        "waiting_share": {
            str(pace): {name: round(statistics.median(each), 5) for name, each in of_pace.items()}
            for pace, of_pace in shares.items()
        },
    }


def works(folder: Path, manifest: LaneManifest) -> Iterator[StepWork]:
    """The granules of :data:`STEPS` steps, read as they are asked for."""
    plan = BatchPlan(
        lanes=manifest.lanes,
        rows=manifest.rows,
        granules_per_step=GRANULES_PER_PACED_STEP,
        seed=1,
    )
    reader = LaneReader(folder, manifest)
    for step in plan.steps(0, STEPS):
        yield StepWork.of(step, [reader.granule(address) for address in step.granules])


def _pairs_per_cpu_second(folder: Path, manifest: LaneManifest) -> float:
    began = time.process_time()
    granules = sum(len(work.granules) for work in works(folder, manifest))
    return granules * manifest.granule / (time.process_time() - began)


def _waiting_share(folder: Path, manifest: LaneManifest, pace: int, name: str) -> float:
    """The seconds of waiting over those of the steps, all but the first."""
    records: list[Any] = []
    timer = StepTimer(SimpleNamespace(step_done=records.append))  # type: ignore[arg-type]
    seconds = GRANULES_PER_PACED_STEP * manifest.granule / pace
    for work in timer.timed(FEEDS[name](works(folder, manifest))):
        with timer.arithmetic():
            time.sleep(seconds)
        timer.step_done(work, 0.0, 0.0, None)
    waited, whole = (
        float(sum(getattr(record, name) for record in records[1:]))
        for name in ("data_seconds", "step_seconds")
    )
    return waited / whole


def _print(shares: dict[int, dict[str, list[float]]]) -> None:
    table = Table("pairs/s", "granules are read", "waiting, of a step (median)", "all rounds")
    for pace, of_pace in shares.items():
        for name, values in of_pace.items():
            table.add_row(
                f"{pace:,}",
                name,
                f"{100 * statistics.median(values):.2f} %",
                ", ".join(f"{100 * value:.2f}" for value in values),
            )
    Screen().print(table)
