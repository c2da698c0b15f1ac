"""What engines take from the call to train to the first step: cold, and warm in the same session.

Cold is the first run in a new Spark session, whose executors are there already; warm is the next
run in the same session. CPU time is that of all processes, which are on this machine.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.compare.comparison import prepared
from pipelines.engines.base import Engine, engine_of, load_engine
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.jobs.train import session_for
from pipelines.jobs.training_plan import batch_plan
from pipelines.lanes.files import LaneManifest
from pipelines.models.folder import start_encoder
from pipelines.runs.checkpoint import Checkpoint, save_checkpoint
from pipelines.runs.run import TrainingRun
from pipelines.settings import Config
from pipelines.spark.session import stopped_at_the_end
from pipelines_bench.cpu import CpuMeter, local_session

WORKERS = 2


def measure_engines(config: Config, names: Sequence[str]) -> list[dict[str, Any]]:
    """Starts each engine twice in a session of its own, or in the one that is running.

    Args:
        config: The engines train its prepared lanes, synchronously; each computes with
            ``training.framework``, or with its own first one if it has not that.
        names: Of the engines.

    Returns:
        For each engine ``engine``, ``cpu_seconds_cold``, ``wall_cold``, ``cpu_seconds_warm`` and
        ``wall_warm``.

    Raises:
        PipelineError: An engine cannot run here; see :meth:`Engine.check`.
    """
    with stopped_at_the_end():
        config = prepared(config, None)
    return [_measure(config, name) for name in names]


@dataclass
class _FirstStep:
    """Takes a run's metrics lines, and notes what was spent until the first."""

    meter: CpuMeter
    cpu_began: float = field(init=False)
    began: float = field(init=False)
    taken: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        self.cpu_began, self.began = self.meter.seconds(), time.perf_counter()

    def __call__(self, line: dict[str, Any]) -> None:
        if self.taken is None:
            wall = time.perf_counter() - self.began
            self.taken = self.meter.seconds() - self.cpu_began, wall


def _measure(config: Config, name: str) -> dict[str, Any]:
    """Two starts of an engine."""
    config = _for_engine(config, load_engine(name))
    engine = engine_of(config)
    figures: dict[str, Any] = {"engine": name}
    with stopped_at_the_end(), CpuMeter() as meter:
        session = session_for(engine, config)
        if session is not None:
            local_session(config)
        engine.check(session, config)
        for start in ("cold", "warm"):
            with tempfile.TemporaryDirectory() as folder:
                run, first_step = _run(config, Path(folder)), _FirstStep(meter)
                engine.train(session, run, first_step)
            assert first_step.taken is not None, "a run of one step has a line for it"
            cpu_seconds, wall = first_step.taken
            figures |= {
                f"cpu_seconds_{start}": round(cpu_seconds, 2),
                f"wall_{start}": round(wall, 2),
            }
    return figures


def _for_engine(config: Config, engine: Engine) -> Config:
    """The settings with those that the engine has, as far as they differ."""
    training = config.training
    framework = training.framework
    settings = {
        "engine": engine.name,
        "mode": "sync",
        "feed": "lanes" if "lanes" in engine.feeds else engine.feeds[0],
        "framework": framework if framework in engine.frameworks else engine.frameworks[0],
        "sharding": engine.shardings[0],
        "workers": WORKERS if engine.needs_spark else 1,
        "granules_per_step": WORKERS,
        "log_every": 1,
    }
    changed = training.model_copy(update=settings)
    return config.model_copy(update={"training": changed})


def _run(config: Config, folder: Path) -> TrainingRun:
    """A run of one step, with its first checkpoint written."""
    lanes = PreparedFolder.of(config).lanes.path
    manifest = LaneManifest.load(lanes)
    spec, weights = start_encoder(config, manifest.vocabulary)
    save_checkpoint(folder, Checkpoint(0, spec, weights, {}), 1)
    return TrainingRun(
        config=config,
        plan=batch_plan(config, manifest),
        manifest=manifest,
        lanes_folder=lanes,
        run_folder=folder,
        first_step=0,
        last_step=1,
    )
