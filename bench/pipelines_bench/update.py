"""Measures an update of a table of vectors beside a new table.

The same job, in one session: a table is made; then nothing has changed; then a hundredth of the
rows is new, in a file of its own, as where a lake grows; then every file has been written again, in
another order and with another hundredth of the texts changed, as where a table is dumped each
night. CPU time is that of all processes, the JVMs too; that of the log of changes is measured by
itself. A small table before, which is brought up to date as well, has loaded the model and what
Spark needs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table

from pipelines.progress import next_part
from pipelines.progress.screen import Screen
from pipelines.settings import Config
from pipelines.tokens.start import default_start
from pipelines.vectors.embed import EmbeddingJob
from pipelines.vectors.plan import Version
from pipelines.vectors.row_changes import Compare, Logged
from pipelines_bench.cpu import CpuMeter, local_session
from pipelines_bench.embed import write_sentences

SENTENCES = 100_000
FILES = 20
SHARE = 100
"""One row of so many is new, or changes."""
WARM_UP = 2_000


@dataclass(frozen=True)
class Measured:
    """What one job took.

    Attributes:
        rows: Of the table.
        embedded: Of those, rows that were embedded.
        cpu_seconds: Of all processes.
        seconds: By the clock.
        log_cpu_seconds: Of the CPU time, for the log of changes.
    """

    rows: int
    embedded: int
    cpu_seconds: float
    seconds: float
    log_cpu_seconds: float


@dataclass(frozen=True)
class _MeteredJob(EmbeddingJob):
    """A job that notes the CPU time of its log."""

    meter: CpuMeter | None = None
    noted: list[float] = field(default_factory=list)

    def log(self, version: Version, compare: Compare) -> Logged | None:
        """Write the log as any job does."""
        assert self.meter is not None, "the benchmark sets it"
        before = self.meter.seconds()
        try:
            return super().log(version, compare)
        finally:
            self.noted.append(self.meter.seconds() - before)


def measure(config: Config, data: str | None) -> dict[str, Any]:
    """Runs the jobs.

    Args:
        config: Of its section ``embedding``, the model and the settings of the computation and the
            parts are used.
        data: A file or folder of sentences (Parquet, CSV, JSON lines); None for the sentences of
            the embedded default corpus.

    Returns:
        ``unchanged_cpu_share``, ``appended_cpu_share`` and ``rewritten_cpu_share``: CPU time over
        that of making the table; ``appended_log_cpu_share`` and so on: that of the log over the CPU
        time of its own job; and ``jobs``, with the figures of each.

    Raises:
        InputError: There are too few sentences, or executors run on other machines.
    """
    with tempfile.TemporaryDirectory() as temporary, CpuMeter() as meter:
        folder = Path(temporary)
        session = local_session(config)
        write_sentences(session, config, data, folder / "texts.parquet", SENTENCES)
        texts = pq.read_table(folder / "texts.parquet").column("text").to_pylist()

        def job(name: str) -> Measured:
            next_part(name)
            return _measured(session, _configured(config, folder / name), meter)

        _jobs(texts[:WARM_UP], folder / "warm-up", lambda: job("warm-up"))
        jobs = _jobs(texts, folder / "measured", lambda: job("measured"))
    _print(jobs)
    made = jobs["made"].cpu_seconds
    shares = {
        f"{name}_cpu_share": round(one.cpu_seconds / made, 4)
        for name, one in jobs.items()
        if name != "made"
    }
    shares |= {
        f"{name}_log_cpu_share": round(one.log_cpu_seconds / one.cpu_seconds, 4)
        for name, one in jobs.items()
        if one.cpu_seconds
    }
    return {**shares, "jobs": {name: asdict(one) for name, one in jobs.items()}}


def _configured(config: Config, folder: Path) -> Config:
    embedding = config.embedding.model_copy(
        update={
            "model": config.embedding.model or str(default_start()),
            "inputs": (str(folder / "lake"),),
            "format": "parquet",
            "text_column": "text",
            "key_column": "id",
            "output": str(folder / "table"),
            "overwrite": False,
        }
    )
    return config.model_copy(update={"embedding": embedding})


def _measured(session: Any, config: Config, meter: CpuMeter) -> Measured:
    before, began = meter.seconds(), time.monotonic()
    job = replace(_MeteredJob.of(config), meter=meter)
    with job.working():
        summary = job.run(session)
    seconds = time.monotonic() - began
    cpu_seconds = meter.seconds() - before
    rounded = (round(value, 2) for value in (cpu_seconds, seconds, sum(job.noted)))
    return Measured(summary.rows, summary.embedded, *rounded)


def _jobs(texts: list[str], folder: Path, measured: Callable[[], Measured]) -> dict[str, Measured]:
    """Changes a lake and measures the job, time and again."""
    lake = folder / "lake"
    lake.mkdir(parents=True)
    new = len(texts) // SHARE
    rows = pa.table({"id": np.arange(len(texts)), "text": texts})
    _write(lake, rows.slice(new))
    jobs = {"made": measured(), "unchanged": measured()}
    pq.write_table(rows.slice(0, new), lake / "new.parquet")
    jobs["appended"] = measured()
    generator = np.random.default_rng(0)
    changed = list(texts)
    changed[::SHARE] = [f"{text} (corrected)" for text in texts[::SHARE]]
    rows = pa.table({"id": np.arange(len(texts)), "text": changed})
    (lake / "new.parquet").unlink()
    _write(lake, rows.take(pa.array(generator.permutation(len(texts)))))
    jobs["rewritten"] = measured()
    return jobs


def _write(lake: Path, rows: pa.Table) -> None:
    bounds = np.linspace(0, len(rows), FILES + 1).astype(int)
    for number, (start, stop) in enumerate(pairwise(bounds)):
        pq.write_table(rows.slice(start, stop - start), lake / f"{number:02d}.parquet")


def _print(jobs: dict[str, Measured]) -> None:
    table = Table("job")
    for title in ("rows", "embedded", "CPU s", "wall s", "CPU time over the first", "log CPU s"):
        table.add_column(title, justify="right")
    made = jobs["made"].cpu_seconds
    for name, one in jobs.items():
        share = f"{100 * one.cpu_seconds / made:.1f} %"
        seconds = (f"{one.cpu_seconds:.1f}", f"{one.seconds:.1f}")
        log = f"{one.log_cpu_seconds:.1f}"
        table.add_row(name, f"{one.rows:,}", f"{one.embedded:,}", *seconds, share, log)
    Screen().print(table)
