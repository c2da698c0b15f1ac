"""The steps of the job `train`; :func:`pipelines.workflow.train` puts them in order.

What can be refused is refused before the run folder is touched.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.engines.base import Engine, check_fit
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
from pipelines.lanes.files import LaneManifest
from pipelines.lanes.plan import BatchPlan
from pipelines.libraries import DRIVER, check_installed
from pipelines.model_card.card import model_card, write_card
from pipelines.model_card.front_matter import CardFacts, read_facts
from pipelines.models.adaptation import (
    check_names,
    exports_adapter,
    split,
    without_objective,
    write_adapter,
)
from pipelines.models.architecture import architecture_of, check_framework
from pipelines.models.folder import start_card, start_encoder, weight_change, write_encoder
from pipelines.models.lsa.corpus import check_terms, corpus_terms
from pipelines.models.lsa.embedding import with_terms
from pipelines.models.spec import EncoderSpec
from pipelines.models.start import longest_unasked, model_length
from pipelines.models.weights import Weights, check_division
from pipelines.pretraining.start import objective_weights, special_ids
from pipelines.progress import activity
from pipelines.runs.attempts import begin_attempt
from pipelines.runs.checkpoint import (
    Checkpoint,
    checkpoint_steps,
    load_checkpoint,
    newest_checkpoint,
    prune_checkpoints,
    save_checkpoint,
    save_frozen,
)
from pipelines.runs.job_records import go_on, last_step_of
from pipelines.runs.model_choice import WHOLE, asked_steps, choose, is_to_end, start_share
from pipelines.runs.opening import (
    check_run_folder,
    open_run_folder,
    tell_if_finished,
)
from pipelines.runs.run import TrainingOutcome, TrainingRun, with_axes
from pipelines.runs.step_metrics import (
    MetricsLog,
    forget_earlier_model,
    logged_figures,
    seconds_to,
    training_figures,
    update_run_metrics,
)
from pipelines.settings import Config
from pipelines.settings.spark import StageName
from pipelines.spark.errors import executor_failures
from pipelines.spark.jobs import stall_failures
from pipelines.spark.session import spark_session
from pipelines.tokens.stage import check_tokens, corpus_length
from pipelines.tracking import check_trackers
from pipelines.tracking.base import evaluation_values, training_values
from pipelines.tracking.run_tracking import RunTracking
from pipelines.training_plan import check_labels

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

LOCK_CHECK_SECONDS = 1.0
"""The shortest time between two looks at the locks of a training."""


def check_settings(chosen: Engine, config: Config) -> None:
    """Refuses settings that the engine or the trackers cannot follow."""
    check_fit(chosen, config)
    chosen.check_libraries(config)
    if config.encoder.lsa.dimensions:
        check_installed("encoder.lsa.dimensions", "sklearn", where=DRIVER)
    check_trackers(config.tracking)


def checked_start(config: Config, prepared: PreparedFolder, manifest: LaneManifest) -> Checkpoint:
    """What a run begins with, once all has been looked at that can be before Spark starts."""
    folder, has_run = check_run_folder(config)
    with activity("training", "reading the start encoder"):
        goes_on = has_run and config.training.resume
        asked = _begun(config, folder) if goes_on else config
        spec, weights = start_encoder(asked, manifest.vocabulary)
        check_framework(architecture_of(spec), config)
        check_division(architecture_of(spec).division, spec, config)
        check_terms(config, spec)
        held = manifest.teacher if config.objective.uses_teacher else None
        for objective in {one.objective: None for one in config.by_source()}:
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
    """The settings of a run that goes on: what its start was made of is not made again."""
    start = RunFolder(folder).start
    if config.encoder.keep_layers != 0 or not start.is_dir():
        return config
    encoder = config.encoder.model_copy(update={"start": str(start), "keep_layers": None})
    return config.model_copy(update={"encoder": encoder})


def _tell_trained(trained: Weights, frozen: Mapping[str, np.ndarray]) -> None:
    """Logs how much of the encoder is trained."""
    numbers, others = (sum(one.size for one in part.values()) for part in (trained, frozen))
    logger.info("%s numbers are trained, and %s are not", f"{numbers:,}", f"{others:,}")


def _bytes_of_start(weights: Weights, trained: Weights, frozen: Mapping[str, np.ndarray]) -> int:
    """What a run needs at least: the model at its start and end, and two checkpoints.

    The first checkpoint holds what is trained alone, the second AdamW's two moments of each as
    well; beside them lies what is not trained.
    """
    whole, of_checkpoint, beside = (
        sum(array.nbytes for array in arrays.values()) for arrays in (weights, trained, frozen)
    )
    return (1 + 1) * whole + (1 + 3) * of_checkpoint + beside


def session_for(chosen: Engine, config: Config, stage: StageName = "train") -> SparkSession | None:
    """The session that an engine trains in, if it needs one.

    Args:
        stage: For which it is started, if there is none.
    """
    if not chosen.needs_spark:
        return None
    return spark_session(
        config.for_stage(stage),
        executors=chosen.executors(config),
        conf=partial(chosen.session_conf, config),
    )


def checkpoint_snapshots(config: Config, session: SparkSession | None) -> Sequence[Snapshot]:
    """What checkpoints are measured on while training goes on, if they are."""
    if not config.evaluation.every_checkpoints:
        return ()
    work = "reading what checkpoints are measured on"
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
    """Opens the run folder, anew or to go on, and says which steps are left."""
    folder, goes_on = open_run_folder(config, plan, manifest)
    run_begun()
    # From here on nothing counts that an earlier driver, or its workers, may still write there; nor
    # does what they have written since the folder was opened, if the run is a new one.
    attempt = begin_attempt(folder, newest_checkpoint(folder) if goes_on else None)
    if not goes_on:
        save_frozen(folder, start.frozen)
        save_checkpoint(folder, start, config.training.keep_checkpoints, attempt=attempt)
    _write_start(folder, prepared)
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


def _write_start(folder: Location, prepared: PreparedFolder) -> None:
    """Writes what a run begins with into its folder, where it is not yet."""
    # Another preparation may take the place of this one before the report is drawn.
    tokens = storage.read_json(prepared.tokens.manifest)
    storage.write_json(RunFolder(folder).tokens, tokens)
    if prepared.corpus.funnel.is_file():
        funnel = storage.read_json(prepared.corpus.funnel)
        storage.write_json(RunFolder(folder).funnel, funnel)
    keep_overlap(prepared, RunFolder(folder))
    start_folder = RunFolder(folder).start
    if not start_folder.is_dir():
        with activity("training", "writing the start encoder"):
            start_state = load_checkpoint(folder, 0, lazily=True)
            write_encoder(
                start_folder,
                start_state.spec,
                start_state.encoder_weights,
                prepared.tokens.tokenizer,
                start_card(start_state.spec),
            )


def train_steps(
    chosen: Engine,
    session: SparkSession | None,
    run: TrainingRun,
    snapshots: Sequence[Snapshot],
    tracking: RunTracking,
) -> None:
    """Has the engine make the steps that are left, and adds up what the training was.

    Where none is left, checkpoints that were not compared yet for ``training.keep_best`` are.
    """
    folder = run.run_folder
    # A run may have died between its last step and its model.
    if run.first_step < run.last_step:
        forget_earlier_model(folder)
        before = seconds_to(folder, run.first_step)
        outcome = _train(chosen, session, run, snapshots, tracking)
        training, last = run.config.training, _newest_step(run)
        prune_checkpoints(folder, last, training.keep_checkpoints, training.averaged_steps(last))
        update_run_metrics(folder, {"training": training_figures(run, outcome, before)})
        return
    if run.config.training.keep_best:
        with _measuring(run, snapshots, tracking):
            pass
    if figures := logged_figures(run):
        update_run_metrics(folder, {"training": figures})


def write_model(run: TrainingRun, prepared: PreparedFolder) -> None:
    """Writes the model that came out as a sentence-transformers folder."""
    folder = run.run_folder
    paths, step = RunFolder(folder), _newest_step(run)
    share = start_share(run.config.training, prepared.corpus)
    choice = choose(folder, run.config.training, step, share)
    if run.config.training.keep_best and "best_by" not in choice.reasons:
        logger.warning(
            "no checkpoint was measured by %s: the model is the last state (training.keep_best)",
            run.config.training.keep_best,
        )
    made, figures = choice.checkpoint, choice.figures
    if step < (last_step_of(folder) or 0):
        figures["early_end"] = step
    spec, weights = made.spec, made.encoder_weights
    if run.config.encoder.max_length == "corpus":
        longest = longest_unasked(run.config)
        spec = replace(spec, max_length=corpus_length(prepared, spec.max_length, longest))
    if run.config.encoder.lsa.dimensions:
        terms = corpus_terms(prepared, spec, run.config.encoder.lsa)
        spec, weights = with_terms(spec, weights, terms)
    card = model_card(_unmeasured(run, spec, figures))
    write_encoder(paths.model, spec, weights, prepared.tokens.tokenizer, card)
    if exports_adapter(run.config.encoder):
        factors = without_objective(made.averages)
        write_adapter(paths.adapter, factors, made.frozen.scale, paths.model, paths.start)
    change = weight_change(paths.model, paths.start)
    update_run_metrics(folder, {"model": figures, "weight_change": change})
    keep_doubts(folder)
    # Figures that are there are of this model, if a finished training was asked for again.
    write_card(paths, run.config, spec)


def _unmeasured(run: TrainingRun, spec: EncoderSpec, figures: Mapping[str, Any]) -> CardFacts:
    """What the card says of a model that is not there yet.

    Args:
        figures: Which state it is.
    """
    known = read_facts(RunFolder(run.run_folder), run.config, spec)
    return replace(known, model=figures, comparisons=(), verdict="")


def _newest_step(run: TrainingRun) -> int:
    """The last step of a run that has come to its end, early or not."""
    if is_to_end(run.run_folder):
        return newest_checkpoint(run.run_folder)
    return max(run.first_step, run.last_step)


def _train(
    chosen: Engine,
    session: SparkSession | None,
    run: TrainingRun,
    snapshots: Sequence[Snapshot],
    tracking: RunTracking,
) -> TrainingOutcome:
    with _measuring(run, snapshots, tracking) as measuring, MetricsLog(run) as log:
        return chosen.train(session, run, _Listener(log, tracking, measuring, locks.held_here()))


def _measuring(
    run: TrainingRun, snapshots: Sequence[Snapshot], tracking: RunTracking
) -> CheckpointEvaluation:
    """While it is entered, the checkpoints of a run are measured."""

    def on_figures(step: int, figures: Figures) -> None:
        tracking.log(step, evaluation_values("evaluation", figures))

    tokenizer = PreparedFolder.of(run.config).tokens.tokenizer
    metric = choosing_metric(run.config)
    return CheckpointEvaluation(snapshots, run, tokenizer, on_figures, metric)


class _Listener:
    """Takes a run's metrics lines, and hears of each step, while the run goes on."""

    def __init__(
        self,
        log: MetricsLog,
        tracking: RunTracking,
        measuring: CheckpointEvaluation,
        held: Sequence[locks.Lock],
    ) -> None:
        self._log = log
        self._following = tracking
        self._measuring = measuring
        self._held = held
        self._checked = time.monotonic()

    def __call__(self, line: dict[str, Any]) -> None:
        self._check_locks()
        self._log.add(line)
        self._following.log(line["step"], training_values(line))

    def step_done(self, step: int) -> None:
        self._check_locks()
        self._log.step_done(step)

    def checkpoint_saved(self) -> None:
        self._log.checkpoint_saved()

    def _check_locks(self) -> None:
        """Looks at the locks, but not at each of a thousand steps a second."""
        now = time.monotonic()
        if now - self._checked < LOCK_CHECK_SECONDS:
            return
        self._checked = now
        for lock in self._held:
            lock.check()
        self._measuring.check()
