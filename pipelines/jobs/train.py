"""`train`: trains a model on prepared lanes; refusals come before the run folder is touched."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from pipelines.engines.automatic import with_engine
from pipelines.engines.base import Engine, check_fit, engine_of
from pipelines.evaluation.alarms import keep_doubts
from pipelines.evaluation.during_training import (
    CheckpointEvaluation,
    Figures,
    choosing_metric,
    has_ended_early,
)
from pipelines.evaluation.measure_checkpoint import Snapshot, read_snapshots
from pipelines.evaluation.overlap import keep_overlap
from pipelines.evaluation.sets import check_sets
from pipelines.files import locks, storage
from pipelines.files.folders import check_room
from pipelines.files.locations import Location
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.files.run_folder import RunFolder
from pipelines.interruption import run_begun
from pipelines.jobs.base import Results, job, say_model, say_report
from pipelines.jobs.report import draw_report
from pipelines.jobs.training_plan import batch_plan, check_labels
from pipelines.lanes.files import LaneManifest
from pipelines.lanes.plan import BatchPlan
from pipelines.lanes.reader import check_unchanged
from pipelines.libraries import DRIVER, check_installed
from pipelines.losses.loss import scores_pairs
from pipelines.model_card.card import model_card, write_card
from pipelines.model_card.front_matter import is_measured, read_facts
from pipelines.models.adaptation import (
    check_names,
    exports_adapter,
    of_objective,
    split,
    without_objective,
    write_adapter,
)
from pipelines.models.architecture import architecture_of, check_framework
from pipelines.models.folder import (
    start_card,
    start_encoder,
    start_licence,
    weight_change,
    without_output,
    write_encoder,
)
from pipelines.models.identity import FIELD, model_digest, recorded_digest
from pipelines.models.lsa.corpus import check_terms, corpus_terms
from pipelines.models.lsa.modules import with_terms
from pipelines.models.rerankers.write import reranker_card, write_reranker
from pipelines.models.start import longest_unasked, model_length
from pipelines.models.weights import Weights, check_division
from pipelines.pretraining.start import objective_weights, special_ids
from pipelines.progress import activity
from pipelines.promotion.stage import check_new
from pipelines.runs.attempts import begin_attempt, fenced
from pipelines.runs.checkpoint import (
    Checkpoint,
    checkpoint_steps,
    load_checkpoint,
    newest_checkpoint,
    prune_checkpoints,
    save_checkpoint,
    save_frozen,
)
from pipelines.runs.job_records import (
    Start,
    begin_job,
    end_job,
    go_on,
    keep_preparation,
    last_step_of,
)
from pipelines.runs.model_choice import WHOLE, asked_steps, choose, is_to_end, start_share
from pipelines.runs.opening import (
    check_owned,
    check_run_folder,
    identity_digest,
    open_run_folder,
    resumed_step,
    tell_if_finished,
)
from pipelines.runs.run import TrainingRun, with_axes
from pipelines.runs.step_metrics import (
    MetricsLog,
    forget_earlier_model,
    forget_evaluation,
    logged_figures,
    seconds_to,
    training_figures,
    update_run_metrics,
)
from pipelines.settings import Config
from pipelines.settings.spark import StageName
from pipelines.spark.errors import executor_failures
from pipelines.spark.jobs import await_archives, stall_failures
from pipelines.spark.session import running_tasks, spark_session
from pipelines.spark.stage_resources import check_stages, resource_profile, resources_in
from pipelines.tokens.stage import check_tokens, corpus_length
from pipelines.tracking import check_trackers
from pipelines.tracking.base import evaluation_values, training_values
from pipelines.tracking.run_tracking import RunTracking

logger = logging.getLogger(__name__)

LOCK_CHECK_SECONDS = 1.0
"""The shortest time between two checks of a training's locks."""


