"""Rows of a table of vectors in the form that stores take.

A store has one type for each column, and few types. The files of a table may differ in both: one
has whole numbers of 32 bits where another has 64, or lacks a column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.arrow_columns import as_text, is_key, is_list, is_text, plain_column, plain_type
from pipelines.errors import InputError
from pipelines.files.locations import Location, arrow_source
from pipelines.publishing.store import COLUMNS, Layout, Metric
from pipelines.settings import PublishSettings
from pipelines.vectors.embedding import vectors_of
from pipelines.vectors.parts import in_threads, read_rows
from pipelines.vectors.store import VectorTable

Among = Callable[[pa.Array], pa.BooleanArray]

KEY_COLUMN = "embedding.key_column"
INT8 = "publish.int8"

_BY_KIND = (
    (is_text, pa.string()),
    (pa.types.is_boolean, pa.bool_()),
    (pa.types.is_integer, pa.int64()),
    (pa.types.is_floating, pa.float64()),
    (pa.types.is_date, pa.date32()),
)


@dataclass(frozen=True)
class Source:
    """The columns of a table for a store; sent to executors.

    ``scale`` is the column of scales to multiply int8 vectors by, if any.
    """

    layout: Layout
    scale: str | None

    @property
    def columns(self) -> list[str]:
        """The columns to read."""
        return [*self.layout.schema.names, *([self.scale] if self.scale else [])]


@dataclass(frozen=True)
class Rows:
    """Rows of a table: those with a vector in the store's columns, and the keys of the others."""

    rows: pa.RecordBatch
    without_vector: pa.Array


def source_of(table: VectorTable, settings: PublishSettings) -> Source:
    """Return the columns of a table for a store; reads the footers of its files.

    Raises:
        InputError: There is no such column, or no store has its type.
    """
    fields = _fields(table)
    key, vector = _key_of(table, fields), table.vector
    keeps = settings.int8 == "keep"
    if keeps:
        _check_kept(table, settings)
    others = [name for name in fields if name not in (key.name, *table.vector_columns)]
    chosen = others if settings.columns is None else settings.columns
    unknown = next((name for name in chosen if name not in (*others, key.name)), None)
    if unknown is not None:
        problem = f"{table.folder} has no column `{unknown}` beside its vectors"
        raise InputError(COLUMNS, problem, f"Choose among {', '.join(others) or 'none'}")
    payload = [_payload_field(name, fields[name], others) for name in others if name in chosen]
    missing = {*settings.filters} - {field.name for field in payload}
    if missing:
        problem = f"{table.folder} has no column `{min(missing)}` to store"
        raise InputError("publish.filters", problem, "Name columns of the table but its key")
    numbers = pa.int8() if keeps else pa.float32()
    vectors = pa.field(vector, pa.list_(numbers, table.dimensions), nullable=False)
    metric: Metric = "cosine" if settings.metric == "auto" else settings.metric
    layout = Layout(pa.schema([key, vectors, *payload]), metric, settings.filters)
    return Source(layout, None if keeps else table.scale)


def _check_kept(table: VectorTable, settings: PublishSettings) -> None:
    if table.scale is None:
        raise InputError(INT8, f"{table.folder} has no int8 vectors", "Set it to restore")
    if settings.metric not in ("auto", "cosine"):
        raise InputError(
            "publish.metric",
            f"int8 vectors without their scales have no {settings.metric} similarity",
            "Set it to cosine, or set publish.int8 to restore",
        )


def _key_of(table: VectorTable, fields: dict[str, list[pa.DataType]]) -> pa.Field:
    if table.key is None:
        raise InputError(
            KEY_COLUMN,
            f"{table.folder} has no keys, by which a store replaces and deletes rows",
            "Set it to a column of unique values, and run `sentence-pipelines embed` again",
        )
    kinds = fields[table.key]
    if not all(map(is_key, kinds)):
        problem = f"`{table.key}` of {table.folder} holds {kinds[0]}"
        raise InputError(KEY_COLUMN, problem, "Name a column of whole numbers or strings")
    return pa.field(table.key, _key_type(kinds), nullable=False)


def _key_type(kinds: Sequence[pa.DataType]) -> pa.DataType:
    """Return the type of keys in the logs of changes, which is also that of the store."""
    plain = [plain_type(kind) for kind in kinds if not pa.types.is_null(kind)]
    fit = all(pa.types.is_integer(kind) and kind != pa.uint64() for kind in plain)
    return pa.int64() if plain and fit else pa.string()


def _fields(table: VectorTable) -> dict[str, list[pa.DataType]]:
    """Return the types of each column in any file, in the order of the files."""
    schemas = in_threads(lambda file: pq.read_schema(arrow_source(file.path)), table.files)
    found: dict[str, list[pa.DataType]] = {}
    for schema in schemas:
        for field in schema:
            kinds = found.setdefault(field.name, [])
            if field.type not in kinds:
                kinds.append(field.type)
    return found


