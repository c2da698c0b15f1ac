"""Merge the rows of a table of vectors into a Delta or Iceberg table by a library of its format.

This is for clusters without Spark's connector. The driver reads the rows and commits once, so a
killed job leaves the target as it was. After the first merge, only the rows in the log of changes
travel: the commit names the version of the table that it has merged.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.arrow_columns import column_for_spark, is_list, schema_for_spark
from pipelines.corpus.readers import delta, iceberg
from pipelines.corpus.readers.table_files import is_as_stored
from pipelines.errors import InputError
from pipelines.files.locations import Location, is_within, location
from pipelines.libraries import DRIVER, check_installed
from pipelines.settings import StorageSettings
from pipelines.spark.parquet_parts import (
    Part,
    data_files,
    parts_of_files,
    read_footers,
    read_part,
)
from pipelines.vectors.changes import DELETE, Lineage, logs_after, read_changes, read_lineage

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table, Transaction

logger = logging.getLogger(__name__)

KEY = "embedding.merge_into"
OF_TABLE, OF_VERSION = "sentence_pipelines.table", "sentence_pipelines.version"
OF_MADE = "sentence_pipelines.made"
"""Names in a commit, of the table of vectors, the number of its version and the id of that."""
_CHANGE = "sentence_pipelines_change"
_CHUNK_BYTES = 128 * 2**20
"""Unpacked bytes of one append to a partitioned Iceberg table."""
_MOST_HELD = 100_000
"""Changed rows in memory."""
_COMMITS = 100
"""Commits in which the last merge is looked for."""
_QUIET = ("OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "ADD CONSTRAINT")
"""Operations on a Delta table that change no row."""


@dataclass(frozen=True)
class Rows:
    """The rows of a table of vectors.

    Attributes:
        schema: In Spark's types; parts may lack columns.
        lineage: None for a table of an earlier release.
    """

    folder: Location
    key: str
    schema: pa.Schema
    parts: Sequence[Part]
    lineage: Lineage | None

    @classmethod
    def of(cls, folder: Location, key: str) -> Rows:
        """Read the footers of a whole table."""
        files = data_files(folder)
        footers = (footer.schema.to_arrow_schema() for footer in read_footers(files))
        schema = pa.unify_schemas([schema_for_spark(footer) for footer in footers])
        return cls(folder, key, schema, parts_of_files(files), read_lineage(folder))

    def changes_after(self, merged: Mapping[str, Any], kind: pa.DataType) -> dict[Any, str] | None:
        """Return the changes by key since a merged version; None if they are unknown.

        ``merged`` are the names of a commit with their values, ``kind`` is the type of keys in the
        target.
        """
        table, version = merged.get(OF_TABLE), merged.get(OF_VERSION)
        if self.lineage is None or table != self.lineage.table or version is None:
            return None
        logs = logs_after(self.folder, int(version), merged.get(OF_MADE))
        if logs is None:
            return None
        changes: dict[Any, str] = {}
        for log in logs:
            for batch in read_changes(log):
                keys, kinds = batch["key"].to_pylist(), batch["change"].to_pylist()
                changes |= zip(keys, kinds, strict=True)
        try:
            known = pa.array([*changes]).cast(kind).to_pylist()
        except pa.ArrowException:
            # A log has keys of a mixed or rare type as texts.
            return None
        return dict(zip(known, changes.values(), strict=True))

    def batches(self, schema: pa.Schema, keys: pa.Array | None = None) -> Iterator[pa.RecordBatch]:
        """Yield all rows, or those of keys, with the columns and types of a schema."""
        for part in self.parts:
            if keys is not None and not any(
                pc.any(_among(batch[self.key], keys)).as_py()
                for batch in read_part(part, [self.key])
            ):
                continue
            for batch in read_part(part, self.schema.names):
                rows = in_schema(batch, schema)
                yield rows if keys is None else rows.filter(_among(batch[self.key], keys))

    def marks(self) -> dict[str, str]:
        """Return the names of a commit with their values."""
        if self.lineage is None:
            return {}
        marks = {OF_TABLE: self.lineage.table, OF_VERSION: str(self.lineage.version)}
        return marks | ({OF_MADE: self.lineage.made} if self.lineage.made else {})


def _among(column: pa.Array, keys: pa.Array) -> pa.BooleanArray:
    return pc.is_in(column_for_spark(column).cast(keys.type), value_set=keys)


def in_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a schema, in its types; missing ones are null."""
    columns = [
        column_for_spark(batch[field.name]).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def type_in_lake(kind: pa.DataType, *, has_small_integers: bool) -> pa.DataType:
    """Return the type of a column's values in a new table of the format."""
    if is_list(kind):
        return pa.list_(type_in_lake(kind.value_type, has_small_integers=has_small_integers))
    if pa.types.is_struct(kind):
        inside = partial(type_in_lake, has_small_integers=has_small_integers)
        return pa.struct([(field.name, inside(field.type)) for field in kind])
    if pa.types.is_map(kind):
        inside = partial(type_in_lake, has_small_integers=has_small_integers)
        return pa.map_(inside(kind.key_type), inside(kind.item_type))
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if not has_small_integers and kind in (pa.int8(), pa.int16()):
        return pa.int32()
    (known_kind,) = schema_for_spark([pa.field("", kind)]).types
    return known_kind


def schema_in_lake(
    given: str, key: str, rows: pa.Schema, target: pa.Schema | None, *, has_small_integers: bool
) -> pa.Schema:
    """Return the columns and types to write: those of the target, then the ones that it lacks.

    Raises:
        InputError: The target has columns that the rows lack, or other types.
    """
    wanted = {
        field.name: type_in_lake(field.type, has_small_integers=has_small_integers)
        for field in rows
    }
    known = {} if target is None else {field.name: field.type for field in target}
    missing = [name for name in known if name not in wanted]
    if missing:
        raise InputError(
            KEY,
            f"{given} has a column `{missing[0]}`, which the rows lack",
            "Name another table, or drop the column",
        )
    if known and key not in known:
        raise InputError(KEY, f"{given} has no column `{key}`", "Name a table with these keys")
    for name, kind in known.items():
        found = type_in_lake(kind, has_small_integers=has_small_integers)
        if wanted[name] != found and not is_as_stored(wanted[name], found):
            problem = f"`{name}` of {given} holds {kind}, and the rows have {wanted[name]}"
            raise InputError(KEY, problem, "Name another table")
        wanted[name] = found
    return pa.schema([(name, wanted[name]) for name in dict.fromkeys((*known, *wanted))])


@dataclass(frozen=True)
class Writer:
    """Merges rows into a table of a format by a library.

    ``check`` refuses a target out of reach before anything is embedded; ``merge`` returns the
    number of changed keys, None if all rows were merged.
    """

    library: str
    extra: str
    check: Callable[[str, StorageSettings], None]
    merge: Callable[[Rows, str, StorageSettings], int | None]

    def check_target(self, target: str, output: Location, stores: StorageSettings) -> None:
        """Refuse a target that cannot be written, or lies in the folder of the output.

        Raises:
            InputError: The library is missing, or see above.
        """
        check_installed(KEY, self.library, self.extra, DRIVER)
        self.check(target, stores)
        if not is_address(target):
            return
        # By their real paths: a link leads into the folder as well.
        place, own = (path.resolve() for path in (location(_delta_address(target), stores), output))
        if is_within(place, own) or is_within(own, place):
            raise InputError(KEY, f"{target} overlaps with {output}", "Name a folder beside it")


def is_address(target: str) -> bool:
    """Return whether a target is a folder or an address, and no name for Spark."""
    return "/" in target and "`" not in target


def _delta_address(target: str) -> str:
    local = target.removeprefix("file://")
    return target if "://" in local else str(Path(local).expanduser().absolute())


def _open_delta(target: str, stores: StorageSettings) -> DeltaTable | None:
    """Open a target; None if it does not exist."""
    from deltalake.exceptions import TableNotFoundError

    try:
        return delta.open_delta(_delta_address(target), stores)
    except TableNotFoundError:
        return None
    except delta.failures() as error:
        raise _refusal(target, error, "Name the folder or address of a Delta table") from None


def _refusal(target: str, error: Exception, remedy: str) -> InputError:
    cause = (" ".join(str(error).split()) or type(error).__name__)[:200]
    return InputError(KEY, f"{target} cannot be written ({cause})", remedy)


def _check_delta(target: str, stores: StorageSettings) -> None:
    if not is_address(target):
        problem = f"deltalake knows no catalog for `{target}`"
        raise InputError(KEY, problem, "Name the folder or address of the table")
    _open_delta(target, stores)


def _merge_delta(rows: Rows, target: str, stores: StorageSettings) -> int | None:
    from deltalake import CommitProperties, write_deltalake

    table = _open_delta(target, stores)
    known = None if table is None else pa.schema(table.schema())
    schema = schema_in_lake(target, rows.key, rows.schema, known, has_small_integers=True)
    commit = CommitProperties(custom_metadata=rows.marks())
    changes = None
    try:
        if table is not None:
            changes = rows.changes_after(_last_delta_merge(table), schema.field(rows.key).type)
        if changes is None:
            # A merge of all rows holds both tables in memory.
            write_deltalake(
                _delta_address(target) if table is None else table,
                pa.RecordBatchReader.from_batches(schema, rows.batches(schema)),
                mode="overwrite",
                schema_mode="merge",
                storage_options=delta.storage_options(stores),
                commit_properties=commit,
            )
        elif changes and table is not None:
            _merge_changes(table, rows, schema, changes, commit)
    except delta.failures() as error:
        raise _refusal(target, error, "Repair the table, or name another one") from None
    return None if changes is None else len(changes)


def _last_delta_merge(table: DeltaTable) -> Mapping[str, Any]:
    """Return the last commit with an effect on rows; empty if it is not known."""
    for commit in table.history(_COMMITS):
        if commit.get("operation") not in _QUIET:
            return commit
    return {}


def _merge_changes(
    table: DeltaTable, rows: Rows, schema: pa.Schema, changes: Mapping[Any, str], commit: Any
) -> None:
    """Write the rows of changed keys, and delete those of removed ones."""
    marked = schema.append(pa.field(_CHANGE, pa.string()))
    keys, gone = _keys(changes, schema.field(rows.key).type)
    merger = table.merge(
        pa.RecordBatchReader.from_batches(marked, _marked(rows, schema, marked, keys, gone)),
        _same_key(rows.key),
        source_alias="source",
        target_alias="target",
        merge_schema=True,
        # Rows in memory have bounds of their keys, by which the library skips files.
        streamed_exec=len(changes) > _MOST_HELD,
        commit_properties=commit,
    )
    is_gone = f"source.{_quoted(_CHANGE)} = '{DELETE}'"
    values = [name for name in schema.names if name != rows.key]
    merger.when_matched_delete(is_gone)
    merger.when_matched_update(_from_source(values))
    merger.when_not_matched_insert(_from_source(schema.names), f"NOT ({is_gone})")
    merger.execute()


def _marked(
    rows: Rows, schema: pa.Schema, marked: pa.Schema, keys: pa.Array, gone: pa.Array
) -> Iterator[pa.RecordBatch]:
    for batch in rows.batches(schema, keys):
        change = pa.nulls(batch.num_rows, pa.string())
        yield pa.RecordBatch.from_arrays([*batch.columns, change.fill_null("")], schema=marked)
    columns = [
        gone if field.name == rows.key else pa.nulls(len(gone), field.type) for field in schema
    ]
    change = pa.repeat(DELETE, len(gone))
    yield pa.RecordBatch.from_arrays([*columns, change], schema=marked)


def _keys(changes: Mapping[Any, str], kind: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """Return the keys to write, and those to delete."""
    written = [key for key, change in changes.items() if change != DELETE]
    gone = [key for key, change in changes.items() if change == DELETE]
    return pa.array(written, kind), pa.array(gone, kind)


def _same_key(key: str) -> str:
    return f"target.{_quoted(key)} = source.{_quoted(key)}"


def _from_source(names: Iterable[str]) -> dict[str, str]:
    return {_quoted(name): f"source.{_quoted(name)}" for name in names}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _check_iceberg(target: str, stores: StorageSettings) -> None:
    try:
        catalog, name = iceberg.open_catalog(target, stores)
        iceberg.in_time(partial(catalog.table_exists, name), stores)
    except iceberg.failures() as error:
        remedy = f"Name it as `catalog.database.table`, with a catalog of {iceberg.CONFIGURATION}"
        raise _refusal(target, error, remedy) from None


def _merge_iceberg(rows: Rows, target: str, stores: StorageSettings) -> int | None:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    marks = rows.marks()
    try:
        catalog, name = iceberg.open_catalog(target, stores)
        exists = iceberg.in_time(partial(catalog.table_exists, name), stores)
        table = iceberg.in_time(partial(catalog.load_table, name), stores) if exists else None
        known = None
        if table is not None:
            known = schema_to_pyarrow(table.schema(), include_field_ids=False)
        schema = schema_in_lake(target, rows.key, rows.schema, known, has_small_integers=False)
        if table is None:
            with catalog.create_table_transaction(name, schema) as step:
                _append(step, schema, rows.batches(schema), marks)
            return None
        changes = rows.changes_after(_last_iceberg_merge(table), schema.field(rows.key).type)
        if changes is not None and not changes:
            return 0
        with table.transaction() as step:
            with step.update_schema() as update:
                update.union_by_name(schema)
            _replace(step, rows, schema, changes, marks)
    except iceberg.failures() as error:
        raise _refusal(target, error, "Repair the table, or name another one") from None
    return None if changes is None else len(changes)


def _last_iceberg_merge(table: Table) -> Mapping[str, Any]:
    """Return the summary of the last snapshot with an effect on rows; empty if it is not known."""
    snapshot = table.current_snapshot()
    for _ in range(_COMMITS):
        if snapshot is None or snapshot.summary is None:
            break
        if snapshot.summary.operation.value != "replace":
            return snapshot.summary.additional_properties
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    return {}


def _replace(
    step: Transaction,
    rows: Rows,
    schema: pa.Schema,
    changes: Mapping[Any, str] | None,
    marks: dict[str, str],
) -> None:
    """Delete the rows of changed keys, or all, and append their new ones."""
    from pyiceberg.expressions import AlwaysTrue, In

    # Its arguments are those of its `__init__`, which mypy's plugin of pydantic does not read.
    among: Callable[[str, list[Any]], BooleanExpression] = cast(Any, In)
    replaced = AlwaysTrue() if changes is None else among(rows.key, [*changes])
    with warnings.catch_warnings():
        # All keys may be new.
        warnings.filterwarnings("ignore", "Delete operation did not match")
        step.delete(replaced, snapshot_properties=marks)
    keys = None if changes is None else _keys(changes, schema.field(rows.key).type)[0]
    if keys is None or len(keys):
        _append(step, schema, rows.batches(schema, keys), marks)


def _append(
    step: Transaction, schema: pa.Schema, batches: Iterable[pa.RecordBatch], marks: dict[str, str]
) -> None:
    if step.table_metadata.spec().is_unpartitioned():
        reader = pa.RecordBatchReader.from_batches(schema, batches)
        step.append(reader, snapshot_properties=marks)
        return
    # The library streams into tables without partitions only.
    for chunk in _chunks(schema, batches):
        step.append(chunk, snapshot_properties=marks)


def _chunks(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    pending: list[pa.RecordBatch] = []
    for batch in batches:
        pending.append(batch)
        if sum(waiting.nbytes for waiting in pending) >= _CHUNK_BYTES:
            yield pa.Table.from_batches(pending, schema)
            pending = []
    if pending:
        yield pa.Table.from_batches(pending, schema)


DELTA = Writer(delta.LIBRARY, "delta", _check_delta, _merge_delta)
ICEBERG = Writer(iceberg.LIBRARY, "iceberg", _check_iceberg, _merge_iceberg)
