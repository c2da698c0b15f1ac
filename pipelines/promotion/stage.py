"""Promotes a run's model if it is no worse, on the same texts, than the one in service."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NotRequired

from typing_extensions import TypedDict

from pipelines import __version__
from pipelines.errors import InputError, NothingNew, PipelineError, PromotionRefused
from pipelines.evaluation.alarms import Doubt, doubts, unmatched_sets
from pipelines.evaluation.intervals import (
    WORSE,
    Interval,
    Observations,
    Observed,
    digest_observations,
    read_observations,
)
from pipelines.evaluation.sets import intervals_between
from pipelines.files import records, storage
from pipelines.files.folders import check_place
from pipelines.files.locations import Location, location
from pipelines.files.run_folder import OBSERVATIONS, RunFolder
from pipelines.models.identity import FIELD, is_digest_of, model_digest, recorded_digest
from pipelines.progress import activity
from pipelines.promotion import served
from pipelines.promotion.gate import Figures, Judgement, compared_metrics, evaluations, judge
from pipelines.report.verdict import verdict
from pipelines.runs.opening import trained_identity
from pipelines.settings import Config
from pipelines.settings.promotion import WORSE_THAN_START

logger = logging.getLogger(__name__)

AGAIN = "Run `evaluate` again"


class _Measured(TypedDict):
    """The model and data behind a run's figures; ``model`` is its digest in earlier releases."""

    model_digest: NotRequired[str]
    model: NotRequired[str]
    sets: dict[str, str]
    observations: NotRequired[str | None]


class _Metrics(TypedDict, total=False):
    """The fields of ``metrics.json`` for a promotion, among others."""

    before: dict[str, dict[str, int | float]]
    after: dict[str, dict[str, int | float]]
    interval: dict[str, dict[str, Interval]]
    measured: _Measured
    sets: dict[str, dict[str, str]]


@dataclass(frozen=True)
class Promotion:
    """The result of a promotion, without judgements if the model was in service already."""

    version: Location
    judgements: Sequence[Judgement] = ()


@dataclass(frozen=True)
class _Candidate:
    """A run's model with its figures; see :func:`pipelines.jobs.evaluate.evaluate`.

    ``roles`` describe each set, as in ``metrics.json``. ``before`` are figures of the start,
    ``intervals`` those of the differences from it. ``doubts`` are about the model or its figures
    (:mod:`pipelines.evaluation.alarms`). ``unmatched`` are judged sets with an unknown overlap with
    the training pairs.
    """

    run: RunFolder
    model: Location
    digest: str
    figures: Figures
    sets: dict[str, str]
    roles: Mapping[str, Mapping[str, str]]
    observations: Mapping[str, Observations]
    before: Figures | None
    intervals: Mapping[str, Mapping[str, Interval]]
    doubts: Sequence[Doubt]
    unmatched: Sequence[str]


def promote(config: Config) -> Promotion:
    """Put ``run.folder/model`` in service if it passes the gate.

    The gate compares the first model with the start of its training, any other with the model in
    service, and writes its judgements to ``promotion.json`` in the run folder. A model already in
    service stays there: a repeated job does no harm.

    Raises:
        InputError: There is nothing to promote, its figures belong to another model, or the model
            in service is unknown.
        PromotionRefused: The gate refuses it, or it was rolled back before; the served folder is
            unchanged.
        PipelineError: Another promotion went on at the same time.
    """
    target = _target(config)
    candidate = _candidate(config)
    served.check_target(target)
    check_place(served.KEY, target)
    in_service = served.served_model(target)
    known = served.read_record(in_service) if in_service else {}
    noted = candidate.run.promotion
    if in_service and is_digest_of(recorded_digest(known), candidate.model):
        logger.info("the model is in service already: %s", in_service)
        # An earlier promotion of it may have been killed before its end.
        with _unchanged(target, in_service):
            served.prune(target, config.promotion.keep)
        storage.write_json(noted, known | {"promoted": True, "version": in_service.name})
        return Promotion(in_service)
    if in_service is None:
        _refuse_without_current(target)
    _refuse_rolled_back(target, candidate, in_service)
    _refuse_doubted(config, candidate, in_service)
    judgements = _judgements(config, candidate, in_service, known)
    record = _record(candidate, in_service, judgements)
    refusals = {found.metric: found.refusal for found in judgements if found.refusal}
    if refusals:
        _write_refusals(noted, record, *refusals.values())
        raise _all_of(refusals)
    # The copy comes before the lock, so that others can promote meanwhile.
    copied = served.copied(target, candidate.model, record, candidate.observations)
    with copied as copy, _unchanged(target, in_service):
        # Once more: a rollback may have happened during the copy.
        _refuse_rolled_back(target, candidate, in_service)
        version = served.place(target, copy)
        served.put_in_service(target, version, "promoted")
        served.prune(target, config.promotion.keep)
    storage.write_json(noted, record | {"promoted": True, "version": version})
    return Promotion(target / served.VERSIONS / version, judgements)


