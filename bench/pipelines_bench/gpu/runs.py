"""Whole runs without Spark: lanes on the disk, engine `local` in its process, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.engines.local import LocalEngine
from pipelines.lanes.files import COUNTED, LaneManifest, write_lanes
from pipelines.lanes.plan import BatchPlan, plan_segments
from pipelines.models.bert.spec import BertSpec
from pipelines.models.weights import random_weights
from pipelines.runs.checkpoint import Checkpoint, save_checkpoint
from pipelines.runs.run import TrainingRun
from pipelines.settings.load import parse
from pipelines_bench.gpu.checks import Finding, Place

LANES, ROWS, GRANULE, LONGEST, VOCABULARY = 4, 4, 8, 8, 300
STEPS, MIDDLE = 8, 4
SPEC = BertSpec(vocabulary=VOCABULARY, layers=2, hidden=32, heads=2, intermediate=64, positions=16)
CURVE, RESUMED = 1e-3, 1e-4
"""Relative, of losses: what engines are held to, see `tests/engines/test_contract.py`."""


def write_random_lanes(folder: Path) -> LaneManifest:
    """Lanes of random pairs, as the stage writes them with Spark."""
    count = LANES * ROWS * GRANULE
    generator = np.random.default_rng(1)

    def side() -> pa.Array:
        lengths = generator.integers(2, LONGEST + 1, count)
        ids = (generator.integers(1, VOCABULARY, length).astype("<i4") for length in lengths)
        return pa.array([text.tobytes() for text in ids], pa.binary())

    manifest = LaneManifest(
        lanes=LANES,
        granule=GRANULE,
        rows=ROWS,
        rows_per_part=ROWS,
        segments=plan_segments({LONGEST: count}, LANES, GRANULE),
        examples=count,
        left_over={},
        granules_per_step=2,
        same_group_in_step=0,
        tokens=0,
        slots=0,
        vocabulary=VOCABULARY,
        max_length=LONGEST,
        paired=True,
        negatives=0,
        scored=False,
        candidates_scored=False,
        teacher=None,
        checksums=(),
    )
    numbers = np.arange(count)
    columns = {
        "lane": pa.array(numbers // (ROWS * GRANULE), pa.int32()),
        "id": numbers,
        "group": numbers,
        "anchor": side(),
        "positive": side(),
    }
    schema = manifest.schema.insert(0, pa.field("lane", pa.int32()))
    written = pa.Table.from_batches(
        write_lanes(
            iter([pa.RecordBatch.from_pydict(columns, schema=schema)]),
            folder=folder,
            columns=["positive"],
            granule=GRANULE,
            rows_per_part=ROWS,
            vocabulary=VOCABULARY,
        )
    ).to_pydict()
    counts = {name: sum(written[name]) for name in COUNTED}
    whole = replace(
        manifest,
        tokens=counts["tokens"],
        slots=counts["slots"],
        checksums=tuple(written["checksum"]),
    )
    whole.save(folder)
    return whole


def random_run(folder: Path, *, workers: int = 1, **settings: Mapping[str, Any]) -> TrainingRun:
    """A run from random weights, with its first checkpoint.

    Args:
        folder: Is filled.
        workers: Processes that train.
        settings: Sections; that of training has defaults.
    """
    manifest = write_random_lanes(folder / "lanes")
    training = {
        "engine": "local" if workers == 1 else "torch",
        "framework": "torch",
        "precision": "fp32",
        "workers": workers,
        "granules_per_step": 2,
        "checkpoint_every": MIDDLE,
        "learning_rate": 3e-3,
        "stall_seconds": 60,
        "start_seconds": 60,
    }
    config = parse({**settings, "training": {**training, **settings.get("training", {})}})
    save_checkpoint(folder / "run", Checkpoint(0, SPEC, random_weights(SPEC, 5), {}), 9)
    return TrainingRun(
        config=config,
        plan=BatchPlan(lanes=LANES, rows=ROWS, granules_per_step=2, seed=config.training.seed),
        manifest=manifest,
        lanes_folder=folder / "lanes",
        run_folder=folder / "run",
        first_step=0,
        last_step=STEPS,
    )


def losses_by_engine(run: TrainingRun) -> np.ndarray:
    """The losses of the steps of engine `local`, in a process of its own."""
    outcome = LocalEngine().train(None, run, lambda metrics: None)
    return np.array(outcome.losses)


def local_engine(place: Place) -> Finding:
    """The curve of a run from lane files by engine `local`, and by steps in this process."""
    from pipelines_bench.gpu.torch_curves import losses_here

    run = random_run(place.folder / "local")
    expected = losses_here(run, "cpu")
    found = losses_by_engine(run)
    apart = close("engine local", found, expected, CURVE)
    return Finding(f"{len(found)} steps, losses at most {apart:.1e} apart")


def resumed(place: Place) -> Finding:
    """A run goes on from a checkpoint that a device wrote, and from one that the CPU wrote."""
    from pipelines_bench.gpu.torch_curves import losses_here, write_checkpoint_here

    run = random_run(place.folder / "resumed")
    whole = losses_by_engine(run)
    rest = replace(run, first_step=MIDDLE)
    apart = [close("resumed", losses_by_engine(rest), whole[MIDDLE:], RESUMED)]
    apart.append(close("resumed on the CPU", losses_here(rest, "cpu"), whole[MIDDLE:], CURVE))
    other = random_run(place.folder / "from-cpu")
    write_checkpoint_here(other, MIDDLE, "cpu")
    rest = replace(other, first_step=MIDDLE)
    apart.append(close("resumed from the CPU", losses_by_engine(rest), whole[MIDDLE:], CURVE))
    return Finding(f"losses after step {MIDDLE} at most {max(apart):.1e} apart")


def close(what: str, found: np.ndarray, expected: np.ndarray, tolerance: float) -> float:
    """Holds curves against one another; gives the largest relative difference.

    Raises:
        AssertionError: They are of other lengths, or farther off.
    """
    if found.shape != expected.shape:
        raise AssertionError(f"{what}: {len(found)} losses instead of {len(expected)}")
    apart = float(np.abs(found / expected - 1).max())
    if not apart <= tolerance:
        raise AssertionError(f"{what}: {apart:.2g} apart, more than {tolerance:.2g}: {found}")
    return apart
