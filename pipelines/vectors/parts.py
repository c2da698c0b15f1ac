"""Ranges of rows of Parquet files: what is embedded at a time, and skipped when a job resumes.

Columns that a table has in the names of its folders, as in `lang=en/part-0.parquet`.

Files of text as rows of a table, by the readers of the corpus. Runs on executors.

So a table has the encodings, compressions and quoting that a corpus has. But a row that cannot be
read ends the job: a table has all rows of its input, in its order.
"""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from itertools import chain, takewhile
from pathlib import Path, PurePosixPath
from typing import TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.arrow_columns import type_for_spark
from pipelines.corpus.readers.formats import Wanted
from pipelines.corpus.readers.inputs import find_files, place_of
from pipelines.corpus.readers.ranges import FileRange, records_of
from pipelines.corpus.readers.rows import Record
from pipelines.corpus.readers.streams import UnreadableError
from pipelines.errors import InputError
from pipelines.files.locations import Location, RemotePath, arrow_source, location
from pipelines.models.inference.embedder import TEXTS_AT_ONCE
from pipelines.settings import StorageSettings
from pipelines.settings.spark import DEFAULT_STORES


def tasks_as_json(tasks: Iterable[Iterable[FileRange]], *, wanted: Wanted) -> Iterator[str]:
    """The rows of the splits of tasks. Runs on an executor; see :func:`rows_as_json`."""
    return rows_as_json(chain.from_iterable(tasks), wanted=wanted)


def rows_as_json(splits: Iterable[FileRange], *, wanted: Wanted) -> Iterator[str]:
    """The rows of splits in their order, each as a JSON object. Runs on an executor.

    Raises:
        UnreadableError: A file or a row cannot be read.
    """
    for file, start, stop in splits:
        for found in records_of(location(file, wanted.stores), start, stop, wanted):
            if not isinstance(found, Record):
                continue
            if found.quarantined is not None:
                place = f" at byte {found.offset}" if found.offset else ""
                raise UnreadableError(f"{file}{place}: {found.quarantined}")
            (row,) = found.texts
            assert row is not None, "a row of a table is an object"
            yield row


KEY = "embedding.inputs"

# What Spark takes for the columns of a file, whatever columns it has. Its other keys say in which
# calendar dates are, and stay.
_SPARK_COLUMNS = b"org.apache.spark.sql.parquet.row."
_PANDAS = b"pandas"


def open_parquet(path: Location) -> pq.ParquetFile:
    """Opens a file; timestamps of 96 bits, which reach further than 64 bits of ns do, are in us.

    Pages that have a checksum, as those of tables of vectors do, are compared with it.
    """
    return pq.ParquetFile(
        arrow_source(path), coerce_int96_timestamp_unit="us", page_checksum_verification=True
    )


def common_schema(file: pq.ParquetFile) -> pa.Schema:
    """The columns with the types that rows of the file are given; see :func:`in_common_types`.

    Timestamps of 96 bits are moments (`timestamp[us, UTC]`), as they are to Spark, which writes
    them. Those in ns, which Spark does not read, are in us. Views of strings and bytes, which older
    readers do not know, are strings and bytes.
    """
    leaves = (file.schema.column(number) for number in range(len(file.schema)))
    fields = [field.with_type(_common_type(field.type, leaves)) for field in file.schema_arrow]
    return pa.schema(fields, _kept(file.schema_arrow.metadata or {}))


def _common_type(kind: pa.DataType, leaves: Iterator[pq.ColumnSchema]) -> pa.DataType:
    """The type, all the way down; takes as many columns of the file as it has leaves."""
    if isinstance(kind, pa.BaseExtensionType):
        _common_type(kind.storage_type, leaves)
        return kind
    rebuilt = next((rebuilt for is_one, rebuilt in _NESTED if is_one(kind)), None)
    if rebuilt is not None:
        return rebuilt(kind, lambda field: field.with_type(_common_type(field.type, leaves)))
    leaf = next(leaves)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return type_for_spark(kind)
    if not pa.types.is_timestamp(kind):
        return kind
    if leaf.physical_type == "INT96":
        return pa.timestamp("us", "UTC")
    return pa.timestamp("us", kind.tz) if kind.unit == "ns" else kind