@job("training", works_in=("run.folder",), reads=("prepared.folder",), check=check_owned)
def train(config: Config, chosen: Engine | None = None) -> Location:
    """Train on the prepared lanes, and return the folder of the model.

    It is `run.folder/model`, or `run.folder/reranker` of a cross-encoder. `chosen` is the engine,
    by default that of `training.engine`.

    Raises:
        InputError: Settings, lanes and engine do not fit; the run folder is unchanged.
        NothingNew: The model in service has the same origin, and `run.only_new` is set.
        EngineError: The run failed; `training.resume` goes on from its last checkpoint.
        PipelineError: A write failed, or another job has prepared the lanes again.
    """
    start_of_job = Start()
    config = config if chosen else with_engine(config)
    engine = chosen or engine_of(config)
    check_settings(engine, config)
    prepared = PreparedFolder.of(config)
    prepared.check_in_step()
    manifest = LaneManifest.load(prepared.lanes.path)
    plan = batch_plan(config, manifest)
    if config.run.only_new:
        check_new(config, identity_digest(config, plan, manifest, prepared.corpus))
    start = checked_start(config, prepared, manifest)
    session = session_for(engine, config)
    if session is not None:
        check_stages(session, config, ("train",))
    engine.check(session, config)
    if session is not None:
        resources = resource_profile(resources_in(session, config, "train"))
        await_archives(session, engine.name, resources)
    with activity("training", "reading the evaluation sets", running_tasks):
        snapshots = checkpoint_snapshots(config, session)
    run = open_run(config, prepared, plan, manifest, start)
    folder = RunFolder(run.run_folder)
    begin_job(folder.path, "train", start_of_job)
    keep_preparation(folder.path, prepared.path)
    with fenced(folder.path), RunTracking(config, folder.path, run.first_step) as tracking:
        train_steps(engine, session, run, snapshots, tracking)
        # The model takes its tokenizer from beside the lanes.
        check_unchanged(prepared.lanes.path, manifest)
        with activity("training", "writing the model"):
            model = write_model(run, prepared)
        end_job(folder.path, start_of_job)
        # Trackers know encoders only.
        kept = None if scores_pairs(config) else model
        tracking.keep(folder.environment, folder.step_metrics, folder.restarts, model=kept)
    return model


def command(config: Config) -> Results:
    """Train an encoder, draw its report, and print the places of both."""
    model = train(config)
    say_report(draw_report(config))
    say_model(config, model)
    metrics = storage.read_json(RunFolder.of(config).metrics)
    return {"model": str(model), **metrics.get("training", {})}


def check_settings(chosen: Engine, config: Config) -> None:
    """Refuse settings without support in the engine or the trackers."""
    check_fit(chosen, config)
    if scores_pairs(config):
        # Its evaluation reads it as everybody does.
        check_installed("objective.name", "transformers")
    chosen.check_libraries(config)
    if config.encoder.lsa.dimensions:
        check_installed("encoder.lsa.dimensions", "sklearn", where=DRIVER)
    check_trackers(config.tracking)


def checked_start(config: Config, prepared: PreparedFolder, manifest: LaneManifest) -> Checkpoint:
    """Return the start of a run, after all checks without Spark."""
    folder, has_run = check_run_folder(config)
    with activity("training", "reading the start encoder"):
        goes_on = has_run and config.training.resume
        asked = _begun(config, folder) if goes_on else config
        spec, weights = start_encoder(asked, manifest.vocabulary)
        check_framework(architecture_of(spec), config)
        check_division(architecture_of(spec).division, spec, config)
        check_terms(config, spec)
        held = manifest.teacher if config.objective.uses_teacher else None
        for objective in {source.objective: None for source in config.by_source()}:
            objective.check_width(spec.embedding_width, None if held is None else held.width)
        check_tokens(prepared.tokens.path, config, model_length(config))
        check_labels(config, prepared.tokens.examples)
        trained, frozen = split(config.encoder, weights, config.training.seed)
        if exports_adapter(config.encoder):
            check_names(architecture_of(spec).folder.stored_name, trained)
        trained |= objective_weights(config, spec)
        special_ids(config, prepared.tokens.tokenizer)
    if config.evaluation.every_checkpoints:
        check_sets(config)
        choosing_metric(config)
    if not has_run:
        needed = _bytes_of_start(weights, trained, frozen.weights)
        check_room("run.folder", folder, needed, "the first checkpoints and models")
    if frozen.weights:
        _tell_trained(trained, frozen.weights)
    return Checkpoint(0, spec, trained, {}, frozen)


def _begun(config: Config, folder: Location) -> Config:
    """Return the settings of a resumed run: its folder holds the start already."""
    start = RunFolder(folder).start
    if config.encoder.keep_layers != 0 or not start.is_dir():
        return config
    return config.changed("encoder", start=str(start), keep_layers=None)


def _tell_trained(trained: Weights, frozen: Mapping[str, np.ndarray]) -> None:
    """Log the numbers of trained and frozen parameters."""
    learning, fixed = (sum(array.size for array in part.values()) for part in (trained, frozen))
    logger.info("%s parameters are trained, and %s are frozen", f"{learning:,}", f"{fixed:,}")


def _bytes_of_start(weights: Weights, trained: Weights, frozen: Mapping[str, np.ndarray]) -> int:
    """Return the least bytes of a run: the model at its start and end, and two checkpoints.

    The first checkpoint holds only trained weights, the second AdamW's two moments of each as well.
    Frozen weights lie beside them.
    """
    of_model, of_trained, of_frozen = (
        sum(array.nbytes for array in arrays.values()) for arrays in (weights, trained, frozen)
    )
    return (1 + 1) * of_model + (1 + 3) * of_trained + of_frozen


