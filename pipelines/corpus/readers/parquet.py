"""Parquet files; Spark reads them if their footers fit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.arrow_columns import is_list_of_values, is_opened_by_spark, is_plain
from pipelines.corpus.funnel import ROWS
from pipelines.corpus.readers.formats import Damaged, FileNames, Format
from pipelines.corpus.readers.inputs import (
    Names,
    columns_of,
    is_hidden,
    named_columns,
    nothing_readable,
    rows_of,
)
from pipelines.corpus.readers.rows import ROW_DDL, ROW_SCHEMA
from pipelines.errors import InputError
from pipelines.files.locations import Location, arrow_source
from pipelines.settings import CorpusSettings
from pipelines.settings.corpus import column_of
from pipelines.spark.capacity import default_parallelism
from pipelines.spark.frames import read_columns
from pipelines.spark.tasks import collect_from_tasks, slices

_FOOTERS_AT_ONCE = 16
_SHOWN = 120
_ORIGIN = "_sentence_pipelines_file"
_NO_TYPE = str(pa.null())


@dataclass(frozen=True)
class ParquetFile:
    """The footer of a Parquet file.

    `nested` columns hold lists, maps or structs; `lists` are columns of lists of plain values, or
    without any value. `names` has all columns, repeated ones too. `problem` is the reason of an
    unreadable file; `rows` is 1 if the footer is not readable.
    """

    path: Location
    types: Mapping[str, str]
    nested: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    rows: int = 1
    problem: str | None = None
    names: tuple[str, ...] = ()

    def holds(self, name: str) -> bool:
        """Return whether an existing column of this name has a plain value in each row."""
        column = column_of(name, self.types)
        return column not in self.nested if column == name else column in self.lists

    def problem_with(self, names: Iterable[str]) -> str | None:
        """Return the reason against reading the columns of these names; None if there is none."""
        if self.problem is not None:
            return self.problem
        for name in names:
            column = column_of(name, self.types)
            if column not in self.types:
                return f"no column `{column}`"
            if (problem := same_for_spark(column, self.names)) is not None:
                return problem
            if not self.holds(name):
                return f"column `{column}` holds {self.types[column]}"
        return None


def same_for_spark(column: str, names: Iterable[str]) -> str | None:
    """Name the columns that Spark takes for one, since it ignores case; None for a single column.

    `names` has all columns of a file, repeated ones too.
    """
    alike = [name for name in names if name.lower() == column.lower()]
    if len({*alike}) > 1:
        named = " and ".join(f"`{name}`" for name in dict.fromkeys(alike))
        return f"columns {named}, which are one column for Spark"
    return f"two columns `{column}`" if len(alike) > 1 else None


def read_footers(files: Sequence[Location]) -> list[ParquetFile]:
    """Return the footers of Parquet files; runs on the driver."""
    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        return list(pool.map(_footer, files))


def _footer(file: Location) -> ParquetFile:
    if is_hidden(file.name):
        return ParquetFile(file, {}, problem="a name that Spark passes over")
    try:
        metadata = pq.read_metadata(arrow_source(file))
        schema = metadata.schema.to_arrow_schema()
    except FileNotFoundError:
        return ParquetFile(file, {}, problem="vanished")
    except pa.ArrowInvalid:
        return ParquetFile(file, {}, problem="not Parquet, or without its end")
    except OSError as error:
        problem = f"not readable ({str(error).splitlines()[0][:_SHOWN]})"
        return ParquetFile(file, {}, problem=problem)
    types = {field.name: str(field.type) for field in schema}
    nested = tuple(field.name for field in schema if not is_plain(field.type))
    lists = tuple(
        field.name
        for field in schema
        if is_list_of_values(field.type) or str(field.type) == _NO_TYPE
    )
    return ParquetFile(file, types, nested, lists, metadata.num_rows, names=tuple(schema.names))


def _parquet_rows(
    session: SparkSession,
    settings: CorpusSettings,
    files: Sequence[Location],
    read: Sequence[Location],
    damaged: Damaged,
) -> DataFrame:
    """Read files together only where the types of the wanted columns are equal.

    A damaged file, or one with other columns, is a row for the quarantine. Without a readable file
    there is an `InputError`. See :attr:`.formats.Format.read_files`.
    """
    names = named_columns(settings)
    wanted = [name for _, name in names]
    footers = [
        replace(footer, problem=damaged.get(footer.path, footer.problem))
        for footer in read_footers(files)
    ]
    problems = {footer.path: footer.problem_with(wanted) for footer in footers}
    if all(problems.values()):
        raise _no_parquet(footers, names)
    asked = {*read}
    alike: dict[tuple[object, ...], list[ParquetFile]] = defaultdict(list)
    lost = []
    for footer in (footer for footer in footers if footer.path in asked):
        if (problem := problems[footer.path]) is not None:
            lost.append((footer, problem))
            continue
        types = (footer.types[column_of(name, footer.types)] for name in wanted)
        alike[(*types, is_opened_by_spark(footer.types.values()))].append(footer)
    frames = []
    for group in alike.values():
        stored = [column_of(name, group[0].types) for name in wanted]
        frame = read_columns(session, [file.path for file in group], stored, _ORIGIN)
        for name, column in zip(wanted, stored, strict=True):
            # A column without values has no type, although its elements are wanted.
            if name != column and group[0].types[column] == _NO_TYPE:
                frame = frame.withColumn(column, F.lit(None).cast("array<string>"))
        frames.append(rows_of(frame, columns_of(settings), {"input": F.col(_ORIGIN)}))
    if lost:
        frames.append(_quarantined(session, lost))
    return reduce(DataFrame.unionByName, frames)


def find_damaged(
    session: SparkSession, files: Sequence[Location], columns: Sequence[str]
) -> dict[Location, str]:
    """Find the damaged files, and how, by reading each once more by itself.

    Spark's own error names no file. Files with unreadable footers are left out, and so are missing
    columns.
    """
    work = partial(_damages, columns=tuple(columns))
    tasks = slices(list(enumerate(files)), 4 * default_parallelism(session))
    found: list[tuple[int, str | None]] = collect_from_tasks(session, tasks, work)
    return {files[number]: problem for number, problem in found if problem is not None}


def _damages(
    tasks: Iterable[Sequence[tuple[int, Location]]], *, columns: Sequence[str]
) -> Iterator[tuple[int, str | None]]:
    """Yield the numbers of files, and the reason against reading each. Runs on an executor."""
    return ((number, _damage(file, columns)) for number, file in chain.from_iterable(tasks))


def _damage(file: Location, columns: Sequence[str]) -> str | None:
    try:
        opened = pq.ParquetFile(arrow_source(file), page_checksum_verification=True)
    except (pa.ArrowException, OSError):
        # `read_footers` has found this problem already.
        return None
    with opened:
        names = opened.schema_arrow.names
        wanted = [column_of(name, names) for name in columns]
        try:
            for _ in opened.iter_batches(columns=[name for name in wanted if name in names]):
                pass
        except FileNotFoundError:
            return "vanished"
        except (pa.ArrowException, OSError) as error:
            return f"damaged ({str(error).splitlines()[0][:_SHOWN]})"
    return None


def _no_parquet(footers: Sequence[ParquetFile], names: Names) -> InputError:
    known = [footer for footer in footers if footer.problem is None]
    for key, name in names:
        column = column_of(name, known[0].types) if known else name
        if known and all(column in footer.types and not footer.holds(name) for footer in known):
            problem = f"column `{column}` of {known[0].path} holds {known[0].types[column]}"
            return InputError(key, problem, "Name a column of plain values")
    problem = str(footers[0].problem_with(name for _, name in names))
    columns = [(footer.path, tuple(footer.types)) for footer in known]
    return nothing_readable((footers[0].path, problem), columns, names)


def _quarantined(session: SparkSession, lost: Sequence[tuple[ParquetFile, str]]) -> DataFrame:
    rows = [
        {
            "file": str(file.path),
            "quarantined": problem,
            "rows": file.rows,
            "bytes": 0,
            "level": ROWS,
            "input": file.path.as_uri(),
        }
        for file, problem in lost
    ]
    return session.createDataFrame(
        [tuple(row.get(field.name) for field in ROW_SCHEMA) for row in rows], ROW_DDL
    )


PARQUET = Format(
    # Its pages are compressed already, and Spark reads no packed file.
    files=FileNames((".parquet", ".pq"), may_be_packed=False),
    read_files=_parquet_rows,
    find_damaged=find_damaged,
    columns=True,
)
