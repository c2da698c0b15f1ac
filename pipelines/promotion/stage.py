"""Promotes a run's model: equals are compared with equals, and the gate decides."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelines import __version__, storage
from pipelines.errors import InputError, PipelineError, PromotionRefused
from pipelines.promotion import history, served
from pipelines.promotion.gate import Figures, Judgement, evaluations, judge
from pipelines.settings import Config

logger = logging.getLogger(__name__)

AGAIN = "run `evaluate` again"


@dataclass(frozen=True)
class Promotion:
    """What a promotion has come to.

    Attributes:
        version: The folder of the version in service.
        judgements: What the gate said; nothing where the model was in service already.
    """

    version: Path
    judgements: Sequence[Judgement] = ()


@dataclass(frozen=True)
class _Candidate:
    """A run's model with what was measured of it; see :func:`pipelines.workflow.evaluate`."""

    model: Path
    digest: str
    figures: Figures
    sets: dict[str, str]


def promote(config: Config) -> Promotion:
    """Puts ``run.folder/model`` in service if the gate lets it pass.

    What the gate says is written to ``promotion.json`` in the run folder. A model that is in
    service already is left there, so that a job that is run again does no harm.

    Raises:
        InputError: There is nothing to promote, or what was measured does not belong to it, or
            what is in service is not known.
        PromotionRefused: The gate keeps it out, or one has gone back from it; the folder that is
            served is as it was.
        PipelineError: Another promotion went on at the same time.
    """
    target = _target(config)
    candidate = _candidate(config)
    in_service = served.served_model(target)
    known = served.read_record(in_service) if in_service else {}
    verdict = candidate.model.parent / served.RECORD
    if in_service and known.get("model") == candidate.digest:
        logger.info("this model is in service already: %s", in_service)
        # The promotion may have been killed before it could say so, or could end.
        with _unchanged(target, in_service):
            served.prune(target, config.promotion.keep)
        storage.write_json(verdict, known | {"promoted": True, "version": in_service.name})
        return Promotion(in_service)
    if in_service is None:
        _refuse_without_current(target)
    _refuse_what_was_gone_back_from(target, candidate, in_service)
    figures = _served_figures(config, candidate, in_service, known) if in_service else None
    judgements = judge(config.promotion, candidate.figures, figures)
    record = _record(candidate, in_service, judgements)
    refusals = {found.metric: found.refusal for found in judgements if found.refusal}
    if refusals:
        _write_refusals(verdict, record, *refusals.values())
        raise _all_of(refusals)
    copied = served.copied(target, candidate.model, record)
    with copied as copy, _unchanged(target, in_service):
        _refuse_what_was_gone_back_from(target, candidate, in_service)
        version = served.place(target, copy)
        served.put_in_service(target, version, "promoted")
        served.prune(target, config.promotion.keep)
    storage.write_json(verdict, record | {"promoted": True, "version": version})
    return Promotion(target / served.VERSIONS / version, judgements)


def roll_back(config: Config, to: str | None = None) -> Path:
    """Puts an older model back in service.

    Args:
        config: ``promotion.target`` says where.
        to: The version; the one that was in service before the present one unless given.

    Returns:
        The folder of the version in service.

    Raises:
        InputError: There is no such version.
        PipelineError: A promotion goes on at the same time.
    """
    target = _target(config)
    # A folder that is none of ours is left without a trace.
    if not served.versions(target):
        raise InputError(served.KEY, f"nothing is in service in {target}", "promote a model first")
    with served.alone(target):
        version = _wanted(target, to)
        served.put_in_service(target, version, "rolled back")
    return target / served.VERSIONS / version


def _wanted(target: Path, to: str | None) -> str:
    """The version to go back to."""
    kept = served.versions(target)
    if to is not None:
        if to not in kept:
            raise InputError(
                "--to", f"there is no version {to} in {target}", f"one of {', '.join(kept)}"
            )
        return to
    name_one = f"name one with --to: {', '.join(kept) or 'there is none'}"
    current = served.served_name(target)
    if current is None:
        raise InputError(served.KEY, f"nothing is in service in {target}", name_one)
    before = next(served.predecessors(target, current), None)
    if before is None:
        problem = f"no version from before {current} is kept in {target}"
        raise InputError(served.KEY, problem, name_one)
    return before


