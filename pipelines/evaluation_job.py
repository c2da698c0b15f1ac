"""The steps of the job `evaluate`; :func:`pipelines.workflow.evaluate` puts them in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pipelines.errors import InputError, PipelineError
from pipelines.evaluation import retrieval
from pipelines.evaluation.alarms import signs_of
from pipelines.evaluation.intervals import (
    Observations,
    Observed,
    digest_observations,
    write_observations,
)
from pipelines.evaluation.overlap import overlap_of_run
from pipelines.evaluation.retrieval import Retrieved
from pipelines.evaluation.samples import write_samples
from pipelines.evaluation.sets import (
    check_sets,
    digest_sets,
    evaluate,
    intervals_between,
    told_sets,
)
from pipelines.files.locations import Location
from pipelines.files.run_folder import RunFolder
from pipelines.models.folder import digest_model, read_encoder
from pipelines.models.inference.backends import choose_backend
from pipelines.progress import activity
from pipelines.runs.checkpoint import checkpoint_steps
from pipelines.runs.job_records import add_evaluations
from pipelines.runs.step_metrics import model_step
from pipelines.settings import Config
from pipelines.spark.session import running_tasks, under_spark_submit
from pipelines.tracking import check_trackers
from pipelines.tracking.base import evaluation_values
from pipelines.tracking.run_tracking import RunTracking

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEFORE, AFTER = "before", "after"
_SHOWN = {BEFORE: "start", AFTER: "model"}


@dataclass(frozen=True)
class Measured:
    """What was measured of a run's start and of its model.

    Attributes:
        figures: Under `before` and `after` by set and metric; under `interval` where the
            differences lie, as :class:`~pipelines.evaluation.intervals.Interval` has it, under
            `sets` what each set is, and under `signs` what tells collapsed models, see
            :func:`~pipelines.evaluation.alarms.signs_of`.
        observed: Under `before` and `after` what the figures are of, by set.
    """

    figures: dict[str, dict[str, Any]]
    observed: Mapping[str, Mapping[str, Observed]]

    def observations(self, model: str) -> dict[str, Observations]:
        """Item by item, of the model `before` or `after`, by set."""
        return {name: found.observations for name, found in self.observed[model].items()}


def check_settings(config: Config, run: RunFolder) -> None:
    """Refuses what can be refused before Spark starts."""
    if not run.model.is_dir():
        raise InputError("run.folder", f"there is no model in {run.path}", "run `train` first")
    check_trackers(config.tracking)
    check_sets(config)
    # The driver of a cluster may lack what its executors have.
    if config.spark.conf.get("master", "local").startswith("local") and not under_spark_submit():
        spec, _ = read_encoder(run.model)
        choose_backend("auto", spec.kind)


def digests(session: SparkSession, config: Config, run: RunFolder) -> dict[str, Any]:
    """Digests of the run's model and of what it is measured on."""
    # What cannot be read is refused here, before anything is measured.
    with activity("evaluating", "looking at what is measured on", running_tasks):
        return _digests(session, config, run)


def measure_models(session: SparkSession, config: Config, run: RunFolder) -> Measured:
    """Measures start and model, and how much a difference between them says."""
    observed: dict[str, dict[str, Observed]] = {BEFORE: {}, AFTER: {}}
    figures: dict[str, dict[str, Any]] = {}
    for name, model in _models(run).items():
        with activity(f"evaluating the {_SHOWN[name]}", detail=running_tasks):
            figures[name] = evaluate(session, config, model, observed[name].__setitem__)
    with activity("evaluating", "intervals of the differences"):
        measured = Measured(figures, observed)
        sets = told_sets(config)
        found = intervals_between(sets, measured.observations(BEFORE), measured.observations(AFTER))
    figures["interval"] = {
        name: {metric: asdict(one) for metric, one in by_metric.items()}
        for name, by_metric in found.items()
    }
    figures["sets"] = sets
    figures["signs"] = {name: signs_of(found) for name, found in observed.items()}
    return measured


def keep_observations(run: RunFolder, measured: Measured) -> str | None:
    """Writes what the model's figures are of, with which a later model can be compared.

    Returns:
        The digest of the file; see :func:`~pipelines.evaluation.intervals.digest_observations`.
    """
    write_observations(run.observations, measured.observations(AFTER))
    return digest_observations(run.observations)


def overlap(
    session: SparkSession, config: Config, run: RunFolder, sets: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """How much of each set the run was trained on, as far as that is known.

    Args:
        sets: Their digests.
    """
    with activity("evaluating", "comparing the sets with the training pairs", running_tasks):
        found = overlap_of_run(session, config, run, sets)
    return {name: asdict(one) for name, one in found.items()}


def check_unchanged(
    session: SparkSession, config: Config, run: RunFolder, measured: Mapping[str, Any]
) -> None:
    """Makes sure that figures belong to the model that is there now, which promotion relies on.

    Raises:
        PipelineError: A training, or a preparation, has ended meanwhile.
    """
    if _digests(session, config, run) != measured:
        problem = "the model, or what it is measured on, changed meanwhile"
        raise PipelineError(f"{run.path}: {problem}; evaluate it again")


def sample_held_out(
    session: SparkSession, config: Config, run: RunFolder, measured: Measured
) -> None:
    """Writes the held-out pairs that the report shows."""
    held_out = retrieval.EVALUATION.name
    retrieved = {name: by_set.get(held_out) for name, by_set in measured.observed.items()}
    found = {name: one for name, one in retrieved.items() if isinstance(one, Retrieved)}
    with activity("evaluating", "samples and a map of them", running_tasks):
        write_samples(session, config, _models(run), found)


def log_figures(run: RunFolder, measured: Measured, tracking: RunTracking) -> None:
    """Adds the figures to the curves over the steps: the start is step 0."""
    made = model_step(run.path) or max(checkpoint_steps(run.path), default=0)
    for name, step in ((BEFORE, 0), (AFTER, made)):
        figures = measured.figures[name]
        add_evaluations(run.path, step, figures)
        tracking.log(step, evaluation_values("evaluation", figures))
        tracking.log(made, evaluation_values(name, figures))


def _digests(session: SparkSession, config: Config, run: RunFolder) -> dict[str, Any]:
    return {"model": digest_model(run.model), "sets": digest_sets(session, config)}


def _models(run: RunFolder) -> dict[str, Location]:
    return {BEFORE: run.start, AFTER: run.model}
