"""Records of a run's jobs in its folder: when they ran, how long, and with which settings."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from pipelines.errors import DamagedFileError
from pipelines.files import records, storage
from pipelines.files.locations import Location, as_local, location
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.files.run_folder import RunFolder
from pipelines.provenance import command_arguments, commit_of, host_name
from pipelines.runs.learning_rate import Horizon
from pipelines.runs.run import Restart
from pipelines.settings import Config
from pipelines.settings.redaction import without_password, without_secret_arguments
from pipelines.settings.resuming import recorded_settings
from pipelines.settings.spark import DEFAULT_STORES, StorageSettings

PROGRAM = "sentence-pipelines"


logger = logging.getLogger(__name__)
# A preparation is mostly reused, and training shows its own count of steps.
STAGES = ("evaluating",)
# Places and recipients do not change the duration, and these sections may hold secrets.
_UNTIMED_SECTIONS = {"prepared", "run", "tracking", "promotion", "embedding", "spark"}


@dataclass(frozen=True)
class Start:
    """A job's beginning, by the calendar and by the monotonic clock."""

    moment: datetime = field(default_factory=lambda: datetime.now(UTC))
    clock: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Job:
    """A job on a run.

    Attributes:
        name: `train` or `evaluate`.
        began: UTC, in ISO 8601.
        host: The driver's.
        command: Its command line without secrets; None for a call from Python.
        commit: The commit of its working directory, if known.
        seconds: Wall clock; None if it has not ended, or was killed.
    """

    name: str
    began: str
    host: str
    command: str | None
    commit: str | None
    seconds: float | None = None


@dataclass(frozen=True)
class PreparedStage:
    """A stage of the preparation; ``is_kept`` if it was reused from an earlier preparation."""

    name: str
    seconds: float
    is_kept: bool


@dataclass(frozen=True)
class JobsRecord:
    """The content of ``jobs.json``.

    Attributes:
        jobs: In the order of their beginnings.
        preparation: The stages of the training data at the start of the training.
        prepared_folder: Relative to the run folder, or the address of a store; None if unknown.
    """

    jobs: tuple[Job, ...] = ()
    preparation: tuple[PreparedStage, ...] = ()
    prepared_folder: str | None = None


class _StageRecord(TypedDict):
    """An entry of a preparation's ``stages.json``."""

    stage: str
    seconds: float
    kept: bool


def begin_job(run_folder: Location, name: str, start: Start) -> None:
    """Record the beginning of a job on a run; :func:`end_job` records its duration."""
    arguments = command_arguments()
    command = None
    if arguments is not None:
        command = shlex.join([PROGRAM, *without_secret_arguments(arguments)])
    began = start.moment.isoformat(timespec="seconds")
    job = Job(name, began, host_name(), command, commit_of(Path()))
    known = read_jobs(run_folder)
    _write(run_folder, replace(known, jobs=(*known.jobs, job)))


def end_job(run_folder: Location, start: Start) -> None:
    """Record the end of the newest job."""
    known = read_jobs(run_folder)
    *earlier, job = known.jobs
    ended = replace(job, seconds=round(time.monotonic() - start.clock, 2))
    _write(run_folder, replace(known, jobs=(*earlier, ended)))


def keep_preparation(run_folder: Location, prepared_folder: Location) -> None:
    """Record the run's training data, since another preparation may replace it later."""
    path = PreparedFolder(prepared_folder).stages
    recorded = records.read_if_there(path, list[_StageRecord]) or []
    stages = tuple(
        PreparedStage(stage["stage"], stage["seconds"], stage["kept"]) for stage in recorded
    )
    known, folder = read_jobs(run_folder), _relative(prepared_folder, run_folder)
    _write(run_folder, replace(known, preparation=stages, prepared_folder=folder))


def read_jobs(run_folder: Location) -> JobsRecord:
    """Return the recorded jobs of a run; none for a run of an earlier release.

    Raises:
        DamagedFileError: The file does not hold jobs.
    """
    return records.read_if_there(RunFolder(run_folder).jobs, JobsRecord) or JobsRecord()


def prepared_folder_of(
    run_folder: Location, stores: StorageSettings = DEFAULT_STORES
) -> Location | None:
    """Return the folder of a run's preparation, if known; wrong if only one of them has moved."""
    folder = read_jobs(run_folder).prepared_folder
    if folder is None:
        return None
    found, run = location(folder, stores), as_local(run_folder)
    local = as_local(found)
    if local is None or local.is_absolute() or run is None:
        return found
    # Not `resolve`, which would follow links: the path must stay as the user named it.
    return Path(os.path.normpath(run.absolute() / local))


def _relative(folder: Location, run_folder: Location) -> str:
    local, run = as_local(folder), as_local(run_folder)
    # Relative paths survive a move of both folders together.
    if local is not None and run is not None:
        return Path(os.path.relpath(local.absolute(), run.absolute())).as_posix()
    return without_password(str(folder))


def _write(run_folder: Location, record: JobsRecord) -> None:
    storage.write_json(RunFolder(run_folder).jobs, asdict(record))


@dataclass(frozen=True)
class _Known:
    """The content of ``run_seconds.json``; ``of`` is a digest of the settings."""

    of: str
    seconds: dict[str, float]


def expected_seconds(config: Config) -> dict[str, float]:
    """Return seconds by stage of this preparation's last run, if it had the same settings."""
    try:
        known = records.read_if_there(PreparedFolder.of(config).run_seconds, _Known)
    except DamagedFileError as error:
        # The run's end replaces the file, and only a display reads it.
        logger.debug("%s", error)
        return {}
    return known.seconds if known and known.of == _digest(config) else {}


