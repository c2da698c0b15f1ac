"""Parquet, Delta and Iceberg, and tables by name, as raw rows: these are read by Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException, PySparkTypeError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType, MapType, StructField, StructType

from pipelines.corpus.funnel import ROWS
from pipelines.corpus.inputs import INPUTS, find_files, is_hidden
from pipelines.corpus.records import Columns
from pipelines.corpus.rows import ROW_DDL, ROW_SCHEMA
from pipelines.errors import InputError
from pipelines.frames import read_path
from pipelines.settings import CorpusSettings

Names = Sequence[tuple[str, str]]
"""Settings that name a column, each with the name."""

_FOOTERS_AT_ONCE = 16


@dataclass(frozen=True)
class ParquetFile:
    """What the footer of a Parquet file says.

    Attributes:
        path: Absolute.
        types: Of all columns, by name.
        nested: Columns that hold lists, maps or structs.
        rows: How many; 1 where the footer is not readable.
        problem: Why it cannot be read, if so.
    """

    path: Path
    types: Mapping[str, str]
    nested: tuple[str, ...] = ()
    rows: int = 1
    problem: str | None = None

    def problem_with(self, names: Iterable[str]) -> str | None:
        """Why the columns of these names cannot be read, if so."""
        if self.problem is not None:
            return self.problem
        missing = next((name for name in names if name not in self.types), None)
        if missing is not None:
            return f"no column `{missing}`"
        nested = next((name for name in names if name in self.nested), None)
        return nested and f"column `{nested}` holds {self.types[nested]}"


def read_footers(files: Sequence[Path]) -> list[ParquetFile]:
    """The footers of Parquet files; runs on the driver."""
    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        return list(pool.map(_footer, files))


def _footer(file: Path) -> ParquetFile:
    if is_hidden(file.name):
        return ParquetFile(file, {}, problem="a name that Spark passes over")
    try:
        metadata = pq.read_metadata(file)
        schema = metadata.schema.to_arrow_schema()
    except FileNotFoundError:
        return ParquetFile(file, {}, problem="vanished")
    except pa.ArrowInvalid:
        return ParquetFile(file, {}, problem="not Parquet, or without its end")
    except OSError as error:
        return ParquetFile(file, {}, problem=f"not readable ({str(error).splitlines()[0][:120]})")
    nested = tuple(field.name for field in schema if pa.types.is_nested(field.type))
    types = {field.name: str(field.type) for field in schema}
    return ParquetFile(file, types, nested, metadata.num_rows)


def read_parquet(session: SparkSession, settings: CorpusSettings, names: Names) -> DataFrame:
    """Parquet files, read together only where the types of the wanted columns are equal.

    A file that is damaged or has other columns is a row for the quarantine.

    Raises:
        InputError: No file can be read.
    """
    footers = read_footers(find_files(settings.inputs, "parquet"))
    wanted = [name for _, name in names]
    problems = {footer.path: footer.problem_with(wanted) for footer in footers}
    good = [footer for footer in footers if problems[footer.path] is None]
    if not good:
        raise _no_parquet(footers, names)
    alike: dict[tuple[str, ...], list[Path]] = {}
    for footer in good:
        types = tuple(footer.types[name] for name in wanted)
        alike.setdefault(types, []).append(footer.path)
    columns = columns_of(settings)
    frames = [_rows(parquet_columns(session, paths, wanted), columns) for paths in alike.values()]
    lost = [(footer, problem) for footer in footers if (problem := problems[footer.path])]
    if lost:
        frames.append(_quarantined(session, lost))
    return reduce(DataFrame.unionByName, frames)


def parquet_columns(
    session: SparkSession, paths: Sequence[Path], names: Sequence[str]
) -> DataFrame:
    """The named columns of Parquet files of one schema.

    Spark does not look at the others, whose types it may not know (nanoseconds, half floats).
    """
    schema = pq.read_schema(paths[0])
    files = [read_path(path) for path in paths]
    try:
        fields = [
            StructField(name, from_arrow_type(schema.field(name).type))
            for name in dict.fromkeys(names)
        ]
    except PySparkTypeError:
        # Unsigned numbers, say, which Spark's own reader of footers takes for wider ones.
        return session.read.parquet(*files)
    return session.read.schema(StructType(fields)).parquet(*files)


def _no_parquet(footers: Sequence[ParquetFile], names: Names) -> InputError:
    known = [footer for footer in footers if footer.problem is None]
    for key, name in names:
        if known and all(name in footer.nested for footer in known):
            kind = known[0].types[name]
            problem = f"column `{name}` of {known[0].path} holds {kind}"
            return InputError(key, problem, "name a column of plain values")
    problem = str(footers[0].problem_with(name for _, name in names))
    there = [(footer.path, tuple(footer.types)) for footer in known]
    return nothing_readable((footers[0].path, problem), there, names)


def nothing_readable(
    first: tuple[Path, str],
    known: Sequence[tuple[Path, Sequence[str]]],
    names: Names,
    key: str = INPUTS,
) -> InputError:
    """The error for inputs of which no file can be read.

    Args:
        first: The first file, and why it cannot be read.
        known: The files whose columns are known, with these.
        names: What is wanted.
        key: The setting of the inputs.
    """
    for setting, name in names:
        if known and not any(name in columns for _, columns in known):
            file, columns = known[0]
            return InputError(
                setting, f"{file} has no column `{name}`", f"it has {_listed(columns)}"
            )
    return InputError(key, f"{first[0]} cannot be read ({first[1]})", "mend it, or name others")


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(columns)


def _quarantined(session: SparkSession, lost: Sequence[tuple[ParquetFile, str]]) -> DataFrame:
    rows = [
        {
            "file": str(file.path),
            "quarantined": problem,
            "rows": file.rows,
            "bytes": 0,
            "level": ROWS,
        }
        for file, problem in lost
    ]
    return session.createDataFrame(
        [tuple(row.get(field.name) for field in ROW_SCHEMA) for row in rows], ROW_DDL
    )


def columns_of(settings: CorpusSettings) -> Columns:
    """The columns that the settings want of formats that have some."""
    texts: Mapping[str, tuple[str, ...]] = {
        "columns": settings.pair_columns,
        "triplets": settings.triplet_columns,
    }
    return Columns(
        texts.get(settings.pairs, (settings.text_column,)),
        settings.title_column if settings.pairs == "title" else None,
        settings.score_column,
        settings.group_column,
    )


def named_columns(settings: CorpusSettings) -> Names:
    """The settings that name a wanted column, and the names."""
    keys = {"columns": "corpus.pair_columns", "triplets": "corpus.triplet_columns"}
    columns = columns_of(settings)
    texts = keys.get(settings.pairs, "corpus.text_column")
    others = (
        ("corpus.title_column", columns.title),
        ("corpus.group_column", columns.group),
        ("corpus.score_column", columns.score),
    )
    return [(texts, name) for name in columns.texts] + [
        (key, name) for key, name in others if name is not None
    ]


def read_tables(
    session: SparkSession,
    settings: CorpusSettings,
    names: Names,
    load: Callable[[SparkSession, str], DataFrame],
) -> DataFrame:
    """Tables one below the other.

    Raises:
        InputError: A table or a column is not there, or a column holds no plain values.
    """
    if not settings.inputs:
        raise InputError(INPUTS, "it is empty", "name tables")
    frames = []
    for given in settings.inputs:
        frame = load(session, given)
        types = {field.name: field.dataType for field in frame.schema.fields}
        for key, name in names:
            if name not in types:
                raise InputError(key, f"{given} has no column `{name}`", f"it has {_listed(types)}")
            if isinstance(types[name], (ArrayType, MapType, StructType)):
                kind = types[name].simpleString()
                raise InputError(
                    key, f"column `{name}` of {given} holds {kind}", "name a column of plain values"
                )
        frames.append(_rows(frame, columns_of(settings)))
    return reduce(DataFrame.unionByName, frames)


def load_table(session: SparkSession, name: str, remedy: str | None = None) -> DataFrame:
    """A table or view of the session.

    Raises:
        InputError: There is none of that name.
    """
    try:
        return session.table(name)
    except (PySparkException, Py4JJavaError) as error:
        raise InputError(
            INPUTS,
            f"there is no table `{name}` ({_summary(error)})",
            remedy or "name it as `catalog.database.table`",
        ) from None


def load_iceberg(session: SparkSession, name: str) -> DataFrame:
    """An Iceberg table of a catalog of the session."""
    return load_table(
        session,
        name,
        "name it as `catalog.database.table`; the catalog needs the package "
        f"org.apache.iceberg:iceberg-spark-runtime-{_spark(session)}_2.12 in spark.jars.packages, "
        "spark.sql.extensions=org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions "
        "and spark.sql.catalog.<catalog>=org.apache.iceberg.spark.SparkCatalog",
    )


def load_delta(session: SparkSession, given: str) -> DataFrame:
    """A Delta table: a folder that Spark can reach, or a table's name.

    Raises:
        InputError: There is none, or the cluster lacks Delta.
    """
    path = delta_folder(given)
    try:
        if path is None and "/" not in given:
            return session.table(given)
        source = given if path is None else read_path(path)
        return session.read.format("delta").load(source)
    except (PySparkException, Py4JJavaError) as error:
        lacks = "DATA_SOURCE_NOT_FOUND" in str(error) or "ClassNotFound" in str(error)
        problem = (
            "Delta is not on the cluster"
            if lacks
            else f"`{given}` is no Delta table ({_summary(error)})"
        )
        raise InputError(
            INPUTS,
            problem,
            "name a folder or table; Delta needs the package io.delta:delta-spark_2.12 in "
            "spark.jars.packages, "
            "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and "
            "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog",
        ) from None


def delta_folder(given: str) -> Path | None:
    """The folder on a file system that a Delta input names, if it is one."""
    path = Path(given.removeprefix("file://")).expanduser()
    return path.absolute() if path.is_dir() else None


LOADERS: Mapping[str, Callable[[SparkSession, str], DataFrame]] = {
    "table": load_table,
    "iceberg": load_iceberg,
    "delta": load_delta,
}
"""Format to how one of its inputs is loaded."""


def _spark(session: SparkSession) -> str:
    return ".".join(session.version.split(".")[:2])


def _summary(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage() if java is not None else error).strip() or repr(error)
    return text.splitlines()[0][:120]


def raw_rows(frame: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
    """Raw rows of :data:`~pipelines.corpus.rows.ROW_SCHEMA`; columns that are not given are null.

    Unless given, `bytes` are those of the texts.
    """
    texts = [columns[name] for name in ("text_0", "text_1", "text_2") if name in columns]
    sizes = (F.coalesce(F.octet_length(text), F.lit(0)) for text in texts)
    defaults = {"rows": F.lit(1), "level": F.lit(ROWS), "bytes": reduce(Column.__add__, sizes)}
    given = {**defaults, **columns}
    return frame.select(
        *(
            given.get(field.name, F.lit(None))
            .cast("bigint" if field.type == pa.int64() else "string")
            .alias(field.name)
            for field in ROW_SCHEMA
        )
    )


def text_of(name: str) -> Column:
    """A column as text, with U+FFFD for what is no UTF-8: Spark passes such bytes on as they are.

    The name is quoted, because a dot in it would mean a field of a struct.
    """
    column = F.col("`" + name.replace("`", "``") + "`")
    return F.decode(column.cast("string").cast("binary"), "UTF-8")


def _rows(frame: DataFrame, columns: Columns) -> DataFrame:
    wanted = {f"text_{side}": name for side, name in enumerate(columns.texts)}
    others = {"title": columns.title, "score": columns.score, "group": columns.group}
    wanted |= {name: column for name, column in others.items() if column is not None}
    return raw_rows(frame, {name: text_of(column) for name, column in wanted.items()})
