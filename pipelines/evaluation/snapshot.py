"""What is measured on as plain Parquet files, for a process without Spark to measure by.

While training goes on its workers hold the executors, so checkpoints are measured by one process
beside the driver. What it needs is read and checked by Spark before the training starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.catalog import EVALUATIONS
from pipelines.evaluation.base import BATCH_ROWS, Tables, form_name
from pipelines.evaluation.embedder import EmbedderLoader
from pipelines.evaluation.sets import named_sets
from pipelines.files import storage
from pipelines.files.locations import Location, arrow_source
from pipelines.settings import Config
from pipelines.spark.frames import write_parquet
from pipelines.spark.parquet_parts import data_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAN = "plan.json"


@dataclass(frozen=True)
class Snapshot:
    """The tables of a set.

    Attributes:
        name: Of the set, in ``metrics.json``; see :meth:`Evaluation.checkpoint_name`.
        kind: How it is measured on, the name of an evaluation.
        tables: By name.
        dimensions: Widths at which it is measured on beside the whole.
        hybrid: It is measured on with BM25 too.
        metrics: Of rankings, beside the usual ones.
    """

    name: str
    kind: str
    tables: Tables
    dimensions: Sequence[int] = ()
    hybrid: bool = False
    metrics: Sequence[str] = ()


def read_snapshots(session: SparkSession, config: Config) -> list[Snapshot]:
    """Reads and checks all that ``evaluation`` asks for.

    Raises:
        InputError: Something cannot be read.
    """
    return [
        Snapshot(
            one.name,
            one.evaluation.name,
            one.evaluation.snapshot(one.read_for_checkpoints(session, config)),
            config.trained_widths(),
            config.evaluation.hybrid,
            config.evaluation.retrieval_metrics,
        )
        for one in named_sets(config)
    ]


def write_snapshots(snapshots: Sequence[Snapshot], folder: Location) -> None:
    """Writes the tables, for :func:`measure`."""
    plan = []
    with storage.new_folder(folder) as aside:
        for number, snapshot in enumerate(snapshots):
            for name, frame in snapshot.tables.items():
                write_parquet(frame, _table_path(aside, number, name))
            plan.append(
                {
                    "name": snapshot.name,
                    "kind": snapshot.kind,
                    "number": number,
                    "dimensions": list(snapshot.dimensions),
                    "hybrid": snapshot.hybrid,
                    "metrics": list(snapshot.metrics),
                }
            )
        storage.write_json(aside / PLAN, plan)


def measure(folder: Location, load: EmbedderLoader) -> dict[str, dict[str, float]]:
    """Measures a model in this process, with the figures that the cluster gives on these tables.

    Args:
        folder: Of :func:`write_snapshots`.
        load: Loads the model.

    Returns:
        As :func:`pipelines.evaluation.stage.evaluate`; what is searched among fewer documents than
        there is called otherwise.
    """
    embedder = load()
    figures: dict[str, dict[str, float]] = {}
    for line in storage.read_json(folder / PLAN):
        evaluation = EVALUATIONS.load(line["kind"])
        tables = partial(_batches, folder, line["number"])
        by_form = evaluation.measure_snapshot_at(
            tables,
            lambda: embedder,
            line["dimensions"],
            hybrid=line["hybrid"],
            metrics=line["metrics"],
        )
        figures |= {
            evaluation.checkpoint_name(form_name(line["name"], form)): one
            for form, one in by_form.items()
        }
    return figures


def _table_path(folder: Location, number: int, name: str) -> Location:
    return folder / f"{number:03}-{name}"


def _batches(folder: Location, number: int, name: str) -> Iterator[pa.RecordBatch]:
    for path in data_files(_table_path(folder, number, name)):
        with pq.ParquetFile(arrow_source(path)) as file:
            yield from (batch for batch in file.iter_batches(BATCH_ROWS) if batch.num_rows)