def check_new(config: Config, identity: str) -> None:
    """End a training with the settings and lanes of the model in service.

    ``identity`` is a digest; see :func:`pipelines.runs.opening.identity_digest`.

    Raises:
        NothingNew: The model in service has the same identity.
        InputError: There is no target.
    """
    in_service = served.served_model(_target(config))
    if in_service and served.read_record(in_service).get("identity") == identity:
        raise NothingNew(
            f"run.only_new: the model in service, {in_service.name}, was trained with the same "
            "settings on the same lanes"
        )


def model_in_service(config: Config) -> Location:
    """Return the version folder of the model in service; it never changes.

    Raises:
        InputError: There is none.
    """
    target = _target(config)
    found = served.served_model(target)
    if found is None:
        raise served.nothing_in_service(target)
    return found


def kept_runs(config: Config) -> set[Location]:
    """Return the run folders of the models kept in ``promotion.target``, if it is set."""
    if config.promotion.target is None:
        return set()
    target = _target(config)
    folders = (target / served.VERSIONS / name for name in served.versions(target))
    known = map(served.read_record, folders)
    return {location(record["run"]) for record in known if "run" in record}


def roll_back(config: Config, to: str | None = None) -> Location:
    """Put an older model of ``promotion.target`` back in service; return its version folder.

    ``to`` names the version; by default, the predecessor of the present one.

    Raises:
        InputError: There is no such version.
        PipelineError: A promotion goes on at the same time.
    """
    target = _target(config)
    # Checked first: the lock below would leave files in a foreign folder.
    if not served.versions(target):
        raise served.nothing_in_service(target)
    served.check_target(target)
    with served.exclusive(target):
        version = _wanted(target, to)
        served.put_in_service(target, version, "rolled back")
    return target / served.VERSIONS / version


def _wanted(target: Location, to: str | None) -> str:
    """Return the version to roll back to."""
    kept = served.versions(target)
    if to is not None:
        if to not in kept:
            raise InputError(
                "--to", f"there is no version {to} in {target}", f"Choose one of {', '.join(kept)}"
            )
        return to
    remedy = f"Choose a version with --to: {', '.join(kept) or 'there is none'}"
    current = served.served_name(target)
    if current is None:
        raise InputError(served.KEY, f"nothing is in service in {target}", remedy)
    before = next(served.predecessors(target, current), None)
    if before is None:
        problem = f"{target} keeps no version from before {current}"
        raise InputError(served.KEY, problem, remedy)
    return before


@contextmanager
def _unchanged(target: Location, in_service: Location | None) -> Iterator[None]:
    """Lock the target if the model in service has not changed since it was compared."""
    with served.exclusive(target):
        if served.served_model(target) != in_service:
            raise PipelineError(f"another promotion to {target} took place. Run it again.")
        yield