def _payload_field(name: str, kinds: Sequence[pa.DataType], others: Sequence[str]) -> pa.Field:
    stored = {_stored_type(kind) for kind in kinds if not pa.types.is_null(kind)} or {pa.string()}
    if stored == {pa.int64(), pa.float64()}:
        stored = {pa.float64()}
    found = next(iter(stored))
    if found is None or len(stored) > 1:
        told = " and ".join(sorted(map(str, kinds)))
        without = ", ".join(other for other in others if other != name)
        raise InputError(
            COLUMNS,
            f"stores have no column for `{name}`, which holds {told}",
            f"Leave it out, as in publish.columns=[{without}], or give it a plain type",
        )
    return pa.field(name, found)


def _stored_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of a column in a store; None if no store has it."""
    kind = plain_type(kind)
    if is_list(kind):
        items = _stored_type(kind.value_type)
        return None if items is None or is_list(items) else pa.list_(items)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    return next((stored for is_such, stored in _BY_KIND if is_such(kind)), None)


def read_source(
    source: Source, path: Location, start: int, stop: int, is_wanted: Among | None = None
) -> Iterator[Rows]:
    """Read rows of a file for a store, from ``start`` to before ``stop``. Runs on an executor.

    ``is_wanted`` chooses rows by key; None means all.

    Raises:
        InputError: A number does not fit into 64 bits.
    """
    names = set(pq.read_schema(arrow_source(path)).names)
    present = [name for name in source.columns if name in names]
    if is_wanted is not None and not _has_any(source, path, start, stop, is_wanted):
        return
    for batch in read_rows(path, start, stop, present):
        key = _stored_column(batch.column(source.layout.key.name), source.layout.key)
        chosen = batch if is_wanted is None else batch.filter(is_wanted(key))
        if chosen.num_rows:
            yield _rows_of(source, chosen)


def among(keys: pa.Array) -> Among:
    """Return a function that tells which values of a column are among some different keys.

    It hashes the keys once, which `is_in` of pyarrow does at each call.
    """
    import pandas as pd

    index = pd.Index(keys.to_pandas())
    return lambda column: pa.array(index.get_indexer(pd.Index(column.to_pandas())) >= 0)


def _has_any(source: Source, path: Location, start: int, stop: int, is_wanted: Among) -> bool:
    """Return whether a range has a row of wanted keys; reads their column only."""
    field = source.layout.key
    batches = read_rows(path, start, stop, [field.name])
    columns = (_stored_column(batch.column(field.name), field) for batch in batches)
    return any(pc.any(is_wanted(column)).as_py() for column in columns)


def _rows_of(source: Source, batch: pa.RecordBatch) -> Rows:
    layout = source.layout
    has_vector = batch.column(layout.vector.name).is_valid()
    keys = _stored_column(batch.column(layout.key.name), layout.key)
    kept = batch.filter(has_vector)
    columns = [keys.filter(has_vector), _vectors_of(source, kept)]
    for field in layout.payload:
        is_there = field.name in batch.schema.names
        found = kept.column(field.name) if is_there else pa.nulls(kept.num_rows)
        columns.append(_stored_column(found, field))
    rows = pa.RecordBatch.from_arrays(columns, schema=layout.schema)
    return Rows(rows, keys.filter(pc.invert(has_vector)))


def _vectors_of(source: Source, rows: pa.RecordBatch) -> pa.Array:
    kind = source.layout.vector.type
    if not rows.num_rows:
        return pa.array([], kind)
    column = rows.column(source.layout.vector.name)
    if source.layout.is_int8:
        return column.cast(kind)
    scales = rows.column(source.scale) if source.scale else None
    values = vectors_of(column, scales)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), type=kind)


def _stored_column(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return a column in the type of the store."""
    if pa.types.is_string(field.type):
        return as_text(column)
    try:
        return plain_column(column).cast(field.type)
    except pa.ArrowInvalid as error:
        problem = f"a value of `{field.name}` does not fit into {field.type} ({error})"
        raise InputError(COLUMNS, problem, "Leave the column out, or change its type") from None


def in_batches(parts: Iterable[Rows], rows: int) -> Iterator[Rows]:
    """Join and cut rows into batches of at most ``rows``, most of them full."""
    held: list[Rows] = []
    count = 0
    for part in parts:
        held.append(part)
        count += part.rows.num_rows + len(part.without_vector)
        if count >= rows:
            yield from _cut(held, rows)
            held, count = [], 0
    if held:
        yield from _cut(held, rows)


def _cut(held: Iterable[Rows], rows: int) -> Iterator[Rows]:
    parts = list(held)
    joined = pa.Table.from_batches([part.rows for part in parts]).combine_chunks()
    without = pa.concat_arrays([part.without_vector for part in parts])
    batches = joined.to_batches(max_chunksize=rows) or [parts[0].rows]
    for number, batch in enumerate(batches):
        yield Rows(batch, without if number == 0 else without.slice(0, 0))
