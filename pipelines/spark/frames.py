"""Spark frames in files, under the same path for the driver and every executor."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.arrow_columns import (
    column_for_spark,
    is_opened_by_spark,
    is_read_by_spark,
    schema_for_spark,
)
from pipelines.errors import PipelineError
from pipelines.files import storage
from pipelines.files.locations import Location, arrow_source, as_local, listed
from pipelines.spark.capacity import is_connected, settings_set
from pipelines.spark.parquet_parts import (
    Part,
    data_files,
    frame_from_parts,
    gathered,
    parts_of_files,
    read_footers,
    read_part,
    read_table,
)
from pipelines.spark.tasks import collect_from_tasks, frame_from_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType


Task = TypeVar("Task")

_TEXT = "value"
_BATCH_BYTES = 2**20
_LONG = range(-(2**63), 2**63)


BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_PARTITIONS = "spark.sql.shuffle.partitions"
_WRITTEN = "written"
_VOLUMES = "/Volumes"


def frame_from_json(
    session: SparkSession,
    tasks: Sequence[Task],
    work: Callable[[Iterator[Task]], Iterator[str]],
    schema: StructType | None,
    corrupt: str | None = None,
) -> DataFrame:
    """Run tasks, and make a frame of their JSON objects.

    Args:
        tasks: Plain values, each with a partition of its own.
        work: Runs on an executor; gets one task and yields JSON objects, none of them blank.
        schema: Of the rows; by default Spark finds one for all of them.
        corrupt: The column for lines without a JSON object; by default, such a line ends the job.
    """
    options = {"mode": "FAILFAST"} if corrupt is None else {"columnNameOfCorruptRecord": corrupt}
    if not is_connected():
        rows = session.sparkContext.parallelize(tasks, len(tasks))
        lines = rows.mapPartitions(lambda partition: work(iter(partition)))
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
    """Yield lines as rows. Runs on an executor."""
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
    """Infer the schema by Spark's JSON reader, from one row of each shape."""
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
    """Yield the distinct row shapes of a task. Runs on an executor."""
    yield list(dict.fromkeys(json.dumps(shape_of(json.loads(line))) for line in work(tasks)))


def shape_of(value: Any) -> Any:
    """Reduce a JSON value to its types: most rows of a table then agree."""
    if isinstance(value, dict):
        return {name: shape_of(field) for name, field in value.items()}
    if isinstance(value, list):
        shapes = {json.dumps(shape_of(item)): shape_of(item) for item in value}
        return list(shapes.values())
    # An integer beyond a long keeps its value: Spark infers another type for it.
    if isinstance(value, int) and not isinstance(value, bool):
        return 0 if value in _LONG else value
    return {str: "", float: 0.5}.get(type(value), value)


def read_path(path: Path) -> str:
    """Return the path for Spark's readers: with a scheme, and escaped against globbing."""
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", write_path(path))


def write_path(path: Path) -> str:
    """Return the path for Spark's writers: with a scheme, independent of the default file system.

    In Databricks' Spark Connect sessions a volume is part of the default file system.
    """
    return str(path) if is_connected() and path.is_relative_to(_VOLUMES) else f"file://{path}"


def read_parquet(
    session: SparkSession, path: Location, schema: StructType | None = None
) -> DataFrame:
    """Return a frame of a Parquet file, or of a folder of them.

    Spark's own reader reads file systems, and pyarrow reads stores, so no cluster needs a connector
    for the address.
    """
    local = as_local(path)
    if local is not None:
        reader = session.read if schema is None else session.read.schema(schema)
        return reader.parquet(read_path(local))
    return _by_executors(session, data_files(path), schema)