def _refuse_without_current(target: Location) -> None:
    """Refuse a target that has lost its link: its next model would pass as the first one."""
    kept = served.versions(target)
    known = (served.read_record(target / served.VERSIONS / name) for name in kept)
    # A first promotion, killed before it made the link, leaves a version without history.
    if kept and (served.read_history(target) or any(record.get("replaces") for record in known)):
        raise InputError(
            served.KEY,
            f"{target / served.CURRENT} is missing, though models were promoted",
            f"Put one back in service with `rollback --to`: {', '.join(kept)}",
        )


def _refuse_rolled_back(
    target: Location, candidate: _Candidate, in_service: Location | None
) -> None:
    """Refuse a rolled back model: a repeated job does not undo a decision."""
    version = served.rolled_back_version(target, candidate.model)
    if version is None:
        return
    refusal = PromotionRefused(
        served.KEY,
        f"this model is {version}, which was rolled back. "
        f"Run `rollback --to {version}` to put it in service again.",
    )
    _write_refusals(candidate.run.promotion, _record(candidate, in_service, ()), refusal)
    raise refusal


def _refuse_doubted(config: Config, candidate: _Candidate, in_service: Location | None) -> None:
    """Refuse a model with doubts, except those in ``promotion.accept``."""
    found = list(candidate.doubts)
    for doubt in _worse_than_start(candidate.run):
        if in_service is None:
            found.append(doubt)
        else:
            logger.warning("%s: %s", doubt.name, doubt.sentence)
    for name in candidate.unmatched:
        logger.warning("%s was not compared with the training pairs: evaluate again", name)
    refusals: list[tuple[str, PromotionRefused]] = []
    for doubt in found:
        if doubt.name in config.promotion.accept:
            logger.warning("promotion.accept: %s: %s", doubt.name, doubt.sentence)
            continue
        problem = f"{doubt.sentence} Name {doubt.name} there to promote the model all the same."
        refusals.append((doubt.name, PromotionRefused("promotion.accept", problem)))
    if refusals:
        record = _record(candidate, in_service, ())
        _write_refusals(candidate.run.promotion, record, *(refusal for _, refusal in refusals))
        raise _all_of(dict(refusals))


def _worse_than_start(run: RunFolder) -> list[Doubt]:
    """Return the doubt of a run's verdict, if the model is worse than its start."""
    found = records.built(run.metrics, verdict)
    if found is None or found.word != WORSE:
        return []
    return [Doubt(WORSE_THAN_START, f"{found.sentence} {found.next_step}")]


def _record(
    candidate: _Candidate, in_service: Location | None, judgements: Sequence[Judgement]
) -> dict[str, Any]:
    """Return the record of a promotion, kept beside the model and in the run folder."""
    return {
        "run": str(candidate.run.path),
        "when": served.now(),
        "who": served.who(),
        "release": __version__,
        FIELD: candidate.digest,
        "identity": trained_identity(candidate.model.parent),
        "replaces": in_service.name if in_service else None,
        "figures": candidate.figures,
        "sets": candidate.sets,
        "judgements": [asdict(found) for found in judgements],
        "doubts": [asdict(found) for found in candidate.doubts],
    }


def _write_refusals(noted: Location, record: dict[str, Any], *refusals: PromotionRefused) -> None:
    reasons = [str(refusal) for refusal in refusals]
    storage.write_json(noted, record | {"promoted": False, "refusals": reasons})


def _target(config: Config) -> Location:
    if config.promotion.target is None:
        raise InputError(served.KEY, "it is not set", "Name the folder that serves the models")
    return location(config.promotion.target, config.storage).absolute()


