"""`evaluate`: measures a run's model beside its start, in figures, samples and a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import SparkSession
from rich.text import Text

from pipelines.errors import InputError, PipelineError
from pipelines.evaluation import retrieval
from pipelines.evaluation.alarms import keep_doubts, signs_of
from pipelines.evaluation.intervals import (
    NOT_SIGNIFICANT,
    WORSE,
    Observations,
    Observed,
    digest_observations,
    write_observations,
)
from pipelines.evaluation.overlap import overlap_of_run
from pipelines.evaluation.pairs import is_pair_file
from pipelines.evaluation.retrieval import Retrieved
from pipelines.evaluation.samples import write_samples
from pipelines.evaluation.sets import (
    check_sets,
    digest_sets,
    in_place,
    intervals_between,
    told_sets,
)
from pipelines.evaluation.sets import evaluate as measure
from pipelines.files import storage
from pipelines.files.locations import Location
from pipelines.files.ownership import RUN, is_ours
from pipelines.files.run_folder import RunFolder
from pipelines.jobs.base import Results, job, say_model, say_report
from pipelines.jobs.kept_start import keeps_start, shows_gain
from pipelines.jobs.report import draw_report
from pipelines.losses.loss import scores_pairs
from pipelines.model_card.card import write_card
from pipelines.models.folder import check_sides, read_specs
from pipelines.models.identity import FIELD, model_digest
from pipelines.models.inference.backends import choose_backend
from pipelines.progress import activity
from pipelines.progress.screen import Screen
from pipelines.report.verdict import VERDICT_STYLES, metrics_table, verdict
from pipelines.runs.checkpoint import checkpoint_steps
from pipelines.runs.job_records import Start, add_evaluations, begin_job, end_job
from pipelines.runs.opening import check_measured
from pipelines.runs.step_metrics import model_step, update_run_metrics
from pipelines.settings import Config
from pipelines.spark.session import running_tasks, spark_session, under_spark_submit
from pipelines.spark.stage_resources import stage_settings
from pipelines.tracking import check_trackers
from pipelines.tracking.base import evaluation_values
from pipelines.tracking.run_tracking import RunTracking

Metrics = dict[str, dict[str, float]]
BEFORE, AFTER = "before", "after"
_SHOWN = {BEFORE: "start", AFTER: "model"}


@dataclass(frozen=True)
class Measured:
    """The measurements of a run's start and of its model.

    Attributes:
        figures: Under `before` and `after` by set and metric; under `interval` the differences, as
            an :class:`~pipelines.evaluation.intervals.Interval` has them; under `sets` what each
            set is; under `signs` the signs of collapse, see
            :func:`~pipelines.evaluation.alarms.signs_of`.
        observed: Under `before` and `after` the observations behind the figures, by set.
    """

    figures: dict[str, dict[str, Any]]
    observed: Mapping[str, Mapping[str, Observed]]

    def observations(self, model: str) -> dict[str, Observations]:
        """Return the observations of the model `before` or `after`, item by item, by set."""
        return {name: found.observations for name, found in self.observed[model].items()}


@job("evaluating", works_in=("run.folder",), check=check_measured, stalls=True)
def evaluate(config: Config) -> dict[str, Metrics]:
    """Measure the run's start and its model; write `metrics.json`, samples and the report.

    With `run.keep_start`, replace a model without a gain by its start, and measure that. A model
    in which an earlier evaluation has found a gain stays.

    Returns:
        The figures under `before` and `after`, under `interval` the known differences, and under
        `sets` a description of each set.

    Raises:
        InputError: There is no model, or its evaluation sets are unreadable.
        PipelineError: A training has replaced the model meanwhile.
    """
    _check(config, RunFolder.of(config))
    is_better = shows_gain(config)
    figures = _evaluate(config)
    return _evaluate(config) if not is_better and keeps_start(config, figures) else figures


def _evaluate(config: Config) -> dict[str, Metrics]:
    start_of_job = Start()
    run = RunFolder.of(config)
    session = spark_session(config.for_stage("evaluate"), needs_context=False)
    with stage_settings(session, config, "evaluate"):
        # It refuses unreadable sets before any measurement.
        with activity("evaluating", "reading the evaluation sets", running_tasks):
            digests = _digests(session, config, run)
        with activity("evaluating", "comparing the sets with the training pairs", running_tasks):
            overlap = overlap_of_run(session, config, run, digests["sets"])
        begin_job(run.path, "evaluate", start_of_job)
        with RunTracking(config, run.path) as tracking:
            measured = measure_models(session, config, run)
            if _digests(session, config, run) != digests:
                problem = "the model or its evaluation sets changed meanwhile"
                raise PipelineError(f"{run.path}: {problem}. Evaluate it again.")
            write_observations(run.observations, measured.observations(AFTER))
            known = {
                "overlap": {name: asdict(found) for name, found in overlap.items()},
                "measured": digests | {"observations": digest_observations(run.observations)},
            }
            update_run_metrics(run.path, measured.figures | known)
            keep_doubts(run.path)
            _write_samples(session, config, run, measured)
            _log_figures(run, measured, tracking)
            # The report shows the duration of the job.
            end_job(run.path, start_of_job)
            with activity("evaluating", "drawing the report"):
                draw_report(config)
                # The card of a model from elsewhere is the user's.
                has_card = is_ours(run.path, RUN) and not scores_pairs(config)
                cards = [write_card(run, config)] if has_card else []
            tracking.keep(run.report, run.metrics, run.evaluations, *cards)
    return measured.figures


def _check(config: Config, run: RunFolder) -> None:
    """Refuse missing models and wrong settings before Spark starts."""
    model = trained_model(config, run)
    if not model.is_dir():
        raise InputError("run.folder", f"there is no {model}", "Run `train` first")
    check_trackers(config.tracking)
    check_sets(config)
    encoder = run.start if scores_pairs(config) else run.model
    # The driver of a cluster may lack what its executors have.
    is_local = config.spark.conf.get("master", "local").startswith("local")
    try:
        if not is_local or under_spark_submit():
            check_sides(encoder)
            return
        specs = read_specs(encoder)
    except InputError as error:
        raise InputError("run.folder", error.problem, error.remedy) from None
    choose_backend("auto", *(spec.kind for spec in specs))


def _digests(session: SparkSession, config: Config, run: RunFolder) -> dict[str, Any]:
    model = trained_model(config, run)
    return {FIELD: model_digest(model), "sets": digest_sets(session, _measured_by(config))}


def trained_model(config: Config, run: RunFolder) -> Location:
    """Return the folder of what a training makes: an encoder, or a cross-encoder."""
    return run.reranker if scores_pairs(config) else run.model


def _measured_by(config: Config) -> Config:
    """Return the settings to measure by: a cross-encoder only ranks."""
    if not scores_pairs(config):
        return config
    nothing: dict[str, Any] = {"similarity": (), "classification": (), "geometry": False}
    guards = tuple(guard for guard in config.evaluation.guards if not is_pair_file(guard))
    return config.changed("evaluation", **nothing, guards=guards, samples=0, reranker=None)


def measure_models(session: SparkSession, config: Config, run: RunFolder) -> Measured:
    """Measure start and model, and the intervals of their differences.

    A model with the very files of the start has its figures.
    """
    observed: dict[str, dict[str, Observed]] = {BEFORE: {}, AFTER: {}}
    figures: dict[str, dict[str, Any]] = {}
    config = _measured_by(config)
    for name, model in _models(run, config).items():
        if name == AFTER and model_digest(model) == model_digest(run.start):
            figures[AFTER], observed[AFTER] = figures[BEFORE], observed[BEFORE]
            break
        with activity(f"evaluating the {_SHOWN[name]}", detail=running_tasks):
            measured_by = config
            if model == run.reranker:
                measured_by = config.changed("evaluation", reranker=str(run.reranker))
                model = run.start  # noqa: PLW2901 - whose ranking it improves
            figures[name] = measure(session, measured_by, model, observed[name].__setitem__)
            if scores_pairs(config):
                figures[name] = in_place(measured_by, figures[name])
                observed[name] = in_place(measured_by, observed[name])
    with activity("evaluating", "computing intervals of the differences"):
        measured = Measured(figures, observed)
        sets = told_sets(config)
        found = intervals_between(sets, measured.observations(BEFORE), measured.observations(AFTER))
    figures["interval"] = {
        name: {metric: asdict(interval) for metric, interval in by_metric.items()}
        for name, by_metric in found.items()
    }
    figures["sets"] = sets
    figures["signs"] = {name: signs_of(of_model) for name, of_model in observed.items()}
    return measured


def _write_samples(
    session: SparkSession, config: Config, run: RunFolder, measured: Measured
) -> None:
    """Write the held-out pairs of the report."""
    held_out = retrieval.EVALUATION.name
    retrieved = {name: by_set.get(held_out) for name, by_set in measured.observed.items()}
    found = {name: held for name, held in retrieved.items() if isinstance(held, Retrieved)}
    if scores_pairs(config):
        return  # They show neighbours by embeddings.
    with activity("evaluating", "writing samples and their map", running_tasks):
        write_samples(session, config, _models(run, config), found)


def _log_figures(run: RunFolder, measured: Measured, tracking: RunTracking) -> None:
    """Add the figures to the curves over the steps; the start is step 0."""
    known = model_step(run.path)
    newest = max(checkpoint_steps(run.path), default=0)
    made = newest if known is None else known
    for name, step in ((BEFORE, 0), (AFTER, made)):
        figures = measured.figures[name]
        add_evaluations(run.path, step, figures)
        tracking.log(step, evaluation_values("evaluation", figures))
        # Trackers show the last step; a start that is kept is of step 0.
        tracking.log(made or newest, evaluation_values(name, figures))


def _models(run: RunFolder, config: Config) -> dict[str, Location]:
    return {BEFORE: run.start, AFTER: trained_model(config, run)}


def command(config: Config) -> Results:
    """Evaluate start and model, and print the figures."""
    figures = evaluate(config)
    show_figures(config, figures)
    return figures


def show_figures(config: Config, figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the figures of a run, the verdict, and the places of report and model."""
    folder = RunFolder.of(config)
    screen = Screen()
    # Only the record names the model's state and its training data.
    recorded = storage.read_json(folder.metrics) if folder.metrics.is_file() else {}
    known = {**recorded, **figures}
    screen.print(metrics_table(known, screen.width))
    if found := verdict(known):
        # Not as markup: the name of a set may hold brackets.
        word = NOT_SIGNIFICANT if found.is_doubted else found.word
        screen.print(Text(str(found), VERDICT_STYLES[WORSE if found.alarms else word]))
    say_report(folder.report)
    say_model(config, trained_model(config, folder))