_Inside = Callable[[pa.Field], pa.Field]
_NESTED: tuple[
    tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, _Inside], pa.DataType]], ...
] = (
    (
        pa.types.is_map,
        lambda kind, inside: pa.map_(inside(kind.key_field), inside(kind.item_field)),
    ),
    (pa.types.is_list, lambda kind, inside: pa.list_(inside(kind.value_field))),
    (pa.types.is_large_list, lambda kind, inside: pa.large_list(inside(kind.value_field))),
    (
        pa.types.is_fixed_size_list,
        lambda kind, inside: pa.list_(inside(kind.value_field), kind.list_size),
    ),
    (pa.types.is_struct, lambda kind, inside: pa.struct([inside(field) for field in kind])),
)
"""What tells a nested type, and the same with other types inside."""


def in_common_types(batch: pa.RecordBatch, schema: pa.Schema, path: Location) -> pa.RecordBatch:
    """Rows of a file in the types of its common schema. Runs on an executor.

    Args:
        schema: Columns of these names, from :func:`common_schema`.
        path: Of the file, for the message.

    Raises:
        InputError: A timestamp is no whole number of microseconds.
    """
    columns = []
    for field, column in zip(schema, batch.columns, strict=True):
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowInvalid:
            raise _too_precise(field.name, path) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def check_timestamps(footer: pq.FileMetaData, path: Location) -> None:
    """Looks in a footer for timestamps that microseconds cannot hold.

    It has the first and the last one of each row group, which tell almost always.

    Raises:
        InputError: There are some.
    """
    for number in range(footer.num_columns):
        column = footer.schema.column(number)
        if column.physical_type != "INT64" or "timeUnit=nano" not in str(column.logical_type):
            continue
        groups = (footer.row_group(group).column(number) for group in range(footer.num_row_groups))
        for seen in (group.statistics for group in groups):
            if (
                seen is not None
                and seen.has_min_max
                and (seen.min_raw % 1000 or seen.max_raw % 1000)
            ):
                raise _too_precise(column.path, path)


def _too_precise(column: str, path: Location) -> InputError:
    return InputError(
        KEY,
        f"`{column}` of {path} counts nanoseconds, which Spark does not read",
        "round it to microseconds",
    )


def _kept(metadata: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Without what would be wrong of a table that has a column more."""
    return {
        key: value
        for key, value in metadata.items()
        if not key.startswith(_SPARK_COLUMNS) and (key != _PANDAS or _names_are_strings(value))
    }


def _names_are_strings(pandas: bytes) -> bool:
    """Whether pandas takes names of columns as they stand; numbers and tuples are parsed."""
    levels = json.loads(pandas).get("column_indexes", [])
    return len(levels) <= 1 and all(level["pandas_type"] == "unicode" for level in levels)


THREADS = 32
"""Files that are opened at a time."""

Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True)
class InputFile:
    """What the footer of an input says.

    Attributes:
        path: Of the file.
        rows: How many it has.
        size: Bytes of its columns as they are stored.
        types: Of its columns, by name.
    """

    path: Location
    rows: int
    size: int
    types: dict[str, pa.DataType]


PART_ID = b"sentence_pipelines.part"
"""Key of what the footer of a part calls it: copies have it too, and no other content has."""
LEFT_OUT = b"sentence_pipelines.left_out"
"""Key of the rows that a part has not, of those that it was made of."""


@dataclass(frozen=True)
class PartFooter:
    """What the footer of a part of a table says.

    Attributes:
        rows: How many it has.
        texts: Of those, rows with a text; 0 where that was not asked.
        left_out: Rows of the input that it was made without; see
            :mod:`pipelines.vectors.part_files`.
    """

    rows: int
    texts: int
    left_out: int

    def covers(self, rows: int) -> bool:
        """Whether it was made of so many rows."""
        return self.rows + self.left_out == rows


def in_threads(function: Callable[[Item], Value], items: Iterable[Item]) -> list[Value]:
    """Calls a function that waits for files on each item; results and errors in their order."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="footers") as pool:
        return list(pool.map(function, items))


def read_inputs(files: Iterable[Location]) -> list[InputFile]:
    """The footers of inputs.

    Raises:
        InputError: A file is no Parquet file, or holds timestamps that microseconds cannot.
    """
    return in_threads(read_input, files)


def read_input(file: Location) -> InputFile:
    """The footer of an input; see :func:`read_inputs`."""
    try:
        with pq.ParquetFile(arrow_source(file)) as opened:
            footer, schema = opened.metadata, opened.schema_arrow
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            KEY, f"{file} cannot be read ({reason})", "mend it, or name others"
        ) from None
    name = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if name is not None:
        raise InputError(KEY, f"{file} has two columns `{name}`", "rename one of them")
    check_timestamps(footer, file)
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    size = sum(
        group.column(place).total_compressed_size
        for group in groups
        for place in range(group.num_columns)
    )
    return InputFile(
        file, footer.num_rows, size, dict(zip(schema.names, schema.types, strict=True))
    )