@contextmanager
def _unchanged(target: Path, in_service: Path | None) -> Iterator[None]:
    """Keeps others from changing what is in service, which is what it was when one looked."""
    with served.alone(target):
        if served.served_model(target) != in_service:
            raise PipelineError(f"another promotion to {target} took place, run it again")
        yield


def _refuse_without_current(target: Path) -> None:
    """A model is the first one only where none was in service; a lost link does not make it so."""
    kept = served.versions(target)
    records = (served.read_record(target / served.VERSIONS / name) for name in kept)
    # What a first promotion leaves that is killed before the link is there has replaced nothing.
    if kept and (history.read(target) or any(record.get("replaces") for record in records)):
        raise InputError(
            served.KEY,
            f"{target / served.CURRENT} is not there, though models were promoted",
            f"put one back in service with `rollback --to`: {', '.join(kept)}",
        )


def _refuse_what_was_gone_back_from(
    target: Path, candidate: _Candidate, in_service: Path | None
) -> None:
    """A job that is run again does not undo what was done by hand."""
    version = served.gone_back_from(target, candidate.digest)
    if version is None:
        return
    refusal = PromotionRefused(
        served.KEY,
        f"this model is {version}, which was gone back from, "
        f"`rollback --to {version}` puts it in service again",
    )
    verdict = candidate.model.parent / served.RECORD
    _write_refusals(verdict, _record(candidate, in_service, ()), refusal)
    raise refusal


def _record(
    candidate: _Candidate, in_service: Path | None, judgements: Sequence[Judgement]
) -> dict[str, Any]:
    """What is noted of a promotion, beside the model and in the run folder."""
    return {
        "run": str(candidate.model.parent),
        "when": served.now(),
        "who": served.who(),
        "release": __version__,
        "model": candidate.digest,
        "replaces": in_service.name if in_service else None,
        "figures": candidate.figures,
        "sets": candidate.sets,
        "judgements": [asdict(found) for found in judgements],
    }


def _write_refusals(verdict: Path, record: dict[str, Any], *refusals: PromotionRefused) -> None:
    reasons = [str(refusal) for refusal in refusals]
    storage.write_json(verdict, record | {"promoted": False, "refusals": reasons})


def _target(config: Config) -> Path:
    if config.promotion.target is None:
        raise InputError(served.KEY, "it is not set", "name the folder that models are served from")
    return Path(config.promotion.target).absolute()


def _candidate(config: Config) -> _Candidate:
    """The run's model and its figures, which must be this very model's."""
    folder = Path(config.run.folder).absolute()
    model = folder / "model"
    if not model.is_dir():
        raise InputError("run.folder", f"there is no model in {folder}", "run `train` first")
    path = folder / "metrics.json"
    known: dict[str, Any] = storage.read_json(path) if path.is_file() else {}
    if "after" not in known or "measured" not in known:
        raise InputError("run.folder", f"{model} was not evaluated", "run `evaluate` first")
    digest = storage.digest_folder(model)
    if known["measured"]["model"] != digest:
        raise InputError("run.folder", f"{model} is not what was evaluated", AGAIN)
    return _Candidate(model, digest, known["after"], known["measured"]["sets"])


def _served_figures(
    config: Config, candidate: _Candidate, in_service: Path, known: dict[str, Any]
) -> Figures:
    """The figures of the model in service on the texts that the new one was measured on.

    Those noted when it was promoted, if they are of the same texts; else it is measured anew.
    """
    names = evaluations(config.promotion)
    wanted = {name: candidate.sets.get(name) for name in names}
    judge(config.promotion, candidate.figures, None)
    if all(known.get("sets", {}).get(name) == wanted[name] for name in names):
        noted: Figures = known["figures"]
        return noted

    from pipelines.evaluation.sets import digest_sets
    from pipelines.evaluation.stage import evaluate
    from pipelines.session import spark_session

    session = spark_session(config)
    found = digest_sets(session, config)
    for name in names:
        if found.get(name) != wanted[name]:
            raise InputError(
                "run.folder", f"`{name}` holds other texts than when it was evaluated", AGAIN
            )
    logger.info("measuring the model in service on %s: %s", ", ".join(names), in_service)
    return evaluate(session, config, in_service)


def _all_of(refusals: Mapping[str, PromotionRefused]) -> PromotionRefused:
    """The first refusal, and which other metrics did not pass."""
    (_, first), *others = refusals.items()
    if not others:
        return first
    names = ", ".join(metric for metric, _ in others)
    return PromotionRefused(first.key, f"{first.problem}; nor did {names} pass")