def read_files(
    session: SparkSession,
    paths: Sequence[Location],
    schema: StructType | None = None,
    origin: str | None = None,
) -> DataFrame:
    """Return a frame of Parquet files of one schema, all of file systems or all of stores.

    ``schema`` holds the wanted columns, if known. ``origin`` names one more column, with the
    address of a row's file.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    local = [read_path(path) for path in map(as_local, paths) if path is not None]
    if not local:
        return _by_executors(session, paths, schema, origin)
    # The calendar of all writers but Spark 2, whose files name their writer.
    reader = session.read.options(datetimeRebaseMode="CORRECTED", int96RebaseMode="CORRECTED")
    frame = (reader if schema is None else reader.schema(schema)).parquet(*local)
    if origin is None:
        return frame
    # Databricks has the function only in sessions with a SparkContext.
    address = F.col("_metadata.file_path") if is_connected() else F.input_file_name()
    return frame.select("*", address.alias(origin))


def read_columns(
    session: SparkSession,
    paths: Sequence[Location],
    names: Sequence[str],
    origin: str | None = None,
) -> DataFrame:
    """Read the named columns of Parquet files of one schema, of any Arrow types.

    Spark may not know the types of other columns (times, half floats), and does not look at them.
    If it does not know a wanted type, executors read the files by pyarrow. The files are all of
    file systems or all of stores. A name may occur twice.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    stored = pq.read_schema(arrow_source(paths[0]))
    wanted = [stored.field(name) for name in dict.fromkeys(names)]
    schema = from_arrow_schema(schema_for_spark(wanted))
    known = all(is_read_by_spark(field.type) for field in wanted)
    if known and is_opened_by_spark(stored.types):
        return read_files(session, paths, schema, origin)
    return _by_executors(session, paths, schema, origin)


def holds_text(kind: DataType) -> bool:
    """Return whether a column can hold texts, as files of them can."""
    from pyspark.sql.types import BinaryType, NullType, StringType

    return isinstance(kind, StringType | BinaryType | NullType)


def read_columns_of_any(
    session: SparkSession, paths: Sequence[Location], names: Sequence[str]
) -> DataFrame:
    """Read the named columns of Parquet files of several types.

    A column with several types becomes one of strings.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    schemas = [footer.schema.to_arrow_schema() for footer in read_footers(paths)]
    alike: dict[tuple[object, ...], list[Location]] = {}
    for path, schema in zip(paths, schemas, strict=True):
        types = (schema.field(name).type for name in names)
        alike.setdefault((*types, is_opened_by_spark(schema.types)), []).append(path)
    frames = [read_columns(session, files, names) for files in alike.values()]
    for name in names:
        if len({frame.schema[name].dataType.simpleString() for frame in frames}) > 1:
            # Without backticks, Spark takes a dot in a name for the field of a struct.
            text = F.col("`" + name.replace("`", "``") + "`").cast("string")
            frames = [frame.withColumn(name, text) for frame in frames]
    return reduce(type(frames[0]).unionByName, frames)


def _by_executors(
    session: SparkSession,
    paths: Sequence[Location],
    schema: StructType | None,
    origin: str | None = None,
) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StringType, StructField, StructType

    if schema is None:
        schema = from_arrow_schema(schema_for_spark(pq.read_schema(arrow_source(paths[0]))))
    work = partial(_read_rows, columns=schema.names, origin=origin)
    if origin is not None:
        schema = StructType([*schema.fields, StructField(origin, StringType())])
    parts = parts_of_files(paths)
    if not parts:
        return session.createDataFrame([], schema)
    return frame_from_parts(session, parts, work, schema)


def _read_rows(
    parts: Iterator[Part], *, columns: Sequence[str], origin: str | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files, with the frame's order of columns. Runs on an executor."""
    for part in parts:
        for batch in read_part(part, columns):
            values = [column_for_spark(batch.column(name)) for name in columns]
            rows = pa.RecordBatch.from_arrays(values, list(columns))
            if origin is not None:
                address = pa.repeat(part.path.as_uri(), rows.num_rows)
                rows = rows.append_column(origin, address)
            yield rows


