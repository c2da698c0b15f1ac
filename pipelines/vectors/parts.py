"""Parts: ranges of rows of Parquet files, the unit of embedding and of resuming.

All files of a table give their rows in common types, with the columns in the names of their
folders, as in `lang=en/part-0.parquet`.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from itertools import chain, pairwise
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.arrow_columns import type_for_spark
from pipelines.corpus.readers.inputs import COLUMNS, find_files, names_of, place_of
from pipelines.errors import InputError
from pipelines.files.locations import Location, arrow_source, fixed_folder, plain_suffix
from pipelines.models.inference.embedder import TEXTS_AT_ONCE
from pipelines.settings import StorageSettings
from pipelines.settings.spark import DEFAULT_STORES

KEY = "embedding.inputs"

THREADS = 32
"""Files opened at a time."""
BATCH_ROWS = TEXTS_AT_ONCE
LEAST_BYTES = 8 * 2**20
"""Least size of a part of a small table shared among slots: thousands of rows, so texts of equal
length meet and a task is worth its start."""
PARTS_OF_SLOT = 4
"""Least number of parts for each slot in such a table, so slots end at about the same time."""
TASK_ROWS = 16384
"""Rows of a task for many small parts."""
ROWS_COPIED_FOR_ONE = 20
"""Rows with copied vectors in the time of embedding one."""

PART_ID = b"sentence_pipelines.part"
"""Footer key of a part's identity. Copies share it; no other content has it."""
LEFT_OUT = b"sentence_pipelines.left_out"
"""Footer key of the number of input rows left out of a part."""

Item = TypeVar("Item")
Value = TypeVar("Value")


def in_threads(function: Callable[[Item], Value], items: Iterable[Item]) -> list[Value]:
    """Call an I/O-bound function on each item; results and errors keep their order."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="footers") as pool:
        return list(pool.map(function, items))


# Spark takes the columns of a file from this metadata, whatever the file has. Its other keys, about
# the calendar of dates, stay.
_SPARK_COLUMNS = b"org.apache.spark.sql.parquet.row."
_PANDAS = b"pandas"


def open_parquet(path: Location) -> pq.ParquetFile:
    """Open a Parquet file and verify page checksums, if it has any; tables of vectors do.

    Timestamps of 96 bits are read in us, since they reach further than 64 bits of ns.
    """
    return pq.ParquetFile(
        arrow_source(path), coerce_int96_timestamp_unit="us", page_checksum_verification=True
    )


def common_schema(file: pq.ParquetFile) -> pa.Schema:
    """Return the columns with their types after :func:`in_common_types`.

    Timestamps of 96 bits, as Spark writes them, become moments (`timestamp[us, UTC]`), as Spark
    reads them. Spark cannot read ns, so they become us. Older readers do not know views of strings
    and bytes, so these become strings and bytes.
    """
    leaves = (file.schema.column(number) for number in range(len(file.schema)))
    fields = [field.with_type(_common_type(field.type, leaves)) for field in file.schema_arrow]
    return pa.schema(fields, _kept(file.schema_arrow.metadata or {}))


def _common_type(kind: pa.DataType, leaves: Iterator[pq.ColumnSchema]) -> pa.DataType:
    """Return the common type, recursively; consumes one file column for each leaf of the type."""
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
"""For each nested type: how to recognise it, and how to rebuild it with other types inside."""


def in_common_types(batch: pa.RecordBatch, schema: pa.Schema, path: Location) -> pa.RecordBatch:
    """Convert rows of a file to the types of its :func:`common_schema`. Runs on an executor.

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


def _check_timestamps(footer: pq.FileMetaData, path: Location) -> None:
    """Refuse timestamps finer than microseconds, as far as a footer's bounds show."""
    for number in range(footer.num_columns):
        column = footer.schema.column(number)
        if column.physical_type != "INT64" or "timeUnit=nano" not in str(column.logical_type):
            continue
        for group in range(footer.num_row_groups):
            seen = footer.row_group(group).column(number).statistics
            # Writers may leave bounds out; `in_common_types` checks the values themselves.
            if seen is None or not seen.has_min_max:
                continue
            if seen.min_raw % 1000 or seen.max_raw % 1000:
                raise _too_precise(column.path, path)


def _too_precise(column: str, path: Location) -> InputError:
    return InputError(
        KEY,
        f"`{column}` of {path} counts nanoseconds, which Spark does not read",
        "Round it to microseconds",
    )


