"""The jobs as functions: prepare, train, evaluate, all three in a row, promote, and embed.

``jobs/``, the console command, notebooks and schedulers call these; each takes the
configuration and returns what it found.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines import storage
from pipelines.encoder.folder import start_encoder, write_encoder
from pipelines.engines import engine
from pipelines.engines.base import Engine, NeedsConf, check_fit
from pipelines.engines.jobs import await_archives
from pipelines.errors import InputError, PipelineError
from pipelines.evaluation.checkpoints import CheckpointEvaluation
from pipelines.evaluation.history import add_evaluations
from pipelines.failures import executor_failures
from pipelines.lanes.files import LaneManifest
from pipelines.lanes.plan import BatchPlan
from pipelines.objectives import OBJECTIVES
from pipelines.promotion import stage
from pipelines.promotion.stage import Promotion
from pipelines.session import spark_session
from pipelines.settings import Config
from pipelines.tracking import check_trackers
from pipelines.tracking.following import Following
from pipelines.tracking.names import evaluation_values, training_values
from pipelines.training.checkpoint import (
    Checkpoint,
    checkpoint_steps,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)
from pipelines.training.record import (
    add_to_record,
    forget_earlier_model,
    logged_figures,
    seconds_to,
    training_figures,
)
from pipelines.training.run import TrainingOutcome, TrainingRun
from pipelines.training.runlog import RunLog, can_resume, check_run_folder, open_run_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.embedding.lookup import Hit
    from pipelines.embedding.table import EmbeddingSummary
    from pipelines.evaluation.retrieval import Retrieved
    from pipelines.evaluation.snapshot import Snapshot

Metrics = dict[str, dict[str, float]]


@executor_failures("preparing")
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
    check_trackers(config.tracking)
    prepared = Path(config.prepared.folder).absolute()
    manifest = LaneManifest.load(prepared / "lanes")
    plan = _plan(config, manifest)
    session = session_for(chosen, config)
    chosen.check(session, config)
    if session is not None:
        await_archives(session, chosen.name)
    spec, weights = start_encoder(config, manifest.vocabulary)
    steps = plan.steps_per_epoch * config.training.epochs
    last_step = min(steps, config.training.max_steps or steps)
    snapshots = _snapshots(config, session)
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
    with Following(config, folder, run.first_step) as following:
        # A run may have died between its last step and its model.
        if run.first_step < run.last_step:
            forget_earlier_model(folder)
            before = seconds_to(folder, run.first_step)
            outcome = _train(chosen, session, run, snapshots, following)
            add_to_record(folder, {"training": training_figures(run, outcome, before)})
        elif figures := logged_figures(run):
            add_to_record(folder, {"training": figures})
        _export(folder, newest_checkpoint(folder), prepared, "model")
        following.keep(*_files(folder, "environment.json", "metrics.jsonl"), model=folder / "model")
    return folder / "model"


@executor_failures("evaluating")
def evaluate(config: Config) -> dict[str, Metrics]:
    """Measures the run's start and its model; writes ``metrics.json``, samples and the report.

    Returns:
        The figures under `before` and `after`.

    Raises:
        InputError: There is no model, or what it is to be measured on cannot be read.
        PipelineError: A training has replaced the model meanwhile.
    """
    from pipelines.evaluation.samples import write_samples
    from pipelines.evaluation.stage import evaluate as evaluate_folder

    folder = Path(config.run.folder).absolute()
    if not (folder / "model").is_dir():
        raise InputError("run.folder", f"there is no model in {folder}", "run `train` first")
    check_trackers(config.tracking)
    session = spark_session(config)
    models = {"before": folder / "start", "after": folder / "model"}
    retrieved: dict[str, Retrieved] = {}
    # What cannot be read is refused here, before anything is measured.
    measured = _measured(session, config)
    with Following(config, folder) as following:
        figures = {
            name: evaluate_folder(session, config, model, partial(retrieved.__setitem__, name))
            for name, model in models.items()
        }
        if _measured(session, config) != measured:
            problem = "the model, or what it is measured on, changed meanwhile"
            raise PipelineError(f"{folder}: {problem}; evaluate it again")
        add_to_record(folder, figures | {"measured": measured})
        write_samples(session, config, models, retrieved)
        made = max(checkpoint_steps(folder), default=0)
        for name, step in (("before", 0), ("after", made)):
            add_evaluations(folder, step, figures[name])
            following.log(step, evaluation_values("evaluation", figures[name]))
            following.log(made, evaluation_values(name, figures[name]))
        report(config)
        following.keep(*_files(folder, "report.html", "metrics.json", "evaluations.jsonl"))
    return figures


def _measured(session: SparkSession, config: Config) -> dict[str, Any]:
    """Digests of the run's model and of what it is measured on."""
    from pipelines.evaluation.sets import digest_sets

    model = Path(config.run.folder).absolute() / "model"
    return {"model": storage.digest_folder(model), "sets": digest_sets(session, config)}