def session_for(chosen: Engine, config: Config, stage: StageName = "train") -> SparkSession | None:
    """Return the session for an engine, if it needs one.

    A new session has the Spark conf of `stage`.
    """
    if not chosen.needs_spark:
        return None
    return spark_session(
        config.for_stage(stage),
        executors=chosen.executors(config),
        conf=partial(chosen.session_conf, config),
    )


def checkpoint_snapshots(config: Config, session: SparkSession | None) -> Sequence[Snapshot]:
    """Return the evaluation sets of checkpoints, if training measures any."""
    if not config.evaluation.every_checkpoints:
        return ()
    work = "reading the evaluation sets"
    with executor_failures(work), stall_failures(work, config.spark):
        asked = config.for_stage("train")
        return read_snapshots(session or spark_session(asked, needs_context=False), config)


def open_run(
    config: Config,
    prepared: PreparedFolder,
    plan: BatchPlan,
    manifest: LaneManifest,
    start: Checkpoint,
) -> TrainingRun:
    """Open a new or resumed run folder, and return the run with its remaining steps."""
    folder, goes_on = open_run_folder(config, plan, manifest)
    run_begun()
    # From here on, late writes of an earlier driver or its workers do not count; in a new run,
    # neither do their writes since the folder was opened.
    first = resumed_step(folder, config.training.log_every) if goes_on else None
    attempt = begin_attempt(folder, first)
    if not goes_on:
        save_frozen(folder, start.frozen)
        save_checkpoint(folder, start, config.training.keep_checkpoints, attempt=attempt)
    _write_start(folder, prepared, config)
    first_step = max(checkpoint_steps(folder))
    last_step = asked_steps(config.training, plan.steps_per_epoch, prepared.corpus)
    share = start_share(config.training, prepared.corpus)
    if share == WHOLE:
        logger.info(
            "most documents have no title: the model keeps the start's weights "
            "(training.start_share)"
        )
    if has_ended := has_ended_early(config, folder):
        last_step = first_step
    run = TrainingRun(
        config=config,
        plan=plan,
        manifest=manifest,
        lanes_folder=prepared.lanes.path,
        run_folder=folder,
        first_step=first_step,
        last_step=last_step,
        horizons=go_on(folder, config, first_step, last_step),
        special_ids=special_ids(config, prepared.tokens.tokenizer),
        attempt=attempt,
    )
    if not has_ended:
        tell_if_finished(run, share)
    return with_axes(run, start.spec.embedding_width)


def _write_start(folder: Location, prepared: PreparedFolder, config: Config) -> None:
    """Write the start of a run into its folder, where it is missing."""
    # Another preparation may replace this one before the report needs these files.
    tokens = storage.read_json(prepared.tokens.manifest)
    storage.write_json(RunFolder(folder).tokens, tokens)
    if prepared.corpus.funnel.is_file():
        funnel = storage.read_json(prepared.corpus.funnel)
        storage.write_json(RunFolder(folder).funnel, funnel)
    keep_overlap(prepared, RunFolder(folder))
    place = RunFolder(folder).start
    if not place.is_dir():
        with activity("training", "writing the start encoder"):
            state = load_checkpoint(folder, 0, lazily=True)
            # A fresh layer is no part of what a model is compared with.
            spec, weights = without_output(config.encoder, state.spec, state.encoder_weights)
            card = start_card(spec, start_licence(config))
            write_encoder(place, spec, weights, prepared.tokens.tokenizer, card)


def train_steps(
    chosen: Engine,
    session: SparkSession | None,
    run: TrainingRun,
    snapshots: Sequence[Snapshot],
    tracking: RunTracking,
) -> None:
    """Let the engine make the remaining steps, and write the training's figures.

    Without any, compare the checkpoints still unknown to `training.keep_best`.
    """
    folder = run.run_folder
    measuring = _measuring(run, snapshots, tracking)
    # A run may have died between its last step and its model.
    if run.first_step < run.last_step:
        forget_earlier_model(folder)
        before = seconds_to(folder, run.first_step)
        with measuring, MetricsLog(run) as log:
            listener = _Listener(log, tracking, measuring, locks.held_here())
            outcome = chosen.train(session, run, listener)
        training, last = run.config.training, _newest_step(run)
        prune_checkpoints(folder, last, training.keep_checkpoints, training.averaged_steps(last))
        update_run_metrics(folder, {"training": training_figures(run, outcome, before)})
        return
    if run.config.training.keep_best:
        with measuring:
            pass
    if figures := logged_figures(run):
        update_run_metrics(folder, {"training": figures})