def _candidate(config: Config) -> _Candidate:
    """Return the run's model and its figures; refuse figures of another model."""
    folder = RunFolder.of(config)
    model = folder.model
    if not model.is_dir() and folder.reranker.is_dir():
        problem = f"{folder.path} holds a cross-encoder, which is not served as an encoder"
        raise InputError("run.folder", problem, "Name a run that has trained an encoder")
    if not model.is_dir():
        raise InputError("run.folder", f"there is no model in {folder.path}", "Run `train` first")
    known: _Metrics = records.read(folder.metrics, _Metrics) if folder.metrics.is_file() else {}
    if "after" not in known or "measured" not in known:
        raise InputError("run.folder", f"{model} was not evaluated", "Run `evaluate` first")
    if not is_digest_of(recorded_digest(known["measured"]), model):
        raise InputError("run.folder", f"{model} has changed since its evaluation", AGAIN)
    return _Candidate(
        folder,
        model,
        model_digest(model),
        known["after"],
        known["measured"]["sets"],
        known.get("sets", {}),
        _observations(folder, known["measured"].get("observations")),
        known.get("before"),
        known.get("interval", {}),
        records.built(folder.metrics, doubts),
        records.built(folder.metrics, unmatched_sets),
    )


def _observations(folder: RunFolder, digest: str | None) -> dict[str, Observations]:
    """Return the observations behind the figures; empty for runs of early releases."""
    if digest is None:
        return {}
    if digest_observations(folder.observations) != digest:
        problem = f"{folder.observations} has changed since its evaluation"
        raise InputError("run.folder", problem, AGAIN)
    return read_observations(folder.observations)


def _judgements(
    config: Config, candidate: _Candidate, in_service: Location | None, known: dict[str, Any]
) -> list[Judgement]:
    """Return the gate's judgements of the candidate against the model in service, if any."""
    metrics = compared_metrics(config.promotion, candidate.roles)
    compare = partial(judge, config.promotion, metrics, candidate.figures)
    # Refuses unmeasured metrics before the model in service is measured anew.
    unopposed = compare(None)
    if in_service is None and WORSE_THAN_START in config.promotion.accept:
        return unopposed
    if in_service is None:
        if candidate.before is None:
            logger.warning(
                "%s: the start was not measured, so the model has no reference",
                candidate.run.path,
            )
        return compare(None, candidate.intervals, candidate.before)
    names = evaluations(metrics)
    figures, observations = _served_measured(config, candidate, in_service, known, names)
    new, old = (
        {name: found[name] for name in names if name in found}
        for found in (candidate.observations, observations)
    )
    intervals = intervals_between(candidate.roles, old, new, config.promotion.confidence)
    return compare(figures, intervals)


def _served_measured(
    config: Config,
    candidate: _Candidate,
    in_service: Location,
    known: dict[str, Any],
    names: Sequence[str],
) -> tuple[Figures, Mapping[str, Observations]]:
    """Return the figures of the model in service on the candidate's texts.

    Figures noted at its promotion (``known``) count if their texts are the same; else it is
    evaluated anew.
    """
    wanted = {name: candidate.sets.get(name) for name in names}
    noted = known.get("sets", {})
    if "figures" in known and all(noted.get(name) == wanted[name] for name in names):
        return known["figures"], read_observations(in_service / OBSERVATIONS)

    from pipelines.evaluation.sets import digest_sets, evaluate
    from pipelines.spark.session import running_tasks, spark_session

    session = spark_session(config, needs_context=False)
    found = digest_sets(session, config)
    for name in names:
        if found.get(name) != wanted[name]:
            raise InputError(
                "run.folder", f"the texts of `{name}` have changed since the evaluation", AGAIN
            )
    logger.info("measuring the model in service on %s: %s", ", ".join(names), in_service)
    observed: dict[str, Observed] = {}
    with activity("measuring the model in service", detail=running_tasks):
        figures = evaluate(session, config, in_service, observed.__setitem__)
    return figures, {name: of_set.observations for name, of_set in observed.items()}


def _all_of(refusals: Mapping[str, PromotionRefused]) -> PromotionRefused:
    """Return the first refusal, with the names of the others."""
    (_, first), *further = refusals.items()
    if not further:
        return first
    names = ", ".join(name for name, _ in further)
    return PromotionRefused(first.key, f"{first.problem} Nor did {names} pass.")