def report(config: Config) -> Path:
    """Draws the report of a run from what is in its folder, finished or not; returns its path."""
    from pipelines.report.page import write_report

    folder = Path(config.run.folder).absolute()
    if not folder.is_dir():
        raise InputError("run.folder", f"there is no {folder}", "run `train` first")
    return write_report(folder, Path(config.prepared.folder).absolute())


def promote(config: Config) -> Promotion:
    """Puts the run's model in service if it is no worse than the one that is there.

    Raises:
        InputError: See :func:`pipelines.promotion.stage.promote`.
        PromotionRefused: It is worse; what is in service has not changed.
    """
    return stage.promote(config)


def roll_back(config: Config, to: str | None = None) -> Path:
    """Puts the model that was in service before, or the version ``to``, back in service."""
    return stage.roll_back(config, to)


def run(config: Config) -> dict[str, Metrics]:
    """Prepares, trains and evaluates."""
    from pipelines.evaluation.sets import read_sets

    chosen = engine(config.training.engine)
    check_fit(chosen, config)
    check_trackers(config.tracking)
    # Preparing may take hours.
    check_run_folder(config)
    # All stages share the session, so it is made for the one that asks for most.
    session = session_for(chosen, config) or spark_session(config)
    read_sets(session, config)
    prepare(config)
    train(config)
    return evaluate(config)


def embed(config: Config) -> EmbeddingSummary:
    """Embeds the table of ``embedding.inputs`` into ``embedding.output``, or what is missing of it.

    Raises:
        InputError: Model and input cannot be used, or the output is of something else.
    """
    from pipelines.embedding.plan import check_job
    from pipelines.embedding.table import embed_table

    check_job(config)
    return embed_table(spark_session(config), config)


def search(config: Config, queries: Sequence[str], k: int, *, indexed: bool = False) -> list[Hit]:
    """The k rows of ``embedding.output`` that are nearest to each query, the best first.

    Spark starts only for a table that is too large for this process, or to build an index.

    Args:
        config: The section ``embedding`` names the table, and where its model is now if that is
            not where it was.
        queries: Texts.
        k: Rows of each query.
        indexed: Search an index, which is built where there is none, instead of all rows.

    Raises:
        InputError: There is no such table, it was made with another model, or nothing is asked.
        PipelineError: An executor could not search.
    """
    from pipelines.embedding.index import has_index
    from pipelines.embedding.lookup import find_texts, fits_in_process
    from pipelines.embedding.store import open_table

    table = open_table(config.embedding.output)
    here = fits_in_process(table) and not (indexed and not has_index(table))
    session = None if here else spark_session(config)
    return find_texts(
        table,
        queries,
        k,
        session=session,
        indexed=indexed,
        backend=config.embedding.backend,
        model=config.embedding.model,
    )


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


def _snapshots(config: Config, session: SparkSession | None) -> Sequence[Snapshot]:
    """What checkpoints are measured on while training goes on, if they are."""
    if not config.evaluation.every_checkpoints:
        return ()
    from pipelines.evaluation.snapshot import read_snapshots

    return read_snapshots(session or spark_session(config), config)


def _train(
    chosen: Engine,
    session: SparkSession | None,
    run: TrainingRun,
    snapshots: Sequence[Snapshot],
    following: Following,
) -> TrainingOutcome:
    def on_figures(step: int, figures: Metrics) -> None:
        following.log(step, evaluation_values("evaluation", figures))

    tokenizer = run.lanes_folder.parent / "tokens" / "tokenizer"
    with CheckpointEvaluation(snapshots, run, tokenizer, on_figures), RunLog(run) as log:

        def on_metrics(line: dict[str, Any]) -> None:
            log.add(line)
            following.log(line["step"], training_values(line))

        return chosen.train(session, run, on_metrics)


def _files(folder: Path, *names: str) -> list[Path]:
    return [folder / name for name in names]


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