def read_part_footer(file: Location, text_column: str | None = None) -> PartFooter:
    """The footer of a part.

    Args:
        file: The part.
        text_column: Whose nulls are counted, if any.

    Raises:
        pyarrow.ArrowInvalid: It has none.
    """
    footer = pq.read_metadata(arrow_source(file))
    left_out = int((footer.metadata or {}).get(LEFT_OUT, b"0"))
    if text_column is None:
        return PartFooter(footer.num_rows, 0, left_out)
    names = [footer.schema.column(number).path for number in range(footer.num_columns)]
    place = names.index(text_column)
    groups = (footer.row_group(number).column(place) for number in range(footer.num_row_groups))
    nulls = sum(int(group.statistics.null_count) for group in groups)
    return PartFooter(footer.num_rows, footer.num_rows - nulls, left_out)


NO_VALUE = "__HIVE_DEFAULT_PARTITION__"

_NAMED = re.compile(r"([^=]+)=(.*)")
_CONSTANT_TYPES = frozenset(
    ("string", "large_string", "binary", "bool", "float", "double", "date32[day]")
    + tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
    + ("timestamp[us]", "timestamp[ms]")
)

_INTEGER = re.compile(r"-?\d+")


@dataclass(frozen=True)
class Constant:
    """A column of one value.

    Attributes:
        name: Of the column.
        type: `int32`, `int64`, `date32` or `string`; of one without a value, any of Arrow's plain
            types.
        value: As text; None for null.
    """

    name: str
    type: str
    value: str | None

    def array(self, rows: int) -> pa.Array:
        """The column of so many rows."""
        value = pa.scalar(self.value, pa.string()).cast(pa.type_for_alias(self.type))
        return pa.repeat(value, rows)


Constants = tuple[Constant, ...]


def partition_columns(
    inputs: Sequence[str], stores: StorageSettings = DEFAULT_STORES, *, follow_links: bool = False
) -> dict[Location, Constants]:
    """The columns in the names of folders, for each Parquet file of the inputs.

    Folders count below the one that is named, or below the part of a glob that has no wildcard.
    A file that is in no such folder has nulls.

    Raises:
        InputError: An input is not there.
    """
    found: dict[Location, dict[str, str | None]] = {}
    for given in inputs:
        base = fixed_part(given, stores)
        for file in find_files([given], "parquet", KEY, stores, follow_links=follow_links):
            found.setdefault(file, _values(_way_down(file, base)[:-1]))
    names = dict.fromkeys(name for values in found.values() for name in values)
    types = {name: _type_of(values.get(name) for values in found.values()) for name in names}
    return {
        file: tuple(Constant(name, kind, values.get(name)) for name, kind in types.items())
        for file, values in found.items()
    }


def fixed_part(given: str, stores: StorageSettings = DEFAULT_STORES) -> Location:
    """The folder below which an input's files are, absolute; no link in it is followed."""
    path = place_of(given, stores, KEY)
    if path.exists():
        return path if path.is_dir() else path.parent
    if isinstance(path, RemotePath):
        return RemotePath(path.store, PurePosixPath(*_without_wildcard(path.key.parts)))
    return Path(*_without_wildcard(path.parts))