def write_parquet(frame: DataFrame, path: Location) -> None:
    """Write a frame as a folder of Parquet files, one per partition.

    In a store the executors write them; see :func:`read_parquet`.
    """
    local = as_local(path)
    if local is not None:
        frame.write.parquet(write_path(local), compression="zstd")
        return
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema)
    write = partial(_write_partition, function=iter, schema=schema, totals=Totals(()), folder=path)
    # The collected rows are only totals: executors have written the data.
    frame.mapInArrow(write, Totals(()).ddl).collect()


def write_single_file(frame: DataFrame, path: Location) -> None:
    """Write a small table as one Parquet file."""
    local = as_local(path)
    if local is not None:
        # Spark writes only folders, so its single part becomes the file.
        parts = local.with_suffix(".parts")
        frame.coalesce(1).write.parquet(write_path(parts), compression="zstd")
        next(parts.glob("part-*")).rename(local)
        shutil.rmtree(parts)
        return
    with storage.built_file(path) as aside:
        pq.write_table(_collected(frame), aside, compression="zstd")


def _collected(frame: DataFrame) -> pa.Table:
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema)
    rows = [row.asDict() for row in frame.collect()]
    return pa.Table.from_pylist(rows, schema=schema)


def batches_of(session: SparkSession, rows: int) -> AbstractContextManager[None]:
    """Limit the rows of a batch for Python while the block runs.

    With long texts, the default of thousands takes more memory than an executor has.
    """
    return settings_set(session, {_BATCH_ROWS: str(rows)})


def shuffle_partitions(session: SparkSession, least: int) -> AbstractContextManager[None]:
    """Raise the number of shuffle partitions to at least ``least`` while the block runs.

    A higher number stays, and so does a word (`auto` on Databricks).
    """
    before = session.conf.get(_PARTITIONS)
    stays = before is None or not before.isdigit() or int(before) >= least
    return settings_set(session, {} if stays else {_PARTITIONS: str(least)})


@dataclass(frozen=True)
class Totals:
    """Sums over the rows of a frame, taken while they are written.

    Attributes:
        keys: One or more string columns; rows that agree in all of them are summed together.
        sums: The int64 columns to sum. The number of rows is summed too, as `written`.
        numbers: Further int64 columns in which such rows agree.
    """

    keys: tuple[str, ...]
    sums: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()

    @property
    def ddl(self) -> str:
        """The columns of the totals, as Spark DDL."""
        keys = [f"`{name}` string" for name in self.keys]
        longs = (*self.numbers, *self.sums, _WRITTEN)
        return ", ".join([*keys, *(f"`{name}` long" for name in longs)])

    @property
    def schema(self) -> pa.Schema:
        """The columns of the totals: `keys`, `numbers`, `sums`, and `written`."""
        longs = [(name, pa.int64()) for name in (*self.numbers, *self.sums, _WRITTEN)]
        return pa.schema([*((name, pa.string()) for name in self.keys), *longs])

    def of(self, batch: pa.RecordBatch) -> pa.Table:
        """Return the totals of a batch of the frame. Runs on an executor."""
        columns = {name: batch[name] for name in (*self.keys, *self.numbers, *self.sums)}
        ones = pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows)
        return self.merged(pa.table({**columns, _WRITTEN: ones}, schema=self.schema))

    def merged(self, totals: pa.Table) -> pa.Table:
        """Return the totals of all parts together; sums of only nulls are null."""
        summed = (*self.sums, _WRITTEN)
        keys = (*self.keys, *self.numbers)
        grouped = totals.group_by(list(keys), use_threads=False)
        added = grouped.aggregate([(name, "sum") for name in summed])
        columns = {name: added[name] for name in keys}
        columns |= {name: added[f"{name}_sum"] for name in summed}
        return pa.table(columns, schema=self.schema)


@dataclass(frozen=True)
class Kept:
    """A computed frame in files."""

    path: Location
    frame: DataFrame
    partitions: Mapping[int, int]

    @property
    def rows(self) -> int:
        """The rows of all partitions."""
        return sum(self.partitions.values())

    def to_arrow(self) -> pa.Table:
        """Return all rows in this process, for small frames."""
        return read_table(self.path)


