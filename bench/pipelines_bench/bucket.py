"""Measures the cost of lanes in a bucket: the same steps from there and from a local disk.

The bucket is 20 ms away, at 100 MB/s (:mod:`pipelines_bench.slow_store`). Every run from it
begins without a cache, which is the worst that can be: later steps find more of their granules
there. The machine's speed drifts, so that both are run in turn, and the median of the rounds'
ratios counts. Paced steps last as long as on an accelerator of so many pairs a second, and compute
nothing: they show from which speed on a worker has to wait.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
from rich.table import Table

from pipelines.files.locations import RemotePath
from pipelines.lanes.files import COUNTED, LaneManifest, lane_schema, write_lanes
from pipelines.lanes.plan import BatchPlan, plan_segments
from pipelines.lanes.reader import Fetching, LaneReader
from pipelines.progress import next_part
from pipelines.progress.screen import Screen
from pipelines.settings import Config
from pipelines.settings.spark import StorageSettings
from pipelines.training.steppers.base import StepWork
from pipelines_bench.slow_store import BUCKET, slow_store
from pipelines_bench.trainers import new_stepper

logger = logging.getLogger(__name__)

SECONDS_AWAY = 0.02
MEGABYTES_A_SECOND = 100.0
LANES, ROWS, GRANULE = 48, 320, 64
TOKENS = (8, 64)
VOCABULARY = 30522
CACHE_BYTES = 20 * 10**9
ROUNDS = 5
TRIED_ROUNDS = 3
ENCODER_STEPS = 16
PACED_SECONDS = 5.0
GRANULES_PER_PACED_STEP = 8
PACES = (1_000, 5_000, 10_000, 20_000)
TRIED_PACE = 10_000
COLUMNS = ("positive",)


@dataclass(frozen=True)
class Way:
    """A way to fetch lanes.

    Attributes:
        fetching: Sizes of blocks and of what is fetched ahead.
        cache_bytes: What is kept on the disk.
    """

    fetching: Fetching = field(default_factory=Fetching)
    cache_bytes: int = CACHE_BYTES


AS_IT_IS = Way()
TRIED: Mapping[str, Way] = {
    "as it is": AS_IT_IS,
    "granules alone, no cache": Way(cache_bytes=0),
    "blocks of 32 KiB": Way(Fetching(block_bytes=32 * 2**10)),
    "blocks of 512 KiB": Way(Fetching(block_bytes=512 * 2**10)),
    "blocks of 4 MiB": Way(Fetching(block_bytes=4 * 2**20)),
    "4 requests at a time": Way(Fetching(requests=4)),
    "64 requests at a time": Way(Fetching(requests=64)),
    "16 granules ahead": Way(Fetching(most_ahead=16)),
    "64 granules ahead": Way(Fetching(most_ahead=64)),
    "2,048 granules ahead": Way(Fetching(most_ahead=2048)),
}


@dataclass(frozen=True)
class Taken:
    """What some steps took.

    Attributes:
        start_seconds: Until the granules of the first step were there; a run loads its encoder
            meanwhile.
        seconds: From then to the end of the last step.
        cpu_seconds: Of the process, likewise.
    """

    start_seconds: float
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class Round:
    """What the same steps took from the disk, and from the bucket."""

    near: Taken
    far: Taken

    @property
    def ratio(self) -> float:
        """Time from the bucket over that from the disk."""
        return self.far.seconds / self.near.seconds


@dataclass(frozen=True)
class Steps:
    """Steps that are made from both places.

    Attributes:
        count: How many.
        granules: Of each.
        make: Makes one.
    """

    count: int
    granules: int
    make: Callable[[StepWork], object]

    def taken(self, manifest: LaneManifest, opened: Callable[[], LaneReader]) -> Taken:
        """Makes them.

        Args:
            manifest: Of the lanes.
            opened: Opens the lanes.
        """
        plan = BatchPlan(
            lanes=manifest.lanes, rows=manifest.rows, granules_per_step=self.granules, seed=1
        )
        opening = began = time.perf_counter()
        cpu_began = time.process_time()
        reader = opened()
        for step, addresses in reader.ahead((s, s.granules) for s in plan.steps(0, self.count)):
            granules = [reader.granule(address) for address in addresses]
            if step.index == 0:
                began, cpu_began = time.perf_counter(), time.process_time()
            self.make(StepWork.of(step, granules))
        return Taken(
            start_seconds=began - opening,
            seconds=time.perf_counter() - began,
            cpu_seconds=time.process_time() - cpu_began,
        )


@dataclass(frozen=True)
class Places:
    """The same lanes twice.

    Attributes:
        manifest: What they hold.
        local: On a disk of this machine.
        remote: In the bucket.
        work: An empty folder.
    """

    manifest: LaneManifest
    local: Path
    remote: RemotePath
    work: Path

    def rounds(self, steps: Steps, way: Way = AS_IT_IS, count: int = ROUNDS) -> list[Round]:
        """What steps take from both places, in turn."""
        rounds = []
        for number in range(count):
            next_part(f"steps of {steps.granules} granules, round {number + 1} of {count}")
            rounds.append(self._round(steps, way))
        logger.info("bucket over disk: %s", ", ".join(f"{one.ratio:.3f}" for one in rounds))
        return rounds

    def _round(self, steps: Steps, way: Way) -> Round:
        with TemporaryDirectory(dir=self.work) as cache:
            options = self.remote.store.options.model_copy(update={"cache_folder": cache})
            folder = replace(self.remote, store=replace(self.remote.store, options=options))
            far = steps.taken(
                self.manifest,
                lambda: LaneReader(
                    folder, self.manifest, cache_bytes=way.cache_bytes, fetching=way.fetching
                ),
            )
        near = steps.taken(self.manifest, lambda: LaneReader(self.local, self.manifest))
        return Round(near, far)


def measure(config: Config, data: str | None) -> dict[str, Any]:
    """Runs the comparisons.

    Args:
        config: The encoder and the training of the steps that compute.
        data: A prepared folder; None for lanes of random tokens, as long as sentences.

    Returns:
        ``encoder_time_ratio`` and ``encoder_cpu_ratio`` of steps that compute;
        ``paced_time_ratio`` by pairs a second, and ``tried_time_ratio`` of other ways to fetch. All
        are of the bucket over the disk, the medians of the rounds, from the first granules on.
    """
    with ExitStack() as stack:
        places, in_namespace = _places(stack, data)
        stepper = new_stepper(config, places.manifest, places.local)
        rate = config.training.learning_rate
        computed = Steps(ENCODER_STEPS, 1, lambda work: stepper.step(work, rate))
        # Not a first step, which compiles and allocates.
        replace(computed, count=2).taken(
            places.manifest, lambda: LaneReader(places.local, places.manifest)
        )
        next_part("steps that compute")
        encoder = places.rounds(computed)
        granule = places.manifest.granule
        paced = {pace: places.rounds(paced_steps(pace, granule)) for pace in PACES}
        same = paced_steps(TRIED_PACE, granule)
        tried = {name: places.rounds(same, way, TRIED_ROUNDS) for name, way in TRIED.items()}
    rows = {"the encoder": encoder}
    rows |= {f"{pace:,} pairs/s": rounds for pace, rounds in paced.items()}
    rows |= {f"{TRIED_PACE:,} pairs/s, {name}": rounds for name, rounds in tried.items()}
    _print(rows)
    return {
        "in_namespace": in_namespace,
        "encoder_time_ratio": _median_ratio(encoder),
        "encoder_cpu_ratio": round(
            statistics.median(one.far.cpu_seconds / one.near.cpu_seconds for one in encoder), 4
        ),
        "paced_time_ratio": {str(pace): _median_ratio(rounds) for pace, rounds in paced.items()},
        "tried_time_ratio": {name: _median_ratio(rounds) for name, rounds in tried.items()},
    }


def _places(stack: ExitStack, data: str | None) -> tuple[Places, bool]:
    """The lanes, and whether the server that has them is in a namespace."""
    work = Path(stack.enter_context(TemporaryDirectory(prefix="bucket-")))
    local = Path(data).absolute() / "lanes" if data else work / "lanes"
    manifest = LaneManifest.load(local) if data else write_random_lanes(local)
    endpoint, in_namespace = stack.enter_context(
        slow_store(local.parent, SECONDS_AWAY, MEGABYTES_A_SECOND)
    )
    options = StorageSettings(s3_endpoint=endpoint, s3_region="us-east-1", anonymous=True)
    remote = RemotePath.parse(f"s3://{BUCKET}/{local.name}", options)
    return Places(manifest, local, remote, work), in_namespace


def paced_steps(pace: int, granule: int) -> Steps:
    """Steps that last as long as on an accelerator.

    Args:
        pace: Pairs that it makes a second.
        granule: Pairs of a granule.
    """
    each = GRANULES_PER_PACED_STEP * granule / pace
    count = max(round(PACED_SECONDS / each), 2)
    return Steps(count, GRANULES_PER_PACED_STEP, lambda _: time.sleep(each))


def write_random_lanes(folder: Path, lanes: int = LANES, rows: int = ROWS) -> LaneManifest:
    """Writes lanes of pairs of random tokens, of even length.

    Args:
        folder: Is made.
        lanes: Number of lanes.
        rows: Granules in a lane.
    """
    generator = np.random.default_rng(1)
    counts = dict.fromkeys(COUNTED, 0)
    checksums: list[str] = []
    for lane in range(lanes):
        batches = (_random_granule(generator, lane, row) for row in range(rows))
        for written in write_lanes(
            batches,
            folder=folder,
            columns=COLUMNS,
            granule=GRANULE,
            rows_per_part=rows,
            vocabulary=VOCABULARY,
        ):
            summary = written.to_pylist()[0]
            checksums.append(summary["checksum"])
            counts = {name: counts[name] + summary[name] for name in counts}
    examples = lanes * rows * GRANULE
    manifest = LaneManifest(
        lanes=lanes,
        granule=GRANULE,
        rows=rows,
        rows_per_part=rows,
        segments=plan_segments({TOKENS[1]: examples}, lanes, GRANULE),
        examples=examples,
        left_over={},
        granules_per_step=1,
        same_group_in_step=0,
        tokens=counts["tokens"],
        slots=counts["slots"],
        vocabulary=VOCABULARY,
        max_length=TOKENS[1],
        paired=True,
        negatives=0,
        scored=False,
        candidates_scored=False,
        teacher=None,
        checksums=tuple(checksums),
    )
    manifest.save(folder)
    return manifest


def _random_granule(generator: np.random.Generator, lane: int, row: int) -> pa.RecordBatch:
    def texts() -> pa.Array:
        lengths = generator.integers(*TOKENS, GRANULE, endpoint=True)
        ids = generator.integers(1000, VOCABULARY, int(lengths.sum())).astype("<i4")
        cuts = np.split(ids, np.cumsum(lengths)[:-1])
        return pa.array([text.tobytes() for text in cuts], pa.binary())

    numbers = (row * LANES + lane) * GRANULE + np.arange(GRANULE)
    columns = {
        "lane": pa.array([lane] * GRANULE, pa.int32()),
        "id": numbers,
        "group": numbers,
        "anchor": texts(),
        "positive": texts(),
    }
    schema = lane_schema(COLUMNS).insert(0, pa.field("lane", pa.int32()))
    return pa.RecordBatch.from_pydict(columns, schema=schema)


def _median_ratio(rounds: Sequence[Round]) -> float:
    return round(statistics.median(one.ratio for one in rounds), 4)


def _print(rows: Mapping[str, Sequence[Round]]) -> None:
    table = Table("steps", "bucket over disk (median)", "all rounds", "first granules, s", "CPU, s")
    for name, rounds in rows.items():
        table.add_row(
            name,
            f"{_median_ratio(rounds):.3f}",
            ", ".join(f"{one.ratio:.3f}" for one in rounds),
            f"{statistics.median(one.far.start_seconds for one in rounds):.2f}",
            f"{statistics.median(one.far.cpu_seconds for one in rounds):.2f} "
            f"({statistics.median(one.near.cpu_seconds for one in rounds):.2f} from the disk)",
        )
    Screen().print(table)
