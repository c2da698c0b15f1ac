"""Measures one checkpoint: ``python -m pipelines.evaluation.measure_checkpoint``, job as JSON.

During a training its workers hold the executors, so a process beside the driver measures
checkpoints without Spark. Before the training, Spark has read and checked the tables, and written
them as Parquet. The process takes the lowest CPU priority. Its last line on standard output is the
figures as JSON; it ends with its driver, and at its deadline.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.catalog import EVALUATIONS
from pipelines.evaluation.base import WHOLE_ALONE, Forms
from pipelines.evaluation.embedder import EmbedderLoader
from pipelines.evaluation.rows import BATCH_ROWS, LocalRows, Tables
from pipelines.evaluation.sets import named_sets
from pipelines.files import storage
from pipelines.files.locations import Location, arrow_source, location
from pipelines.models.folder import write_encoder
from pipelines.models.inference.embedder import load_embedder
from pipelines.runs.checkpoint import load_checkpoint, write_files
from pipelines.settings import Config, StorageSettings
from pipelines.spark.frames import write_parquet
from pipelines.spark.parquet_parts import data_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PLAN = "plan.json"


@dataclass(frozen=True)
class Snapshot:
    """The tables of a set.

    ``name`` is the set's in ``metrics.json``, see :meth:`Evaluation.checkpoint_name`; ``kind``
    names its evaluation.
    """

    name: str
    kind: str
    tables: Tables
    forms: Forms = WHOLE_ALONE


def read_snapshots(session: SparkSession, config: Config) -> list[Snapshot]:
    """Read and check all sets of ``evaluation``.

    Raises:
        InputError: One cannot be read.
    """
    return [
        Snapshot(
            named.name,
            named.evaluation.name,
            named.evaluation.arrange(named.read_for_checkpoints(session, config)),
            named.forms(config),
        )
        for named in named_sets(config)
    ]


def write_snapshots(snapshots: Sequence[Snapshot], folder: Location) -> None:
    """Write the tables, for :func:`measure`."""
    plan = []
    with storage.new_folder(folder) as aside:
        for number, snapshot in enumerate(snapshots):
            for name, frame in snapshot.tables.items():
                write_parquet(frame, _table_path(aside, number, name))
            plan.append(
                {
                    "name": snapshot.name,
                    "kind": snapshot.kind,
                    "tables": list(snapshot.tables),
                    "forms": snapshot.forms._asdict(),
                }
            )
        storage.write_json(aside / PLAN, plan)


def measure(folder: Location, load: EmbedderLoader) -> dict[str, dict[str, float]]:
    """Measure a model in this process, with the cluster's figures on these tables.

    ``folder`` is that of :func:`write_snapshots`. Figures are as in
    :func:`pipelines.evaluation.sets.evaluate`; sets with fewer documents have names of their own.
    """
    embedder = load()
    figures: dict[str, dict[str, float]] = {}
    for number, line in enumerate(storage.read_json(folder / PLAN)):
        evaluation = EVALUATIONS.load(line["kind"])
        tables = {
            name: LocalRows(partial(_batches, _table_path(folder, number, name)))
            for name in line["tables"]
        }
        for found in evaluation.measure(tables, lambda: embedder, Forms(**line["forms"])):
            name = found.form.named(line["name"])
            figures[evaluation.checkpoint_name(name)] = found.figures
    return figures


def _table_path(folder: Location, number: int, name: str) -> Location:
    return folder / f"{number:03}-{name}"


def _batches(table: Location) -> Iterator[pa.RecordBatch]:
    for path in data_files(table):
        with pq.ParquetFile(arrow_source(path)) as file:
            yield from (batch for batch in file.iter_batches(BATCH_ROWS) if batch.num_rows)


NICENESS = 19
STATE = "state"
"""The subfolder of ``folder`` for the measured state."""
PARENT_CHECK_SECONDS = 1.0


def main() -> None:
    """Measure the checkpoint of a job, a JSON object on standard input.

    Its keys are ``run_folder``, ``step``, ``tokenizer`` and ``snapshots``. ``storage`` are the
    settings of stores. ``folder`` is an empty one for intermediate files, with ``keep`` also for
    the state, in ``STATE``. ``driver`` is the id of the asking process, and ``seconds`` its
    deadline for the answer.
    """
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    # Output of libraries must not mix with the answer, so it goes to the log.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.nice(NICENESS)
    job = json.load(sys.stdin)
    folder = Path(job["folder"])
    _end_with(job["driver"], job["seconds"], folder)
    stores = StorageSettings(**job["storage"])
    # First of all, since the training may delete the checkpoint soon.
    checkpoint = load_checkpoint(location(job["run_folder"], stores), job["step"])
    model = folder / "model"
    write_encoder(
        model, checkpoint.spec, checkpoint.encoder_weights, location(job["tokenizer"], stores), ""
    )
    if job["keep"]:
        state = replace(checkpoint, weights=checkpoint.averages, moments={})
        (folder / STATE).mkdir()
        write_files(folder / STATE, state)
        del state
    # Freed before `measure` loads the model, so that the process holds its weights once.
    del checkpoint
    snapshots = location(job["snapshots"], stores)
    figures = measure(snapshots, lambda: load_embedder(model, precision="fp32"))
    answer.write(json.dumps(figures) + "\n")
    answer.flush()


def _end_with(driver: int, seconds: float, folder: Path) -> None:
    """End this process when its driver is gone, or after so many seconds, and remove the folder.

    A scheduler repeats a killed job, and otherwise two processes would measure at once. The driver
    may not be there to remove the folder.
    """
    deadline = time.monotonic() + seconds

    def watch() -> None:
        while os.getppid() == driver and time.monotonic() < deadline:
            time.sleep(min(PARENT_CHECK_SECONDS, seconds))
        shutil.rmtree(folder, ignore_errors=True)
        # Not `sys.exit`: in a thread, it ends only the thread.
        os._exit(1)

    threading.Thread(target=watch, name="driver-watch", daemon=True).start()


if __name__ == "__main__":
    main()
