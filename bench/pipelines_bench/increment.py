"""Measures the cost of one more input file: an incremental and a full preparation.

Each job runs in a process of its own. The corpus of both is compared: it is the same one.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from pipelines.compare.processes import Usage, measure_command, own_environment, stage_command
from pipelines.corpus.readers.inputs import local_files
from pipelines.errors import InputError, PipelineError
from pipelines.files import storage
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.progress import next_part
from pipelines.progress.screen import Screen
from pipelines.settings import Config
from pipelines_bench.growth import growth_config
from pipelines_bench.salted import copy_beginning

logger = logging.getLogger(__name__)

_LEAST_FILES = 2
_BEGINNING = 300_000
_DEADLINE_SECONDS = 600
_DEADLINE_SECONDS_PER_MB = 20


@dataclass(frozen=True)
class Preparation:
    """A preparation and what it took.

    Attributes:
        name: For people.
        usage: Of its processes.
        stages: Seconds of each stage.
        funnel: Of its corpus.
    """

    name: str
    usage: Usage
    stages: dict[str, float]
    funnel: Any


def measure(config: Config, data: str | None) -> dict[str, Any]:
    """Prepares all files but the last, then all of them in the same folder, then all in a new one.

    Where ``corpus.format`` is left at its default, the corpus is of `documents`, in `adjacent`
    pairs, of which none are held out. ``corpus.inputs`` counts for nothing.

    Args:
        config: Shared by all jobs.
        data: A folder of input files.

    Returns:
        ``files``; ``cpu_share`` and ``seconds_share``: what one more file takes of the whole;
        ``cpu_share_less_start`` and ``corpus_seconds_share``: the same without the fixed costs of a
        job, as one on hardly any text has them, and of the corpus stage alone; and ``jobs``, with
        the figures of each.

    Raises:
        InputError: There is no such folder, or it holds less than two files.
        PipelineError: A job failed, or the corpora differ.
    """
    config = growth_config(config)
    if data is None:
        problem = "increment has no files of its own"
        raise InputError("--data", problem, "Name a folder that holds input files")
    files = local_files((data,), config.corpus.format, "--data")
    if len(files) < _LEAST_FILES:
        raise InputError("--data", f"{data} holds one file", "Name a folder with several")
    parent = Path(config.prepared.folder).absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="increment-", dir=parent) as name:
        aside = Path(name)
        beginning = aside / "beginning" / files[0].name
        copy_beginning(files[0], beginning, _BEGINNING)
        start = _prepared(config, "start", [beginning], aside / "start")
        _prepared(config, "before", files[:-1], aside / "grown")
        grown = _prepared(config, "one more", files, aside / "grown")
        whole = _prepared(config, "whole", files, aside / "whole")
    if grown.funnel != whole.funnel:
        raise PipelineError("increment: the corpus that grew is not the one of all files")
    jobs = [start, grown, whole]
    Screen().print(_table(jobs))
    return increment_figures(len(files), *jobs)


def _prepared(config: Config, name: str, files: Sequence[Path], folder: Path) -> Preparation:
    """Runs a job in a process of its own."""
    megabytes = sum(file.stat().st_size for file in files) / 1e6
    logger.info("increment: %s, %d files of %.1f MB", name, len(files), megabytes)
    next_part(name)
    corpus = config.corpus.model_copy(update={"inputs": tuple(map(str, files))})
    prepared = config.prepared.model_copy(update={"folder": str(folder)})
    job = config.model_copy(update={"corpus": corpus, "prepared": prepared})
    settings = folder.with_suffix(".yaml")
    command = stage_command("prepare", job, settings)
    deadline = _DEADLINE_SECONDS + _DEADLINE_SECONDS_PER_MB * megabytes
    usage = measure_command(command, environment=own_environment(), deadline_seconds=deadline)
    made = PreparedFolder(folder)
    stages = {stage["stage"]: stage["seconds"] for stage in storage.read_json(made.stages)}
    funnel = storage.read_json(made.corpus.funnel)
    if name != "before":
        shutil.rmtree(folder)
    return Preparation(name, usage, stages, funnel)


def increment_figures(
    files: int, start: Preparation, grown: Preparation, whole: Preparation
) -> dict[str, Any]:
    """The figures of the JSON line; see :func:`measure`."""
    fixed = start.usage.cpu_seconds
    own = whole.usage.cpu_seconds - fixed
    return {
        "files": files,
        "cpu_share": round(grown.usage.cpu_seconds / whole.usage.cpu_seconds, 4),
        "cpu_share_less_start": round((grown.usage.cpu_seconds - fixed) / own, 4),
        "seconds_share": round(grown.usage.seconds / whole.usage.seconds, 4),
        "corpus_seconds_share": round(grown.stages["corpus"] / whole.stages["corpus"], 4),
        "jobs": {
            job.name: {
                "seconds": round(job.usage.seconds, 1),
                "cpu_seconds": round(job.usage.cpu_seconds, 1),
                "stage_seconds": {name: round(took, 1) for name, took in job.stages.items()},
            }
            for job in (start, grown, whole)
        },
    }


def _table(jobs: Sequence[Preparation]) -> Table:
    table = Table("job")
    stages = list(jobs[0].stages)
    for title in ("wall s", "CPU s", *(f"{stage}, s" for stage in stages)):
        table.add_column(title, justify="right")
    for job in jobs:
        took = (job.usage.seconds, job.usage.cpu_seconds, *(job.stages[one] for one in stages))
        table.add_row(job.name, *(f"{value:.1f}" for value in took))
    return table
