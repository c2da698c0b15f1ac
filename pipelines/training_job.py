"""The steps of the job `train`; :func:`pipelines.workflow.train` puts them in order.

What can be refused is refused before the run folder is touched.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from pipelines.embedding.teacher import check_lanes_of_teacher
from pipelines.engines.base import Engine, check_fit
from pipelines.errors import InputError
from pipelines.evaluation.during_training import CheckpointEvaluation, Figures
from pipelines.evaluation.sets import check_sets
from pipelines.evaluation.snapshot import Snapshot, read_snapshots
from pipelines.files import locks, storage
from pipelines.files.folders import check_room
from pipelines.files.locations import Location, arrow_source
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.files.run_folder import RunFolder
from pipelines.interruption import run_begun
from pipelines.lanes.files import LaneManifest
from pipelines.lanes.plan import BatchPlan
from pipelines.losses import LOSSES
from pipelines.models.adaptation import split, without_objective
from pipelines.models.adapter import write_adapter
from pipelines.models.architecture import architecture_of, check_framework
from pipelines.models.card import model_card
from pipelines.models.folder import start_encoder, write_encoder
from pipelines.models.weights import Weights
from pipelines.pretraining.own_weights import objective_weights
from pipelines.progress import activity
from pipelines.runs.checkpoint import (
    Checkpoint,
    load_checkpoint,
    newest_checkpoint,
    prune_checkpoints,
    save_checkpoint,
    save_frozen,
)
from pipelines.runs.history import go_on
from pipelines.runs.metrics_log import MetricsLog
from pipelines.runs.opening import (
    can_resume,
    check_run_folder,
    open_run_folder,
    tell_if_finished,
)
from pipelines.runs.run import TrainingOutcome, TrainingRun
from pipelines.runs.run_metrics import (
    forget_earlier_model,
    logged_figures,
    seconds_to,
    training_figures,
    update_run_metrics,
)
from pipelines.settings import Config
from pipelines.settings.stages import StageName, for_stage
from pipelines.spark.errors import executor_failures
from pipelines.spark.parquet_parts import data_files
from pipelines.spark.session import spark_session
from pipelines.tokens.special_ids import SpecialIds
from pipelines.tokens.stage import check_tokens
from pipelines.tokens.vocabulary import read_special_ids
from pipelines.tracking import check_trackers
from pipelines.tracking.names import evaluation_values, training_values
from pipelines.tracking.run_tracking import RunTracking

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

LOCK_CHECK_SECONDS = 1.0
"""The shortest time between two looks at the locks of a training."""


def check_settings(chosen: Engine, config: Config) -> None:
    """Refuses settings that the engine or the trackers cannot follow."""
    check_fit(chosen, config)
    chosen.check_libraries(config)
    check_trackers(config.tracking)


def batch_plan(config: Config, manifest: LaneManifest) -> BatchPlan:
    """The order of the steps; refuses what the lanes do not allow."""
    training = config.training
    if training.mode == "sync" and training.processes > manifest.lanes:
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
    needs = LOSSES.load(config.objective.name).needs
    if needs not in ("singles", "teacher") and not manifest.paired:
        raise InputError("objective.name", "the lanes hold single texts", "set it to simcse")
    if needs == "triplets" and not manifest.negatives:
        raise InputError(
            "objective.name",
            "the lanes hold no hard negatives",
            "set corpus.pairs to triplets and prepare again",
        )
    there = {"scores": manifest.scored, "candidate_scores": manifest.candidates_scored}
    columns = {"scores": "corpus.score_column", "candidate_scores": "corpus.score_columns"}
    if not there.get(needs, True):
        raise InputError(
            "objective.name", "the lanes hold no scores", f"set {columns[needs]} and prepare again"
        )
    if config.objective.uses_teacher:
        check_lanes_of_teacher(config, manifest.teacher)
    return BatchPlan(
        lanes=manifest.lanes,
        rows=manifest.rows,
        granules_per_step=training.granules_per_step,
        seed=training.seed,
    )


def check_labels(config: Config, examples: Location) -> None:
    """Refuses scores other than 0 and 1 where the loss takes them for labels.

    Args:
        examples: What the lanes are made of; of its files only this column is read.

    Raises:
        InputError: There is one.
    """
    name = config.objective.name
    if not LOSSES.load(name).labels:
        return
    for path in data_files(examples):
        with pq.ParquetFile(arrow_source(path)) as file:
            for batch in file.iter_batches(columns=["score"]):
                scores = batch.column("score").to_numpy(zero_copy_only=False)
                others = scores[(scores != 0) & (scores != 1)]
                if len(others):
                    raise InputError(
                        "corpus.score_column",
                        f"`{name}` needs labels, 0 or 1, and {others[0]:g} is among the scores",
                        "name a column of labels, or another loss",
                    )


def checked_start(config: Config, prepared: PreparedFolder, manifest: LaneManifest) -> Checkpoint:
    """What a run begins with, once all has been looked at that can be before Spark starts."""
    folder, has_run = check_run_folder(config)
    with activity("training", "reading the start encoder"):
        spec, weights = start_encoder(config, manifest.vocabulary)
        check_framework(architecture_of(spec), config)
        config.objective.check_width(spec.hidden)
        check_tokens(prepared.tokens.path, config)
        check_labels(config, prepared.tokens.examples)
        trained, frozen = split(config.encoder, weights, config.training.seed)
        trained |= objective_weights(config, spec)
        special_ids(config, prepared)
    if config.evaluation.every_checkpoints:
        check_sets(config)
    if not has_run:
        needed = _bytes_of_start(weights, trained, frozen.weights)
        check_room("run.folder", folder, needed, "the first checkpoints and models")
    if frozen.weights:
        _tell_trained(trained, frozen.weights)
    return Checkpoint(0, spec, trained, {}, frozen)


def special_ids(config: Config, prepared: PreparedFolder) -> SpecialIds | None:
    """The ids of the vocabulary that are no words, if the objective asks for them.

    Raises:
        InputError: It needs a mask token, and there is none.
    """
    name = config.objective.name
    own = LOSSES.load(name).reconstruction
    if own is None:
        return None
    folder = prepared.tokens.tokenizer
    ids = read_special_ids(folder)
    if own.masks and ids.mask is None:
        raise InputError(
            "tokens.vocabulary",
            f"the tokenizer in {folder} has no mask token, which `{name}` needs",
            "one that has, as BERT's, or objective.name: tsdae",
        )
    return ids


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
        for_stage(config, stage),
        executors=chosen.executors(config),
        conf=partial(chosen.session_conf, config),
    )


def checkpoint_snapshots(config: Config, session: SparkSession | None) -> Sequence[Snapshot]:
    """What checkpoints are measured on while training goes on, if they are."""
    if not config.evaluation.every_checkpoints:
        return ()
    with executor_failures("reading what checkpoints are measured on"):
        asked = for_stage(config, "train")
        return read_snapshots(session or spark_session(asked, needs_context=False), config)


def open_run(
    config: Config,
    prepared: PreparedFolder,
    plan: BatchPlan,
    manifest: LaneManifest,
    start: Checkpoint,
) -> TrainingRun:
    """Opens the run folder, anew or to go on, and says which steps are left."""
    folder = open_run_folder(config, plan, manifest)
    run_begun()
    _write_start(config, folder, prepared, start)
    first_step = newest_checkpoint(folder)
    steps = plan.steps_per_epoch * config.training.epochs
    last_step = min(steps, config.training.max_steps or steps)
    run = TrainingRun(
        config=config,
        plan=plan,
        manifest=manifest,
        lanes_folder=prepared.lanes.path,
        run_folder=folder,
        first_step=first_step,
        last_step=last_step,
        horizons=go_on(folder, config, first_step, last_step),
        special_ids=special_ids(config, prepared),
    )
    tell_if_finished(run)
    return run


def _write_start(
    config: Config, folder: Location, prepared: PreparedFolder, start: Checkpoint
) -> None:
    """Writes what a run begins with into its folder, where it is not yet."""
    # Another preparation may take the place of this one before the report is drawn.
    tokens = storage.read_json(prepared.tokens.manifest)
    storage.write_json(RunFolder(folder).tokens, tokens)
    if not can_resume(folder):
        save_frozen(folder, start.frozen)
        save_checkpoint(folder, start, config.training.keep_checkpoints)
    start_folder = RunFolder(folder).start
    if not start_folder.is_dir():
        with activity("training", "writing the start encoder"):
            _export(folder, 0, prepared, start_folder)


def train_steps(
    chosen: Engine,
    session: SparkSession | None,
    run: TrainingRun,
    snapshots: Sequence[Snapshot],
    tracking: RunTracking,
) -> None:
    """Has the engine make the steps that are left, and adds up what the training was."""
    folder = run.run_folder
    # A run may have died between its last step and its model.
    if run.first_step < run.last_step:
        forget_earlier_model(folder)
        before = seconds_to(folder, run.first_step)
        outcome = _train(chosen, session, run, snapshots, tracking)
        prune_checkpoints(folder, run.last_step, run.config.training.keep_checkpoints)
        update_run_metrics(folder, {"training": training_figures(run, outcome, before)})
    elif figures := logged_figures(run):
        update_run_metrics(folder, {"training": figures})


def write_model(run: TrainingRun, prepared: PreparedFolder) -> None:
    """Writes the model that came out as a sentence-transformers folder."""
    folder, lora = run.run_folder, run.config.encoder.lora
    paths, step = RunFolder(folder), max(run.first_step, run.last_step)
    _export(folder, step, prepared, paths.model, run.config.objective.dimensions)
    if lora.rank and lora.export == "adapter":
        made = load_checkpoint(folder, step)
        factors = without_objective(made.weights)
        write_adapter(paths.adapter, factors, made.frozen.scale, paths.model, paths.start)


def _train(
    chosen: Engine,
    session: SparkSession | None,
    run: TrainingRun,
    snapshots: Sequence[Snapshot],
    tracking: RunTracking,
) -> TrainingOutcome:
    def on_figures(step: int, figures: Figures) -> None:
        tracking.log(step, evaluation_values("evaluation", figures))

    tokenizer = PreparedFolder.of(run.config).tokens.tokenizer
    with CheckpointEvaluation(snapshots, run, tokenizer, on_figures), MetricsLog(run) as log:
        return chosen.train(session, run, _Listener(log, tracking, locks.held_here()))


class _Listener:
    """Takes a run's metrics lines, and hears of each step, while the run goes on."""

    def __init__(self, log: MetricsLog, tracking: RunTracking, held: Sequence[locks.Lock]) -> None:
        self._log = log
        self._following = tracking
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


def _export(
    folder: Location,
    step: int,
    prepared: PreparedFolder,
    target: Location,
    dimensions: Sequence[int] = (),
) -> None:
    """Writes the weights before a step as a sentence-transformers folder."""
    checkpoint = load_checkpoint(folder, step)
    tokens = prepared.tokens
    card = model_card(checkpoint.spec, step, storage.read_json(tokens.manifest), dimensions)
    write_encoder(target, checkpoint.spec, checkpoint.encoder_weights, tokens.tokenizer, card)
