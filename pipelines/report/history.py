"""How a run came about: what its stages took by the clock, and the commands that were given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby

from pipelines.report.page_parts import Bar, bar, duration, per_cent
from pipelines.runs.jobs import Job, JobsRecord

KEPT = "kept"
"""Instead of the time of a stage that an earlier preparation had made."""
_SHORT = 10.0
"""Seconds below which tenths of them say something."""


@dataclass(frozen=True)
class WallTime:
    """Seconds by the clock.

    Attributes:
        name: Of the stage.
        seconds: That it took.
        is_kept: An earlier preparation had done it.
        note: What is to be known besides, for people.
    """

    name: str
    seconds: float
    is_kept: bool = False
    note: str = ""


@dataclass(frozen=True)
class Command:
    """A command, and the jobs of a run that it did.

    Attributes:
        text: As it was given, without secrets; empty where jobs were called from Python.
        jobs: When each began and what it took, for people.
        host: Of the driver.
        commit: Of the folder that it was run in; empty where that is not known.
    """

    text: str
    jobs: tuple[str, ...]
    host: str
    commit: str


def wall_times(record: JobsRecord) -> list[WallTime]:
    """What each stage took, those of the preparation first; none if nothing has been noted."""
    stages = [
        WallTime(f"prepare: {stage.name}", 0.0 if stage.is_kept else stage.seconds, stage.is_kept)
        for stage in record.preparation
    ]
    names = dict.fromkeys(job.name for job in record.jobs)
    return stages + [_of_jobs([job for job in record.jobs if job.name == name]) for name in names]


def total_seconds(times: Sequence[WallTime]) -> float:
    """Of all stages together."""
    return math.fsum(time.seconds for time in times)


def wall_bars(times: Sequence[WallTime]) -> list[Bar]:
    """A bar for each stage, each beginning where the one before ended, and one for all."""
    whole = total_seconds(times)
    bars, begun = [], 0.0
    for time in times:
        name = f"{time.name} ({time.note})" if time.note else time.name
        share = time.seconds / whole if whole else 0.0
        drawn = _bar(name, time.seconds, share, begun)
        bars.append(replace(drawn, rows=KEPT, share="") if time.is_kept else drawn)
        begun += share
    return [*bars, _bar("all", whole, 1.0, kind="kept")] if len(bars) > 1 and whole else bars


def commands(record: JobsRecord) -> list[Command]:
    """The commands, the first one first; jobs of one command stand together."""

    def key(job: Job) -> tuple[str, str, str]:
        return job.command or "", job.host, job.commit or ""

    return [
        Command(text, tuple(map(_told, jobs)), host, commit)
        for (text, host, commit), jobs in groupby(record.jobs, key)
    ]


def moment(iso: str) -> str:
    """A time of UTC for people, to the minute."""
    return f"{datetime.fromisoformat(iso):%Y-%m-%d %H:%M} UTC"


def short_duration(seconds: float) -> str:
    """As :func:`duration`; short ones to a tenth of a second."""
    return duration(seconds) if seconds >= _SHORT else f"{seconds:.1f}s"


def _of_jobs(jobs: Sequence[Job]) -> WallTime:
    """All jobs of one name; a run may have been stopped and resumed."""
    ended = [job.seconds for job in jobs if job.seconds is not None]
    notes = [f"{len(jobs)} times"] if len(jobs) > 1 else []
    if open_ones := len(jobs) - len(ended):
        said = "has not ended" if len(jobs) == 1 else f"{open_ones} without an end, not counted"
        notes.append(said)
    return WallTime(jobs[0].name, math.fsum(ended), note=", ".join(notes))


def _told(job: Job) -> str:
    took = "has not ended" if job.seconds is None else short_duration(job.seconds)
    return f"{job.name}: {moment(job.began)}, {took}"


def _bar(name: str, seconds: float, share: float, start: float = 0.0, kind: str = "share") -> Bar:
    drawn = bar(name, 0, share, start, kind)
    return Bar(kind, name, short_duration(seconds), per_cent(share), drawn.left, drawn.width)