class Scratch:
    """Keeps intermediate frames as Parquet files in a folder, and removes it at the end.

    Each frame is computed once. Unlike a cache the files survive a lost executor, and unlike a
    lineage they do not grow.
    """

    def __init__(self, folder: Location) -> None:
        self._folder = folder
        self._frames = 0

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        storage.discard_folder(self._folder)

    def keep(self, frame: DataFrame) -> DataFrame:
        """Compute the frame, and return a frame of the result."""
        return self.keep_counted(frame).frame

    def keep_counted(self, frame: DataFrame) -> Kept:
        """Do as :meth:`keep`, and count the rows without a further Spark job."""
        path = self._next_path()
        write_parquet(frame, path)
        kept = read_parquet(frame.sparkSession, path, frame.schema)
        return Kept(path, kept, rows_by_partition(path))

    def keep_arrow(
        self, frame: DataFrame, function: BatchFunction, schema: pa.Schema, totals: Totals
    ) -> tuple[Kept, pa.Table]:
        """Apply a function to Arrow batches; return the kept result and the totals of its rows.

        See :func:`write_arrow`.
        """
        from pyspark.sql.pandas.types import from_arrow_schema

        path = self._next_path()
        found = write_arrow(frame, function, schema, totals, path)
        kept = read_parquet(frame.sparkSession, path, from_arrow_schema(schema))
        return Kept(path, kept, rows_by_partition(path)), found

    def _next_path(self) -> Location:
        self._frames += 1
        return self._folder / str(self._frames)


def write_arrow(
    frame: DataFrame, function: BatchFunction, schema: pa.Schema, totals: Totals, path: Location
) -> pa.Table:
    """Write the Arrow batches of a function, as of `mapInArrow`; return the totals.

    The executors write the files themselves: the result's rows cost the JVM nothing. A batch of the
    function lies in one row group.
    """
    path.mkdir(parents=True)
    write = partial(_write_partition, function=function, schema=schema, totals=totals, folder=path)
    rows = [row.asDict() for row in frame.mapInArrow(write, totals.ddl).collect()]
    found = totals.merged(pa.Table.from_pylist(rows, schema=totals.schema))
    written = sum(found[_WRITTEN].to_pylist())
    stored = sum(rows_by_partition(path).values())
    if stored != written:
        raise PipelineError(f"{path} holds {stored} of the {written} rows that executors wrote")
    return found


def rows_by_partition(folder: Location) -> dict[int, int]:
    """Return the rows of a folder of Spark's, by partition; empty ones may be missing."""
    rows: Counter[int] = Counter()
    files = listed(folder, "part-*.parquet")
    for file, footer in zip(files, read_footers(files), strict=True):
        found = re.match(r"part-(\d+)", file.name)
        assert found is not None, "Spark numbers its files"
        rows[int(found[1])] += footer.num_rows
    return dict(rows)


def _write_partition(
    batches: Iterator[pa.RecordBatch],
    *,
    function: BatchFunction,
    schema: pa.Schema,
    totals: Totals,
    folder: Location,
) -> Iterator[pa.RecordBatch]:
    """Write a whole file per partition. Runs on an executor."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "this runs in a task"
    found = totals.schema.empty_table()
    # A task that dies leaves at most an aside, whose hidden name Spark's reader skips.
    with (
        storage.built_file(folder / f"part-{context.partitionId():05d}.parquet") as aside,
        pq.ParquetWriter(aside, schema, compression="zstd") as writer,
    ):
        results = function(batches)
        typed = (rows.cast(schema) if rows.schema != schema else rows for rows in results)
        for batch in gathered(typed):
            # A batch stays whole, also one of more than a million rows.
            writer.write_batch(batch, batch.num_rows)
            found = totals.merged(pa.concat_tables([found, totals.of(batch)]))
    yield from found.to_batches()
