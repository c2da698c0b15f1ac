"""The jobs as functions: prepare, train, evaluate, and all three in a row.

``jobs/``, the console command, notebooks and schedulers call these; each takes the
configuration and returns what it found.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines import storage
from pipelines.encoder.folder import start_encoder, write_encoder
from pipelines.engines import engine
from pipelines.engines.base import Engine, NeedsConf, check_fit
from pipelines.errors import InputError
from pipelines.lanes.files import LaneManifest
from pipelines.lanes.plan import BatchPlan
from pipelines.objectives import OBJECTIVES
from pipelines.session import spark_session
from pipelines.settings import Config
from pipelines.training.checkpoint import (
    Checkpoint,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)
from pipelines.training.run import TrainingOutcome, TrainingRun
from pipelines.training.runlog import RunLog, can_resume, open_run_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Metrics = dict[str, dict[str, float]]


def prepare(config: Config) -> LaneManifest:
    """Reads the corpus, tokenises it, and forms the lanes in ``prepared.folder``.

    A stage whose inputs and settings have not changed is kept, unless ``prepared.reuse`` is false.
    """
    # Here and in `evaluate`, so that training by the local engine needs no Spark.
    from pipelines.preparation import prepare_stages

    return prepare_stages(config)


def train(config: Config, chosen: Engine | None = None) -> Path:
    """Trains on the prepared lanes; returns the folder of the model, ``run.folder/model``.

    Args:
        config: The configuration.
        chosen: The engine; the one that ``training.engine`` names unless given.

    Raises:
        InputError: Settings, lanes and engine do not fit; nothing has been written then.
        EngineError: The run failed; ``training.resume`` goes on from its last checkpoint.
    """
    chosen = chosen or engine(config.training.engine)
    check_fit(chosen, config)
    prepared = Path(config.prepared.folder).absolute()
    manifest = LaneManifest.load(prepared / "lanes")
    plan = _plan(config, manifest)
    session = session_for(chosen, config)
    chosen.check(session, config)
    spec, weights = start_encoder(config, manifest.vocabulary)
    steps = plan.steps_per_epoch * config.training.epochs
    last_step = min(steps, config.training.max_steps or steps)
    folder = open_run_folder(config, plan, manifest, last_step)
    if not can_resume(folder):
        save_checkpoint(folder, Checkpoint(0, spec, weights, {}), config.training.keep_checkpoints)
    if not (folder / "start").is_dir():
        _export(folder, 0, prepared, "start")
    run = TrainingRun(
        config=config,
        plan=plan,
        manifest=manifest,
        lanes_folder=prepared / "lanes",
        run_folder=folder,
        first_step=newest_checkpoint(folder),
        last_step=last_step,
    )
    # A run may have died between its last step and its model.
    if run.first_step < run.last_step:
        outcome = _train(chosen, session, run)
        _merge_metrics(folder, {"training": _training_figures(outcome)})
    _export(folder, newest_checkpoint(folder), prepared, "model")
    return folder / "model"


def evaluate(config: Config) -> dict[str, Metrics]:
    """Measures the run's start and its model; writes ``metrics.json`` and the report.

    Returns:
        The figures under `before` and `after`.
    """
    from pipelines.evaluation.stage import evaluate as evaluate_folder
    from pipelines.report.page import write_report

    folder = Path(config.run.folder).absolute()
    if not (folder / "model").is_dir():
        raise InputError("run.folder", f"there is no model in {folder}", "run `train` first")
    session = spark_session(config)
    figures = {
        name: evaluate_folder(session, config, folder / model)
        for name, model in (("before", "start"), ("after", "model"))
    }
    _merge_metrics(folder, figures)
    write_report(folder, Path(config.prepared.folder).absolute())
    return figures


def run(config: Config) -> dict[str, Metrics]:
    """Prepares, trains and evaluates."""
    chosen = engine(config.training.engine)
    check_fit(chosen, config)
    # All stages share the session, so it is made for the one that asks for most.
    session_for(chosen, config)
    prepare(config)
    train(config)
    return evaluate(config)


def session_for(chosen: Engine, config: Config) -> SparkSession | None:
    """The session that an engine trains in, if it needs one."""
    if not chosen.needs_spark:
        return None
    executors = chosen.executors(config)
    if isinstance(chosen, NeedsConf):
        return spark_session(config, executors=executors, conf=partial(chosen.spark_conf, config))
    return spark_session(config, executors=executors)


def _plan(config: Config, manifest: LaneManifest) -> BatchPlan:
    """The order of the steps; refuses what the lanes do not allow."""
    training = config.training
    if training.mode == "sync" and training.workers > manifest.lanes:
        raise InputError(
            "training.workers",
            f"{training.workers} workers cannot share {manifest.lanes} lanes",
            f"at most {manifest.lanes}, or a larger corpus",
        )
    if manifest.lanes % training.granules_per_step:
        fitting = [n for n in range(1, manifest.lanes + 1) if manifest.lanes % n == 0]
        raise InputError(
            "training.granules_per_step",
            f"{training.granules_per_step} does not divide the {manifest.lanes} lanes",
            f"one of {', '.join(map(str, fitting))}",
        )
    needs = OBJECTIVES[config.objective.name].needs
    if needs != "singles" and not manifest.paired:
        raise InputError("objective.name", "the lanes hold single texts", "set it to twins")
    if needs == "scores" and not manifest.scored:
        raise InputError(
            "objective.name",
            "the lanes hold no scores",
            "set corpus.score_column and prepare again",
        )
    return BatchPlan(
        lanes=manifest.lanes,
        rows=manifest.rows,
        granules_per_step=training.granules_per_step,
        seed=training.seed,
    )


def _train(chosen: Engine, session: SparkSession | None, run: TrainingRun) -> TrainingOutcome:
    with RunLog(run) as log:
        return chosen.train(session, run, log.add)


def _export(folder: Path, step: int, prepared: Path, name: str) -> None:
    """Writes the weights before a step as a sentence-transformers folder."""
    checkpoint = load_checkpoint(folder, step)
    spec = checkpoint.spec
    shape = f"with {spec.layers} layers of {spec.hidden}"
    if spec.kind == "bag":
        shape = f"that takes the mean of its tokens' static embeddings of {spec.hidden}"
    card = f"A sentence encoder {shape}, after {step} steps of training with sentence-pipelines.\n"
    tokenizer = prepared / "tokens" / "tokenizer"
    write_encoder(folder / name, spec, checkpoint.weights, tokenizer, card)


def _training_figures(outcome: TrainingOutcome) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "steps": outcome.steps,
        "examples": outcome.examples,
        "seconds": round(outcome.seconds, 2),
        "examples_per_second": round(outcome.examples_per_second, 2),
        "final_loss": outcome.losses[-1],
    }
    if outcome.staleness is not None:
        figures |= {
            "staleness_mean": round(outcome.staleness.mean, 3),
            "staleness_max": outcome.staleness.most,
        }
    if outcome.restarts:
        figures["restarts"] = [asdict(restart) for restart in outcome.restarts]
    return figures


def _merge_metrics(folder: Path, figures: dict[str, Any]) -> None:
    path = folder / "metrics.json"
    known = storage.read_json(path) if path.exists() else {}
    storage.write_json(path, known | figures)
