"""Measures preparation on 1, 4 and 16 times the text.

The larger corpora are the files of a folder beside salted copies of them (see
:mod:`pipelines_bench.salted`), which are as costly and hold no duplicates of one another.
Each job runs in a process of its own, so that the memory of one driver is not mixed with another's.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from pipelines.compare.processes import Usage, measure_command, own_environment, stage_command
from pipelines.corpus.readers.inputs import local_files
from pipelines.errors import InputError, PipelineError
from pipelines.files import storage
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.lanes.files import LaneManifest
from pipelines.progress import next_part
from pipelines.progress.screen import Screen
from pipelines.settings import Config
from pipelines_bench.salted import (
    copy_beginning,
    count_words,
    exchange_windows,
    salt_files,
)

logger = logging.getLogger(__name__)

SIZES = (1, 4, 16)
FORMATS = ("documents", "text", "markdown", "wikiextractor", "jsonl")
"""Formats whose files are lines of text, which can be salted."""

_COPIERS = 2
# A light compression makes the copies larger than their originals.
_LARGER = 1.4
# What the largest job leaves and needs meanwhile, over its text.
_JOB_SHARE = 5
_BEGINNING = 300_000
_TABLE_WIDTH = 120
_GIGABYTE = 1e9
_DEADLINE_SECONDS = 600
_DEADLINE_SECONDS_PER_MB = 20


@dataclass(frozen=True)
class Job:
    """A prepare job.

    Attributes:
        name: For people: `4x`, or `start`.
        inputs: The files that it reads.
        bytes: Their size, unpacked.
    """

    name: str
    inputs: tuple[Path, ...]
    bytes: int

    @property
    def megabytes(self) -> float:
        """Millions of bytes of text."""
        return self.bytes / 1e6


@dataclass(frozen=True)
class Measured:
    """What a job took, and what it made.

    Attributes:
        job: The job.
        usage: Of its processes.
        stages: Seconds of each stage; empty where the job did not note them.
        examples: Examples that it made.
    """

    job: Job
    usage: Usage
    stages: dict[str, float]
    examples: int


def measure(config: Config, data: str | None) -> dict[str, Any]:
    """Runs the jobs, prints a table, and draws `<prepared.folder>/growth.svg`.

    Where ``corpus.format`` is left at its default, the corpus is of `documents`, in `adjacent`
    pairs, of which none are held out. ``corpus.inputs`` counts for nothing.

    Args:
        config: Shared by all jobs.
        data: A folder of text files, as they are read with ``corpus.format``.

    Returns:
        ``time_per_mb_ratio_16x``, ``cpu_per_mb_ratio_16x`` and ``driver_memory_ratio_16x``: the
        largest job over the smallest; ``start_seconds``: the same job on hardly any text;
        ``time_per_mb_ratio_16x_less_start``: the ratio without that time, which weighs on the
        smallest; and ``sizes``, with the figures of every job.

    Raises:
        InputError: There is no such folder, its text cannot be copied, or the disk is too small.
        PipelineError: A job failed.
    """
    config = growth_config(config)
    files = _text_files(config, data)
    folder = Path(config.prepared.folder).absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}-growth-", dir=folder.parent) as name:
        aside = Path(name)
        start = _measured(config, _beginning(files[0], aside / "beginning"), aside)
        sizes = [_measured(config, job, aside) for job in _grown(files, aside / "copies")]
    picture = folder / "growth.svg"
    storage.write_text(picture, _picture(sizes))
    console = Screen()
    # Where output is no terminal, the table would be cut at eighty columns.
    console.width = max(console.width, _TABLE_WIDTH)
    console.print(_table([start, *sizes]))
    console.print(f"picture  {picture}", soft_wrap=True, highlight=False)
    return growth_figures(start, sizes)


def growth_config(config: Config) -> Config:
    """The configuration; with documents, unless another format than the default is set."""
    if config.corpus.format != "docstrings":
        return config
    values = {"format": "documents", "pairs": "adjacent", "evaluation_share": 0.0}
    return config.model_copy(update={"corpus": config.corpus.model_copy(update=values)})


def _text_files(config: Config, data: str | None) -> list[Path]:
    kind = config.corpus.format
    if kind not in FORMATS:
        raise InputError(
            "corpus.format", f"`{kind}` cannot be copied", f"Choose one of {', '.join(FORMATS)}"
        )
    if data is None:
        raise InputError(
            "--data", "growth has no text of its own", "Name a folder that holds text files"
        )
    return local_files((data,), kind, "--data")


def _beginning(file: Path, folder: Path) -> Job:
    """A job on so little text that its time is that of starting."""
    path = folder / file.name
    return Job("start", (path,), copy_beginning(file, path, _BEGINNING))


def _grown(files: Sequence[Path], folder: Path) -> list[Job]:
    """Copies the files as often as the largest job needs them; a job for each of the sizes."""
    # Spawned, since a fork would take this process's locks with it.
    pool = ProcessPoolExecutor(_COPIERS, multiprocessing.get_context("spawn"))
    try:
        corpora = _copies(pool, files, folder)
    finally:
        pool.shutdown(cancel_futures=True)
    return [
        Job(
            f"{times}x",
            tuple(file for members, _ in corpora[:times] for file in members),
            sum(size for _, size in corpora[:times]),
        )
        for times in SIZES
    ]


def _copies(
    pool: Executor, files: Sequence[Path], folder: Path
) -> list[tuple[Sequence[Path], int]]:
    """The files and then their copies, each with its size unpacked."""
    words: Counter[str] = Counter()
    size = 0
    for counted, file_size in pool.map(count_words, files):
        words.update(counted)
        size += file_size
    _check_disk(files, size, folder.parent)
    windows = exchange_windows(words)
    top = Path(os.path.commonpath([file.parent for file in files]))
    copies = []
    for copy in range(1, max(SIZES)):
        targets = [folder / f"{copy:02}" / file.relative_to(top) for file in files]
        copies.append((targets, pool.submit(salt_files, files, targets, windows, copy)))
    return [(files, size), *((targets, written.result()) for targets, written in copies)]


def _check_disk(files: Sequence[Path], size: int, folder: Path) -> None:
    """Says how much room is needed, before it is taken.

    Raises:
        InputError: There is less.
    """
    stored = sum(file.stat().st_size for file in files)
    copies = _LARGER * stored * (max(SIZES) - 1)
    job = _JOB_SHARE * size * max(SIZES)
    free = shutil.disk_usage(folder).free
    logger.info(
        "growth: %.0f MB of text; its copies take about %.1f GB beside the prepared folder, "
        "and the largest job %.1f GB; %.1f GB are free",
        size / 1e6,
        copies / _GIGABYTE,
        job / _GIGABYTE,
        free / _GIGABYTE,
    )
    if free < copies + job:
        raise InputError(
            "prepared.folder",
            f"growth needs about {(copies + job) / _GIGABYTE:.1f} GB there, and "
            f"{free / _GIGABYTE:.1f} are free",
            "Set it to a larger disk, or name a folder with less text",
        )


def _measured(config: Config, job: Job, aside: Path) -> Measured:
    """Runs a job in a process of its own; what it prepared is removed at once."""
    logger.info("growth: %s, %.1f MB", job.name, job.megabytes)
    next_part(job.name)
    prepared = aside / "prepared"
    settings = aside / "job.yaml"
    command = stage_command("prepare", job_config(config, job, prepared), settings)
    deadline = _DEADLINE_SECONDS + _DEADLINE_SECONDS_PER_MB * job.megabytes
    try:
        usage = measure_command(command, environment=own_environment(), deadline_seconds=deadline)
    except PipelineError as error:
        if isinstance(error, InputError):
            raise
        raise PipelineError(f"growth: the job on {job.name}, {error}") from error
    lanes = LaneManifest.load(PreparedFolder(prepared).lanes.path)
    times = PreparedFolder(prepared).stages
    stages = storage.read_json(times) if times.is_file() else []
    shutil.rmtree(prepared)
    seconds = {stage["stage"]: stage["seconds"] for stage in stages}
    logger.info("growth: %s took %.1f s", job.name, usage.seconds)
    return Measured(job, usage, seconds, lanes.examples)


def job_config(config: Config, job: Job, prepared: Path) -> Config:
    """The configuration of one job, which keeps nothing of another."""
    corpus = {"inputs": tuple(map(str, job.inputs))}
    folder = {"folder": str(prepared), "reuse": False}
    return config.model_copy(
        update={
            "corpus": config.corpus.model_copy(update=corpus),
            "prepared": config.prepared.model_copy(update=folder),
        }
    )


def growth_figures(start: Measured, sizes: Sequence[Measured]) -> dict[str, Any]:
    """The figures of the JSON line; see :func:`measure`."""
    least, most = sizes[0], sizes[-1]

    def ratio(per_mb: Callable[[Measured], float]) -> float:
        return round(per_mb(most) / per_mb(least), 4)

    return {
        "time_per_mb_ratio_16x": ratio(lambda size: size.usage.seconds / size.job.bytes),
        "cpu_per_mb_ratio_16x": ratio(lambda size: size.usage.cpu_seconds / size.job.bytes),
        "driver_memory_ratio_16x": ratio(lambda size: size.usage.driver_bytes),
        "time_per_mb_ratio_16x_less_start": ratio(
            lambda size: (size.usage.seconds - start.usage.seconds) / size.job.bytes
        ),
        "start_seconds": round(start.usage.seconds, 1),
        "sizes": {size.job.name: _size_figures(size) for size in sizes},
    }


def _size_figures(size: Measured) -> dict[str, Any]:
    usage = size.usage
    return {
        "megabytes": round(size.job.megabytes, 3),
        "seconds": round(usage.seconds, 1),
        "cpu_seconds": round(usage.cpu_seconds, 1),
        "driver_memory_mb": round(usage.driver_bytes / 1e6, 1),
        "examples": size.examples,
        "stage_seconds": {name: round(seconds, 1) for name, seconds in size.stages.items()},
    }


def _table(measured: Sequence[Measured]) -> Table:
    table = Table("job")
    stages = list(dict.fromkeys(name for one in measured for name in one.stages))
    titles = ("text, MB", "examples", "wall s", "s/MB", "CPU s/MB", *(f"{s}, s" for s in stages))
    for title in (*titles, "driver, MB"):
        table.add_column(title, justify="right")
    for one in measured:
        megabytes, usage = one.job.megabytes, one.usage
        table.add_row(
            one.job.name,
            f"{megabytes:.1f}",
            f"{one.examples:,}",
            f"{usage.seconds:.1f}",
            f"{usage.seconds / megabytes:.3f}",
            f"{usage.cpu_seconds / megabytes:.3f}",
            *(f"{one.stages[stage]:.1f}" if stage in one.stages else "" for stage in stages),
            f"{usage.driver_bytes / 1e6:.0f}",
        )
    return table


def _picture(sizes: Sequence[Measured]) -> str:
    from pipelines.report.svg_charts import Panel, scaling

    return scaling(
        "Growth",
        [size.job.megabytes for size in sizes],
        [
            Panel("seconds per MB", [size.usage.seconds / size.job.megabytes for size in sizes]),
            Panel("memory of the driver, MB", [size.usage.driver_bytes / 1e6 for size in sizes]),
        ],
        "MB of text",
    )