def _kept(metadata: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Drop metadata that would be wrong after adding a column."""
    return {
        key: value
        for key, value in metadata.items()
        if not key.startswith(_SPARK_COLUMNS) and (key != _PANDAS or _names_are_strings(value))
    }


def _names_are_strings(pandas: bytes) -> bool:
    """Return whether pandas takes column names as they stand; it parses numbers and tuples."""
    levels = json.loads(pandas).get("column_indexes", [])
    return len(levels) <= 1 and all(level["pandas_type"] == "unicode" for level in levels)


@dataclass(frozen=True)
class InputFile:
    """The footer of an input; ``size`` is in bytes of its columns as stored."""

    path: Location
    rows: int
    size: int
    types: dict[str, pa.DataType]


@dataclass(frozen=True)
class PartFooter:
    """The footer of a part; ``texts`` is 0 if not counted, ``left_out`` counts deleted rows."""

    rows: int
    texts: int
    left_out: int

    def covers(self, rows: int) -> bool:
        """Return whether the part was made of this many rows."""
        return self.rows + self.left_out == rows


def read_inputs(files: Iterable[Location]) -> list[InputFile]:
    """Read the footers of inputs.

    Raises:
        InputError: A file is not Parquet, or holds timestamps finer than microseconds.
    """
    return in_threads(_read_input, files)


def _remedy_of(file: Location) -> str:
    """Return what to do about a file that is not Parquet: its ending may name another format."""
    suffix, known = plain_suffix(file), names_of(COLUMNS).items()
    formats = (name for name, files in known if suffix in files.suffixes and name != "parquet")
    found = next(formats, None)
    return f"Set embedding.format to {found}" if found else "Repair it, or name others"


def _read_input(file: Location) -> InputFile:
    try:
        with pq.ParquetFile(arrow_source(file)) as opened:
            footer, schema = opened.metadata, opened.schema_arrow
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(KEY, f"{file} cannot be read ({reason})", _remedy_of(file)) from None
    name = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if name is not None:
        raise InputError(KEY, f"{file} has two columns `{name}`", "Rename one of them")
    _check_timestamps(footer, file)
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    size = sum(
        group.column(place).total_compressed_size
        for group in groups
        for place in range(group.num_columns)
    )
    types = dict(zip(schema.names, schema.types, strict=True))
    return InputFile(file, footer.num_rows, size, types)


def read_part_footer(file: Location, text_column: str | None = None) -> PartFooter:
    """Read the footer of a part; count its rows with a text if a column is named.

    Raises:
        pyarrow.ArrowInvalid: The file has no footer.
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

    ``type`` is `int32`, `int64`, `date32` or `string`; for a null, any of Arrow's plain types.
    ``value`` is text, or None for null.
    """

    name: str
    type: str
    value: str | None

    def array(self, rows: int) -> pa.Array:
        """Return the column with this many rows."""
        value = pa.scalar(self.value, pa.string()).cast(pa.type_for_alias(self.type))
        return pa.repeat(value, rows)


Constants = tuple[Constant, ...]


def partition_columns(
    inputs: Sequence[str], stores: StorageSettings = DEFAULT_STORES, *, follow_links: bool = False
) -> dict[Location, Constants]:
    """Return the columns in the names of folders, for each Parquet file of the inputs.

    Folders count below the named one, or below the part of a glob before its wildcards. Files
    outside such folders get nulls.

    Raises:
        InputError: An input does not exist.
    """
    found: dict[Location, dict[str, str | None]] = {}
    for given in inputs:
        below = len(fixed_part(given, stores).parts)
        for file in find_files([given], "parquet", KEY, stores, follow_links=follow_links):
            found.setdefault(file, _values(file.parts[below:-1]))
    names = dict.fromkeys(name for values in found.values() for name in values)
    types = {name: _type_of(values.get(name) for values in found.values()) for name in names}
    return {
        file: tuple(Constant(name, kind, values.get(name)) for name, kind in types.items())
        for file, values in found.items()
    }


def fixed_part(given: str, stores: StorageSettings = DEFAULT_STORES) -> Location:
    """Return the absolute folder of an input's files, without following links."""
    path = place_of(given, stores, KEY)
    if path.exists():
        return path if path.is_dir() else path.parent
    return fixed_folder(path)


def with_constants(batch: pa.RecordBatch, constants: Iterable[Constant]) -> pa.RecordBatch:
    """Return the rows with these columns behind the others.

    An existing column stays, unless it has no type: then it is replaced.
    """
    columns, fields = [*batch.columns], [*batch.schema]
    for constant in constants:
        place = batch.schema.get_field_index(constant.name)
        if place >= 0 and not pa.types.is_null(fields[place].type):
            continue
        array = constant.array(batch.num_rows)
        place = place if place >= 0 else len(fields)
        columns[place : place + 1] = [array]
        fields[place : place + 1] = [pa.field(constant.name, array.type)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, batch.schema.metadata))


def types_of_nulls(files: Iterable[InputFile], text: str) -> dict[Location, Constants]:
    """Return types for columns without any value in a file, as null constants by file.

    Spark reads such a column as numbers, and would refuse it beside files with values in it. The
    type is that of another file, if a constant can have it. The column ``text`` is always of
    strings.
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


def _values(folders: Sequence[str]) -> dict[str, str | None]:
    """Return names and values; Spark escapes their special characters as in URLs."""
    named = (match for folder in folders if (match := _NAMED.fullmatch(folder)))
    values = {unquote(match[1]): unquote(match[2]) for match in named}
    return {name: None if value in ("", NO_VALUE) else value for name, value in values.items()}


def _type_of(values: Iterable[str | None]) -> str:
    """Return Spark's type for a column; fractional numbers stay strings."""
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


