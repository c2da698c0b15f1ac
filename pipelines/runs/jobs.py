"""``jobs.json`` of a run: which jobs have worked on it, when, where and how long."""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from typing_extensions import TypedDict

from pipelines.files import records, storage
from pipelines.files.locations import Location, location
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.files.run_folder import RunFolder
from pipelines.provenance import command_arguments, commit_of, host_name
from pipelines.settings.redaction import without_password, without_secret_arguments
from pipelines.settings.spark import DEFAULT_STORES, StorageSettings

PROGRAM = "sentence-pipelines"


@dataclass(frozen=True)
class Start:
    """When a job began, by the calendar and by a clock that nobody sets."""

    moment: datetime = field(default_factory=lambda: datetime.now(UTC))
    clock: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Job:
    """A job that has worked on a run.

    Attributes:
        name: `train` or `evaluate`.
        began: UTC, as ISO 8601 has it.
        host: Of the driver.
        command: Its command line without secrets; None where it was called from Python.
        commit: Of the folder that it was run in, if that is known.
        seconds: By the clock; None where it has not ended, or not by itself.
    """

    name: str
    began: str
    host: str
    command: str | None
    commit: str | None
    seconds: float | None = None


@dataclass(frozen=True)
class PreparedStage:
    """A stage of the preparation.

    Attributes:
        name: `corpus`.
        seconds: That it took when it was run.
        is_kept: Whether an earlier preparation had run it.
    """

    name: str
    seconds: float
    is_kept: bool


@dataclass(frozen=True)
class JobsRecord:
    """All of ``jobs.json``.

    Attributes:
        jobs: In the order in which they began.
        preparation: Of what the run was trained on, as it was when the training began.
        prepared_folder: Relative to the run folder, or the address of a store; None if not known.
    """

    jobs: tuple[Job, ...] = ()
    preparation: tuple[PreparedStage, ...] = ()
    prepared_folder: str | None = None


class _StageRecord(TypedDict):
    """An entry of ``stages.json`` of a preparation."""

    stage: str
    seconds: float
    kept: bool


def begin_job(run_folder: Location, name: str, start: Start) -> None:
    """Notes that a job works on a run from now on; :func:`end_job` notes how long it took."""
    arguments = command_arguments()
    command = None
    if arguments is not None:
        command = shlex.join([PROGRAM, *without_secret_arguments(arguments)])
    began = start.moment.isoformat(timespec="seconds")
    job = Job(name, began, host_name(), command, commit_of(Path()))
    known = read_jobs(run_folder)
    _write(run_folder, replace(known, jobs=(*known.jobs, job)))


def end_job(run_folder: Location, start: Start) -> None:
    """Notes that the job that was begun last has come to its end."""
    known = read_jobs(run_folder)
    *earlier, job = known.jobs
    ended = replace(job, seconds=round(time.monotonic() - start.clock, 2))
    _write(run_folder, replace(known, jobs=(*earlier, ended)))


def keep_preparation(run_folder: Location, prepared_folder: Location) -> None:
    """Notes what the run is trained on, which another preparation may replace later."""
    path = PreparedFolder(prepared_folder).stages
    told: list[_StageRecord] = records.read(path, list[_StageRecord]) if path.is_file() else []
    stages = tuple(PreparedStage(one["stage"], one["seconds"], one["kept"]) for one in told)
    folder = _relative(prepared_folder, run_folder)
    _write(
        run_folder,
        replace(read_jobs(run_folder), preparation=stages, prepared_folder=folder),
    )


def read_jobs(run_folder: Location) -> JobsRecord:
    """What is known of the jobs of a run; nothing of a run of an earlier release.

    Raises:
        DamagedFileError: The file does not hold jobs.
    """
    path = RunFolder(run_folder).jobs
    known: JobsRecord = records.read(path, JobsRecord) if path.is_file() else JobsRecord()
    return known


def prepared_folder_of(
    run_folder: Location, stores: StorageSettings = DEFAULT_STORES
) -> Location | None:
    """The folder of the preparation that a run was trained on, if it is known.

    Args:
        run_folder: Moved together with it, or not at all; otherwise another place is named.
        stores: How object stores are reached.
    """
    folder = read_jobs(run_folder).prepared_folder
    if folder is None:
        return None
    found = location(folder, stores)
    if not isinstance(found, Path) or found.is_absolute() or not isinstance(run_folder, Path):
        return found
    # Not by way of what a link stands for, as the folder was named.
    return Path(os.path.normpath(run_folder.absolute() / found))


def _relative(folder: Location, run_folder: Location) -> str:
    if isinstance(folder, Path) and isinstance(run_folder, Path):
        return Path(os.path.relpath(folder.absolute(), run_folder.absolute())).as_posix()
    return without_password(str(folder))


def _write(run_folder: Location, record: JobsRecord) -> None:
    storage.write_json(RunFolder(run_folder).jobs, asdict(record))