def keep_seconds(config: Config, seconds: Mapping[str, float]) -> None:
    """Record the seconds of a finished run."""
    found = {stage: seconds[stage] for stage in STAGES if stage in seconds}
    storage.write_json(
        PreparedFolder.of(config).run_seconds, asdict(_Known(_digest(config), found))
    )


def _digest(config: Config) -> str:
    settings = config.model_dump(mode="json", exclude=_UNTIMED_SECTIONS)
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """Steps made with the same settings.

    Attributes:
        step: The first of them.
        last_step: One past the last step of the run, as planned then.
        settings: The changeable settings, by key.
    """

    step: int
    last_step: int
    settings: dict[str, Any]


def go_on(folder: Location, config: Config, first_step: int, last_step: int) -> tuple[Horizon, ...]:
    """Record and log the first step of changed settings; return the planned ends of the run.

    ``first_step`` is the next step. Drops records from it on, since the run repeats these steps.
    """
    chapters = _read(folder)
    if first_step < last_step:
        before = [chapter for chapter in chapters if chapter.step < first_step]
        settings = dict(recorded_settings(config))
        # Without a history, these settings count as those of all earlier steps.
        step = first_step if before else 0
        new = Chapter(step=step, last_step=last_step, settings=settings)
        is_same = before and (before[-1].settings, before[-1].last_step) == (settings, last_step)
        if before and not is_same:
            _log_changes(before[-1], new)
        chapters = before if is_same else [*before, new]
        lines = [asdict(chapter) for chapter in chapters]
        storage.write_json(RunFolder(folder).history, lines, durable=True)
    return _horizons(chapters) or (Horizon(step=0, last_step=last_step),)


def last_step_of(folder: Location) -> int | None:
    """Return one past a run's last step, by its newest plan."""
    chapters = _read(folder)
    return chapters[-1].last_step if chapters else None


def last_settings(folder: Location) -> Mapping[str, Any]:
    """Return the recorded settings of a run's newest start; empty without a history."""
    chapters = _read(folder)
    return chapters[-1].settings if chapters else {}


def _horizons(chapters: Sequence[Chapter]) -> tuple[Horizon, ...]:
    """Return a horizon for the first chapter, and for each later one with another end."""
    horizons: list[Horizon] = []
    for chapter in chapters:
        if not horizons or horizons[-1].last_step != chapter.last_step:
            horizons.append(Horizon(step=chapter.step, last_step=chapter.last_step))
    return tuple(horizons)


def _log_changes(before: Chapter, now: Chapter) -> None:
    changed = [
        f"{key} {value} (it was {before.settings.get(key)})"
        for key, value in now.settings.items()
        if value != before.settings.get(key)
    ]
    if changed:
        logger.info("from step %d on: %s", now.step, ", ".join(changed))
    if now.last_step == before.last_step:
        return
    rate = "decays from its current value to the new end"
    if now.step >= before.last_step:
        rate = "warms up and decays once more"
    logger.info(
        "the run ends at step %d instead of %d. Unless training.schedule is constant, "
        "the learning rate %s",
        now.last_step,
        before.last_step,
        rate,
    )


def _read(folder: Location) -> list[Chapter]:
    return records.read_if_there(RunFolder(folder).history, list[Chapter]) or []


def add_restart(run_folder: Location, restart: Restart) -> None:
    """Append a restart."""
    known = [*read_restarts(run_folder), restart]
    path = RunFolder(run_folder).restarts
    storage.write_json(path, [asdict(each) for each in known], durable=True)


def read_restarts(run_folder: Location) -> list[Restart]:
    """Return the restarts within all jobs of a run, oldest first; none without a file.

    Raises:
        DamagedFileError: The file does not hold restarts.
    """
    return records.read_if_there(RunFolder(run_folder).restarts, list[Restart]) or []


class EvaluationLine(TypedDict):
    """The keys of every line, beside figures by metric."""

    step: int
    evaluation: str


def add_evaluations(
    run_folder: Location, step: int, figures: Mapping[str, Mapping[str, float]]
) -> None:
    """Add a line for each evaluation, in place of an earlier one of the same step.

    ``step`` counts completed steps, 0 for the start. ``figures`` are by evaluation and metric, from
    :func:`pipelines.evaluation.sets.evaluate`.
    """
    new = [{"step": step, "evaluation": name, **metrics} for name, metrics in figures.items()]
    kept = [
        line
        for line in read_evaluations(run_folder)
        if line["step"] != step or line["evaluation"] not in figures
    ]
    _write_lines(run_folder, sorted([*kept, *new], key=lambda line: line["step"]))


def forget_evaluations(run_folder: Location, after: int) -> None:
    """Drop the lines of the steps after one, since the run repeats them."""
    lines = read_evaluations(run_folder)
    if any(line["step"] > after for line in lines):
        _write_lines(run_folder, [line for line in lines if line["step"] <= after])


def read_evaluations(run_folder: Location) -> list[dict[str, Any]]:
    """Return the lines (``step``, ``evaluation``, figures by metric); none without a file.

    Raises:
        DamagedFileError: A line has another form.
    """
    return list(records.read_lines(RunFolder(run_folder).evaluations, EvaluationLine))


def _write_lines(run_folder: Location, lines: list[dict[str, Any]]) -> None:
    storage.write_text(
        RunFolder(run_folder).evaluations, "".join(f"{json.dumps(line)}\n" for line in lines)
    )
