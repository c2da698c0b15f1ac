"""Frames of rows that tasks give as JSON, whose types Spark finds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from pipelines.spark.access_mode import is_connected
from pipelines.spark.tasks import collect_from_tasks, frame_from_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Task = TypeVar("Task")

_TEXT = "value"
_BATCH_BYTES = 2**20
_LONG = range(-(2**63), 2**63)


def frame_from_json(
    session: SparkSession,
    tasks: Sequence[Task],
    work: Callable[[Iterator[Task]], Iterator[str]],
    schema: StructType | None,
    corrupt: str | None = None,
) -> DataFrame:
    """Has Spark do tasks that give JSON objects, and makes a frame of these.

    Args:
        tasks: Plain values, each done in a partition of its own.
        work: Runs on an executor; gets one task and yields JSON objects, none of them blank.
        schema: Of the rows; otherwise Spark finds one that suits all of them.
        corrupt: The column that gets what is no JSON object; without it, that ends the job.
    """
    options = {"mode": "FAILFAST"} if corrupt is None else {"columnNameOfCorruptRecord": corrupt}
    if not is_connected():
        rows = session.sparkContext.parallelize(tasks, len(tasks))
        lines = rows.mapPartitions(lambda some: work(iter(some)))
        reader = session.read if schema is None else session.read.schema(schema)
        return reader.options(**options).json(lines)
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    # A client of Spark Connect reads JSON from files alone.
    if schema is None:
        schema = _schema_of(session, tasks, work)
    texts = frame_from_tasks(session, tasks, partial(_as_column, work=work), f"{_TEXT} string")
    parsed = texts.select(F.from_json(_TEXT, schema, options).alias(_TEXT))
    return parsed.select(f"{_TEXT}.*")


def _as_column(
    tasks: Iterator[Any], *, work: Callable[[Iterator[Any]], Iterator[str]]
) -> Iterator[pa.RecordBatch]:
    """Lines as rows. Runs on an executor."""
    lines: list[str] = []
    size = 0
    for line in work(tasks):
        lines.append(line)
        size += len(line)
        if size > _BATCH_BYTES:
            yield pa.RecordBatch.from_pydict({_TEXT: pa.array(lines, pa.string())})
            lines, size = [], 0
    yield pa.RecordBatch.from_pydict({_TEXT: pa.array(lines, pa.string())})


def _schema_of(
    session: SparkSession, tasks: Sequence[Task], work: Callable[[Iterator[Task]], Iterator[str]]
) -> StructType:
    """The schema that Spark's reader of JSON finds: by its own rules, of one row of each shape."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know
    from pyspark.sql.types import ArrayType, StructType

    found = collect_from_tasks(session, tasks, partial(_shapes, work=work))
    rows = f"[{','.join(dict.fromkeys(shape for shapes in found for shape in shapes))}]"
    typed = session.range(1).select(F.from_json(F.lit(rows), F.schema_of_json(rows)).alias(_TEXT))
    kind = typed.schema[_TEXT].dataType
    row = kind.elementType if isinstance(kind, ArrayType) else None
    return row if isinstance(row, StructType) else StructType()


def _shapes(
    tasks: Iterator[Any], *, work: Callable[[Iterator[Any]], Iterator[str]]
) -> Iterator[list[str]]:
    """The shapes of the rows of a task, each once. Runs on an executor."""
    yield list(dict.fromkeys(json.dumps(shape_of(json.loads(line))) for line in work(tasks)))


def shape_of(value: Any) -> Any:
    """A value of JSON with its types alone, so that most rows of a table have the same."""
    if isinstance(value, dict):
        return {name: shape_of(of) for name, of in value.items()}
    if isinstance(value, list):
        shapes = {json.dumps(shape_of(of)): shape_of(of) for of in value}
        return list(shapes.values())
    if isinstance(value, int) and not isinstance(value, bool):
        return 0 if value in _LONG else value
    return {str: "", float: 0.5}.get(type(value), value)