def _without_wildcard(parts: Sequence[str]) -> Iterable[str]:
    return takewhile(lambda part: not glob.has_magic(part), parts)


def _way_down(file: Location, folder: Location) -> tuple[str, ...]:
    """The parts of a file's path below a folder."""
    return file.parts[len(folder.parts) :]


def with_constants(batch: pa.RecordBatch, constants: Iterable[Constant]) -> pa.RecordBatch:
    """The rows with these columns behind the others.

    A column that is there already stays, but for one without a type, which gets this one.
    """
    columns, fields = [*batch.columns], [*batch.schema]
    for constant in constants:
        place = batch.schema.get_field_index(constant.name)
        if place >= 0 and not pa.types.is_null(fields[place].type):
            continue
        array = constant.array(batch.num_rows)
        field = pa.field(constant.name, array.type)
        if place >= 0:
            columns[place], fields[place] = array, field
        else:
            columns.append(array)
            fields.append(field)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, batch.schema.metadata))


def types_of_nulls(files: Iterable[InputFile], text: str) -> dict[Location, Constants]:
    """Types for columns that have none in a file, since they have no value there.

    Spark takes such a column for one of numbers, and would refuse to read it beside files in which
    it has values.

    Args:
        files: Of the input.
        text: Column of the texts, which are strings in any case.

    Returns:
        Constants without a value, of the type that another file has, by file; none where that type
        is one that cannot be a constant's.
    """
    known: dict[str, str] = {}
    for file in files:
        for name, kind in file.types.items():
            if str(kind) in _CONSTANT_TYPES:
                known.setdefault(name, str(kind))
    known.setdefault(text, "string")
    return {
        file.path: tuple(
            Constant(name, known[name], None)
            for name, kind in file.types.items()
            if pa.types.is_null(kind) and name in known
        )
        for file in files
    }


def constants_from(listed: Iterable[Mapping[str, str | None]]) -> Constants:
    """Constants as they stand in JSON."""
    return tuple(Constant(**one) for one in listed)  # type: ignore[arg-type]


def _values(folders: Sequence[str]) -> dict[str, str | None]:
    """Names and values, in which Spark writes special characters as URLs do."""
    named = (match for folder in folders if (match := _NAMED.fullmatch(folder)))
    values = {unquote(match[1]): unquote(match[2]) for match in named}
    return {name: None if value in ("", NO_VALUE) else value for name, value in values.items()}


def _type_of(values: Iterable[str | None]) -> str:
    """The type of a column, as Spark takes it to be; numbers that are not whole stay strings."""
    known = [value for value in values if value is not None]
    if known and all(_INTEGER.fullmatch(value) for value in known):
        widest = max(int(value) if int(value) >= 0 else -int(value) - 1 for value in known)
        if widest < 2**63:
            return "int32" if widest < 2**31 else "int64"
    return "date32" if known and all(_is_date(value) for value in known) else "string"


def _is_date(value: str) -> bool:
    try:
        return date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


BATCH_ROWS = TEXTS_AT_ONCE
LEAST_BYTES = 8 * 2**20
"""Of a part of a table that is shared among the slots of a cluster: thousands of rows, so that
texts of equal length meet, and a task is worth its start."""
PARTS_OF_SLOT = 4
"""Into which such a table is cut at least, so that slots end at about the same time."""
TASK_ROWS = 16384
"""Of a task that makes many small parts."""
ROWS_COPIED_FOR_ONE = 20
"""Rows whose vectors are copied in the time that embedding one takes."""


@dataclass(frozen=True)
class RowRange:
    """Consecutive rows of a file, of which a file of the output is made.

    Attributes:
        name: Of the file that is made of it, without its ending.
        path: The file.
        start: The first row, counted from the file's.
        stop: Behind the last one.
        constants: Columns that the file has in the names of its folders.
        reused: Rows whose vectors an earlier table has.
        copied_from: A file of an earlier table that is this part; None where there is none.
    """

    name: str
    path: Location
    start: int
    stop: int
    constants: Constants = ()
    reused: int = 0
    copied_from: Location | None = None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.stop - self.start

    @property
    def embedded(self) -> int:
        """Rows that are to be embedded."""
        return self.rows - self.reused