@dataclass(frozen=True)
class RowRange:
    """Consecutive rows of a file, from ``start`` to before ``stop``: the input of one output file.

    ``name`` is that of the output file, without its ending. ``constants`` are columns in the names
    of the file's folders. ``reused`` rows have vectors in an earlier table; ``copied_from`` is the
    equal file of an earlier table, if any.
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
        """Rows to be embedded."""
        return self.rows - self.reused


@dataclass(frozen=True)
class PartSize:
    """The size of a part.

    ``size`` is in approximate bytes of its file, ``rows`` the maximum (None for any number),
    ``vector_bytes`` those of a row's vector, as stored.
    """

    size: int
    rows: int | None
    vector_bytes: int

    def rows_of(self, file: InputFile) -> int:
        """Return the rows of a part of a file."""
        a_row = file.size / max(file.rows, 1) + self.vector_bytes
        wanted = max(1, int(self.size / a_row))
        return wanted if self.rows is None else min(wanted, self.rows)

    def shared(self, files: Sequence[InputFile], slots: int) -> PartSize:
        """Return the size with several parts for every slot, even with few rows.

        ``files`` are all files to embed, ``slots`` the number of concurrent tasks.
        """
        total = sum(file.size + file.rows * self.vector_bytes for file in files)
        size = max(LEAST_BYTES, total // (PARTS_OF_SLOT * max(slots, 1)))
        return replace(self, size=min(self.size, size))


def cut_file(file: InputFile, size: PartSize, name: str, constants: Constants) -> list[RowRange]:
    """Cut all rows of a file into parts; their names begin with ``name``."""
    rows = size.rows_of(file)
    starts = range(0, file.rows, rows)
    return [
        RowRange(f"{name}-{place:05d}", file.path, start, min(start + rows, file.rows), constants)
        for place, start in enumerate(starts)
    ]


def tasks(parts: Sequence[RowRange], slots: int) -> list[list[RowRange]]:
    """Group small adjacent parts into tasks of about the largest part's work.

    Small parts are shared among ``slots``, the number of concurrent tasks.
    """
    # A copied part is hardly any work.
    work = [part.embedded + part.reused / ROWS_COPIED_FOR_ONE for part in parts]
    shared = sum(work) / (PARTS_OF_SLOT * max(slots, 1))
    most = max(*work, min(shared, TASK_ROWS)) if work else 0
    found: list[list[RowRange]] = []
    filled = 0.0
    for part, part_work in zip(parts, work, strict=True):
        if not found or filled + part_work > most:
            found.append([])
            filled = 0
        found[-1].append(part)
        filled += part_work
    return found


def read_part(part: RowRange) -> Iterator[pa.RecordBatch]:
    """Read the rows of a part with all columns. Runs on an executor."""
    for batch in read_rows(part.path, part.start, part.stop):
        yield with_constants(batch, part.constants)


def read_rows(
    path: Location, start: int, stop: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read a range of a file's rows, in batches; row groups outside the range are skipped.

    Types and metadata are those of :func:`common_schema`. ``stop`` is behind the last row;
    ``columns`` of None means all.
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


def _batches(
    file: pq.ParquetFile, path: Location, row_groups: list[int], columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """Read row groups; name the file in errors, since pyarrow names only the damage."""
    names = None if columns is None else list(columns)
    try:
        yield from file.iter_batches(BATCH_ROWS, row_groups, names, use_threads=False)
    except (pa.ArrowInvalid, OSError) as error:
        # Errors of the system have a number; only those of pyarrow lack the file's name.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise OSError(f"{path} is damaged ({str(error).splitlines()[0]})") from error


def runs_of(batches: Iterable[pa.RecordBatch], column: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield each value of a column with its rows, batch by batch.

    Batches are sorted by the column; it holds non-negative whole numbers.
    """
    for batch in batches:
        numbers = batch.column(column).to_numpy()
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        for start, stop in pairwise([*starts.tolist(), batch.num_rows]):
            yield int(numbers[start]), batch.slice(start, stop - start)


def write_part(
    path: Path, batches: Iterator[pa.RecordBatch], vectors: Collection[str], left_out: int = 0
) -> int:
    """Write rows with vectors as the file of a part; return their number. Runs on an executor.

    There is at least one batch, perhaps empty. ``vectors``, columns of vectors and scales, get no
    dictionary: their values hardly repeat. The footer notes the deleted rows, ``left_out``.
    """
    first = next(batches)
    input_columns = [name for name in first.schema.names if name not in vectors]
    identity = {PART_ID: uuid.uuid4().hex, LEFT_OUT: str(left_out)}
    schema = first.schema.with_metadata({**(first.schema.metadata or {}), **identity})
    rows = 0
    with pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        use_dictionary=input_columns,
        write_statistics=input_columns,
        write_page_checksum=True,
    ) as writer:
        for batch in chain([first], batches):
            if batch.num_rows:
                writer.write_batch(batch)
                rows += int(batch.num_rows)
    return rows
