"""The job of a cell: its settings, its command, and the losses that it has without a fault."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from corpus_factory import small_config, write_docstrings
from engine_cases import EngineCase, trained_here

import pipelines
from faults.moments import EVALUATION, LATE
from pipelines.jobs.training_plan import batch_plan
from pipelines.lanes.files import LaneManifest
from pipelines.models.folder import start_encoder
from pipelines.runs.checkpoint import Checkpoint, save_checkpoint
from pipelines.runs.run import TrainingRun
from pipelines.settings import Config
from pipelines.settings import load as configuration

CLI = ("-c", "import sys; from pipelines.cli import main; sys.exit(main())")
FEW, SOME, ENDLESS = 60, 150, 10**6
DLLIB = ("dllib",)
"""Loops whose steps are slow, and whose ranks are known with the first one."""
EVERY = 20
COMPARED, TOGETHER = 400, 100
"""Steps after which rounding has grown too much for a comparison with a run from the start,
and how many are computed together."""
LEARNING = {"learning_rate": 2e-4, "schedule": "constant", "warmup": 0.0, "epochs": ENDLESS}
"""So that a step does not depend on how many there are to be."""


def make_prepared(folder: Path) -> Path:
    """A small prepared corpus, made once; it is not written again."""
    if not (folder / "lanes").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        write_docstrings(folder.parent / "docstrings.jsonl")
        pipelines.prepare(small_config(folder))
    return folder


def steps_of(case: EngineCase, moment: str, *, finishes: bool, slow_network: bool) -> int:
    """How many steps a job is to make: few where each takes long, no end where it is to be cut."""
    if moment in LATE:
        return FEW if case.loop not in DLLIB else FEW // 2
    if not finishes:
        return ENDLESS
    return FEW if slow_network or case.loop in DLLIB else SOME


def settings_of(
    case: EngineCase, pristine: Path, prepared: Path, run: Path, steps: int, moment: str
) -> Config:
    """The settings of the training of a case, with the deadlines that users have.

    Args:
        pristine: What was prepared.
        prepared: A copy of it, which is trained on.
    """
    every = {"checkpoint": 1, "last step": steps - 1}.get(moment, EVERY)
    defaults = type(small_config(pristine).training).model_fields
    deadlines = {name: defaults[name].default for name in ("start_seconds", "stall_seconds")}
    training = LEARNING | deadlines | case.training
    training |= {"engine": case.make().name, "max_steps": steps, "checkpoint_every": every}
    config = small_config(pristine, **training, resume=True)
    measured = config.evaluation.model_copy(update={"samples": 0})
    own = config.run.model_copy(update={"folder": str(run)})
    copied = config.prepared.model_copy(update={"folder": str(prepared)})
    return config.model_copy(update={"run": own, "prepared": copied, "evaluation": measured})


def command_of(
    config: Config, path: Path, moment: str, spark: Mapping[str, str]
) -> Sequence[str | Path]:
    """The arguments for Python, with the settings in a file at a path."""
    path.write_text(configuration.dump(config))
    verb = "run" if moment == EVALUATION else "train"
    given = [f"--set=spark.{key}={value}" for key, value in spark.items()]
    return [*CLI, verb, "--config", path, *given]


def run_here(
    arguments: Sequence[str], config: Config, path: Path, log: Path, seconds: float
) -> int:
    """Runs a command of the command line on this machine to its end, with Spark in one process.

    Args:
        arguments: The verb and what follows it.
        path: For the settings.
        log: For what it says.

    Returns:
        Its exit code.

    Raises:
        subprocess.TimeoutExpired: It takes longer, and is killed.
    """
    path.write_text(configuration.dump(config))
    command = [sys.executable, *CLI, *arguments, "--config", path, "--set=spark.master=local[2]"]
    with log.open("wb") as out:
        done = subprocess.run(
            command, stdout=out, stderr=subprocess.STDOUT, timeout=seconds, check=False
        )
    return done.returncode


def alone(config: Config, pristine: Path, steps: int) -> Config:
    """The settings by which one process, without Spark, goes on with the run of an engine."""
    training = LEARNING | {
        "engine": "local",
        "framework": framework_of(config),
        "max_steps": steps,
        "checkpoint_every": EVERY,
    }
    kept = {name: getattr(config, name) for name in ("run", "prepared", "evaluation")}
    return small_config(pristine, **training, resume=True).model_copy(update=kept)


def framework_of(config: Config) -> str:
    """What makes the same steps in one process."""
    return {"bigdl": "torch"}.get(config.training.framework, config.training.framework)


def losses_of(run: Path) -> tuple[list[int], np.ndarray]:
    """The steps that a run has written, and their losses."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines], np.array([line["loss"] for line in lines])


def reference_losses(prepared: Path, framework: str, steps: int) -> np.ndarray:
    """The losses of the first steps as one process makes them that nothing happens to.

    They are computed once and kept beside what they were trained on, for all cells.

    Args:
        steps: How many a run has; fewer are compared where it has more than :data:`COMPARED`.
    """
    count = min(-(-steps // TOGETHER) * TOGETHER, COMPARED)
    kept = prepared.with_name(f"losses-{framework}-{count}.npy")
    if not kept.exists():
        with TemporaryDirectory(dir=prepared.parent) as scratch:
            losses = _trained_losses(prepared, framework, Path(scratch), count)
            np.save(Path(scratch, kept.name), losses)
            Path(scratch, kept.name).replace(kept)
    return np.load(kept)


def _trained_losses(prepared: Path, framework: str, scratch: Path, steps: int) -> np.ndarray:
    settings = LEARNING | {"framework": framework, "workers": 1, "engine": "local"}
    config = small_config(prepared, **settings)
    manifest = LaneManifest.load(prepared / "lanes")
    spec, weights = start_encoder(config, manifest.vocabulary)
    save_checkpoint(scratch, Checkpoint(0, spec, weights, {}), 9)
    run = TrainingRun(
        config=config,
        plan=batch_plan(config, manifest),
        manifest=manifest,
        lanes_folder=prepared / "lanes",
        run_folder=scratch,
        first_step=0,
        last_step=steps,
    )
    return trained_here(run)[0]