@dataclass(frozen=True)
class PartSize:
    """How much a part holds.

    Attributes:
        size: Bytes of its file, about.
        rows: At most; None for any number.
        vector_bytes: Of a row's vector, as it is stored.
    """

    size: int
    rows: int | None
    vector_bytes: int

    def rows_of(self, file: InputFile) -> int:
        """Rows of a part of a file."""
        a_row = file.size / max(file.rows, 1) + self.vector_bytes
        wanted = max(1, int(self.size / a_row))
        return wanted if self.rows is None else min(wanted, self.rows)

    def shared(self, files: Sequence[InputFile], slots: int) -> PartSize:
        """The size that gives all slots of a cluster some parts, where the files are few rows.

        Args:
            files: All that are to be embedded.
            slots: Tasks that run at once.
        """
        total = sum(file.size + file.rows * self.vector_bytes for file in files)
        size = max(LEAST_BYTES, total // (PARTS_OF_SLOT * max(slots, 1)))
        return replace(self, size=min(self.size, size))


def cut_file(file: InputFile, size: PartSize, name: str, constants: Constants) -> list[RowRange]:
    """All rows of a file in parts.

    Args:
        file: Its footer.
        size: Of a part.
        name: What the names of its parts begin with.
        constants: Columns in the names of its folders.
    """
    rows = size.rows_of(file)
    starts = range(0, file.rows, rows)
    return [
        RowRange(f"{name}-{place:05d}", file.path, start, min(start + rows, file.rows), constants)
        for place, start in enumerate(starts)
    ]


def tasks(parts: Sequence[RowRange], slots: int) -> list[list[RowRange]]:
    """Parts that stand together, small ones in one task; of about the work of the largest part.

    Args:
        parts: That are to be made.
        slots: Tasks that run at once; small parts are shared among them.
    """
    work = [_work(part) for part in parts]
    shared = sum(work) / (PARTS_OF_SLOT * max(slots, 1))
    most = max(*work, min(shared, TASK_ROWS)) if work else 0
    found: list[list[RowRange]] = []
    filled = 0.0
    for part, more in zip(parts, work, strict=True):
        if not found or filled + more > most:
            found.append([])
            filled = 0
        found[-1].append(part)
        filled += more
    return found


def _work(part: RowRange) -> float:
    """What a part takes, in rows that are embedded; one that is copied is hardly any."""
    return part.embedded + part.reused / ROWS_COPIED_FOR_ONE


def read_part(part: RowRange) -> Iterator[pa.RecordBatch]:
    """The rows of a part with all columns. Runs on an executor."""
    for batch in read_rows(part.path, part.start, part.stop):
        yield with_constants(batch, part.constants)


def _batches(
    file: pq.ParquetFile, path: Location, row_groups: list[int], columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """Read row groups; of damage pyarrow says what it is, and not where.

    Raises:
        OSError: Names the file.
    """
    names = None if columns is None else list(columns)
    try:
        yield from file.iter_batches(BATCH_ROWS, row_groups, names, use_threads=False)
    except (pa.ArrowInvalid, OSError) as error:
        # The system's own errors have a number.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise OSError(f"{path} is damaged ({str(error).splitlines()[0]})") from error


def read_rows(
    path: Location, start: int, stop: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """A range of a file's rows, in batches; row groups outside of it are not read.

    Types and metadata are those of :func:`~pipelines.vectors.parts.common_schema`.

    Args:
        path: A Parquet file.
        start: The first row.
        stop: Behind the last one.
        columns: None for all.
    """
    with open_parquet(path) as file:
        schema = common_schema(file)
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns], schema.metadata)
        wanted: list[int] = []
        first = begins = 0
        for number in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(number).num_rows
            if first < stop and first + rows > start:
                begins = first if not wanted else begins
                wanted.append(number)
            first += rows
        place = begins
        for batch in _batches(file, path, wanted, columns):
            low, high = max(start - place, 0), min(stop - place, batch.num_rows)
            place += batch.num_rows
            if low < high:
                rows_inside = batch.select(schema.names) if columns is not None else batch
                yield in_common_types(rows_inside.slice(low, high - low), schema, path)
            if place >= stop:
                return