def _measuring(
    run: TrainingRun, snapshots: Sequence[Snapshot], tracking: RunTracking
) -> CheckpointEvaluation:
    """Measure the checkpoints of a run while the context is open."""

    def on_figures(step: int, figures: Figures) -> None:
        tracking.log(step, evaluation_values("evaluation", figures))

    tokenizer = PreparedFolder.of(run.config).tokens.tokenizer
    metric = choosing_metric(run.config)
    return CheckpointEvaluation(snapshots, run, tokenizer, on_figures, metric)


class _Listener:
    """Receives a run's metrics lines, and a call for each step, while the run goes on."""

    def __init__(
        self,
        log: MetricsLog,
        tracking: RunTracking,
        measuring: CheckpointEvaluation,
        held: Sequence[locks.Lock],
    ) -> None:
        self._log = log
        self._tracking = tracking
        self._measuring = measuring
        self._held = held
        self._checked = time.monotonic()

    def __call__(self, line: dict[str, Any]) -> None:
        self._check_locks()
        self._log.add(line)
        self._tracking.log(line["step"], training_values(line))

    def step_done(self, step: int) -> None:
        self._check_locks()
        self._log.step_done(step)

    def checkpoint_saved(self) -> None:
        self._log.checkpoint_saved()

    def _check_locks(self) -> None:
        """Check the locks, but not at each of a thousand steps a second."""
        now = time.monotonic()
        if now - self._checked < LOCK_CHECK_SECONDS:
            return
        self._checked = now
        for lock in self._held:
            lock.check()
        self._measuring.check()


def write_model(run: TrainingRun, prepared: PreparedFolder) -> Location:
    """Write the resulting model as a sentence-transformers folder, and return its place."""
    folder, config = run.run_folder, run.config
    paths, step = RunFolder(folder), _newest_step(run)
    choice = choose(folder, config.training, step, start_share(config.training, prepared.corpus))
    if config.training.keep_best and "best_by" not in choice.reasons:
        logger.warning(
            "no evaluation measured %s: the model is the last state (training.keep_best)",
            config.training.keep_best,
        )
    made, figures = choice.checkpoint, choice.figures
    if step < (last_step_of(folder) or 0):
        figures["early_end"] = step
    if scores_pairs(config):
        return _write_reranker(run, prepared, made, figures)
    spec, weights = made.spec, made.encoder_weights
    if config.encoder.max_length == "corpus":
        longest = longest_unasked(config)
        spec = replace(spec, max_length=corpus_length(prepared, spec.max_length, longest))
    if config.encoder.lsa.dimensions:
        terms = corpus_terms(prepared, spec, config.encoder.lsa)
        spec, weights = with_terms(spec, weights, terms)
    # The first card has no figures: `evaluate` measures the model later.
    facts = read_facts(paths, config, spec)
    facts = replace(facts, model=figures, comparisons=(), verdict="", digest=None)
    write_encoder(paths.model, spec, weights, prepared.tokens.tokenizer, model_card(facts))
    if exports_adapter(config.encoder):
        factors = without_objective(made.averages)
        write_adapter(paths.adapter, factors, made.frozen.scale, paths.model, paths.start)
    change = weight_change(paths.model, paths.start)
    figures[FIELD] = model_digest(paths.model)
    update_run_metrics(folder, {"model": figures, "weight_change": change})
    if not is_measured(paths, storage.read_json(paths.metrics)):
        forget_evaluation(folder)
    keep_doubts(folder)
    # A repeated, finished training has the figures of this very model already.
    write_card(paths, config, spec)
    return paths.model


def _write_reranker(
    run: TrainingRun, prepared: PreparedFolder, made: Checkpoint, figures: dict[str, Any]
) -> Location:
    """Write a cross-encoder, for sentence-transformers' `CrossEncoder`."""
    paths, spec = RunFolder(run.run_folder), made.spec
    head = of_objective(made.averages)
    card = reranker_card(spec, start_licence(run.config))
    tokenizer = prepared.tokens.tokenizer
    write_reranker(paths.reranker, spec, made.encoder_weights, head, tokenizer, card)
    figures[FIELD] = model_digest(paths.reranker)
    update_run_metrics(run.run_folder, {"model": figures})
    measured = storage.read_json(paths.metrics).get("measured", {})
    if recorded_digest(measured) != figures[FIELD]:
        forget_evaluation(run.run_folder)
    return paths.reranker


def _newest_step(run: TrainingRun) -> int:
    """Return the last step of an ended run, early or not."""
    if is_to_end(run.run_folder):
        return newest_checkpoint(run.run_folder)
    return max(run.first_step, run.last_step)
