"""LanceDB: tables in a folder or a bucket, without a server.

LanceDB has no aliases, and its open-source release renames no table. `publish` fills a table beside
the one for readers. The switch copies it there in one commit, which replaces rows, columns and
state together. Readers with an open table keep the version that they opened.

The state is in the metadata of the key's column, so a restored version has its own. One process
writes: each commit rewrites the list of a table's files, and keys are no constraint of LanceDB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta

import lancedb
import pyarrow as pa
from lancedb.index import BTree, HnswSq, LabelList

from pipelines.errors import InputError
from pipelines.files.stores import first_line
from pipelines.publishing.store import ADDRESS, Layout, StoreKind, Target, check_names
from pipelines.settings.redaction import without_password

STATE = "sentence_pipelines"
METRICS = {"cosine": "cosine", "dot": "dot", "euclidean": "l2"}
LEAST_INDEXED = 50_000
"""Rows from which LanceDB gets an index of vectors; it compares fewer exactly, and as fast."""
KEYS_OF_CONDITION = 1000
"""Keys in a condition, which is a text for LanceDB to parse."""
SMALLEST = -(2**63)
SYSTEM_COLUMNS = frozenset(
    {"_rowaddr", "_rowid", "_rowoffset"}
    | {"_row_created_at_version", "_row_last_updated_at_version"}
)


class LanceStore:
    """A connection to a LanceDB folder; see :class:`pipelines.publishing.store.Store`."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._database = lancedb.connect(target.address)

    def collections(self) -> Mapping[str, str | None]:
        """Return the states of tables by name."""
        return {name: self._state(name) for name in self._names()}

    def _names(self) -> Iterator[str]:
        alias = self._target.collection
        page: str | None = None
        while True:
            listed = self._database.list_tables(page_token=page)
            named = (name for name in listed.tables if f"{name}_".startswith(f"{alias}_"))
            yield from filter(self._is_table, named)
            page = listed.page_token
            if not page:
                return

    def _is_table(self, name: str) -> bool:
        """Tell whether a folder has a table; a job killed in its first commit leaves none."""
        try:
            self._table(name)
        except ValueError as error:
            if "was not found" not in str(error):
                raise
            return False
        return True

    def _state(self, name: str) -> str | None:
        for column in self._table(name).schema:
            state = (column.metadata or {}).get(STATE.encode())
            if state is not None:
                return str(state.decode())
        return None

    def _table(self, name: str) -> lancedb.table.Table:
        return self._database.open_table(name)

    def current(self) -> str | None:
        """Return the table for readers, if there is one."""
        alias = self._target.collection
        return alias if alias in self._names() else None

    def create(self, name: str, layout: Layout, state: str) -> None:
        """Create an empty table with its state."""
        check_names(self._target, layout, _is_refused)
        self._database.create_table(name, schema=_with_state(layout.schema, state))

    def write_state(self, name: str, state: str) -> None:
        """Replace the state, in a commit of its own."""
        table = self._table(name)
        update = {"path": table.schema.names[0], "metadata": {STATE: state}}
        table.update_field_metadata(update)

    def upsert(
        self, name: str, layout: Layout, rows: pa.RecordBatch, *, may_exist: bool = True
    ) -> None:
        """Append rows, or merge them by key, in one commit."""
        table, content = self._table(name), pa.Table.from_batches([rows])
        if not may_exist:
            table.add(content)
            return
        merge = table.merge_insert(layout.key.name)
        merge.when_matched_update_all().when_not_matched_insert_all()
        merge.execute(content, timeout=timedelta(seconds=self._target.timeout))

    def delete(self, name: str, layout: Layout, keys: pa.Array) -> None:
        """Delete rows by conditions on the key."""
        table = self._table(name)
        for start in range(0, len(keys), KEYS_OF_CONDITION):
            values = keys.slice(start, KEYS_OF_CONDITION).to_pylist()
            table.delete(f"`{layout.key.name}` IN ({', '.join(map(_literal, values))})")

    def finish(self, name: str, layout: Layout) -> None:
        """Join small files, and index the key, the filters and the vectors of a large table.

        A table without readers gets none of this: the switch copies its rows alone.
        """
        if name != self._target.collection:
            return
        table = self._table(name)
        indexed = {column for index in table.list_indices() for column in index.columns}
        wanted: dict[str, BTree | LabelList | HnswSq] = {layout.key.name: BTree()}
        for column in layout.payload:
            if column.name in layout.filters:
                is_list = pa.types.is_list(column.type)
                wanted[column.name] = LabelList() if is_list else BTree()
        if table.count_rows() >= LEAST_INDEXED:
            wanted[layout.vector.name] = HnswSq(distance_type=METRICS[layout.metric])
        for column_name, index in wanted.items():
            if column_name not in indexed and table.count_rows():
                table.create_index(column_name, config=index)
        table.optimize()

    def count(self, name: str) -> int:
        """Return the number of rows."""
        return int(self._table(name).count_rows())

    def switch(self, name: str) -> None:
        """Replace the table for readers by a copy of ``name``, in one commit."""
        alias, table = self._target.collection, self._table(name)
        # The schema of its rows has no metadata of columns, so no state.
        rows = table.search().to_batches()
        copied = pa.RecordBatchReader.from_batches(table.schema, _in_schema(rows, table.schema))
        mode = "overwrite" if self.current() else "create"
        self._database.create_table(alias, data=copied, schema=table.schema, mode=mode)
        self._database.drop_table(name)

    def drop(self, name: str) -> None:
        """Drop a table."""
        if name in self._names():
            self._database.drop_table(name)

    def close(self) -> None:
        """Do nothing: a connection is a folder's name."""


def _with_state(schema: pa.Schema, state: str) -> pa.Schema:
    return schema.set(0, schema.field(0).with_metadata({STATE: state}))


def _in_schema(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _is_refused(name: str) -> bool:
    """Tell whether a column is one of LanceDB's own, or its name cannot stand in conditions."""
    return name in SYSTEM_COLUMNS or "." in name or "`" in name


def _literal(value: int | str) -> str:
    """Return a key as a literal of SQL."""
    if isinstance(value, int):
        # The parser reads a sign apart from its number, which is too large then.
        return f"CAST('{value}' AS BIGINT)" if value == SMALLEST else str(value)
    quoted = value.replace("'", "''")
    return f"'{quoted}'"


def _open(target: Target) -> LanceStore:
    if target.address.startswith("db://"):
        raise InputError(
            ADDRESS,
            f"{without_password(target.address)} is LanceDB Cloud, not a folder",
            "Name a folder or a bucket",
        )
    return LanceStore(target)


def _is_temporary(error: Exception) -> bool:
    text = str(error).lower()
    return any(sign in text for sign in ("conflict", "timed out", "timeout", "too many", "503"))


def _refusal(error: Exception, target: Target) -> InputError | None:
    shown = without_password(target.address)
    if isinstance(error, OSError):
        problem = f"{shown} cannot be read or written ({first_line(error)})"
        return InputError(ADDRESS, problem, "Name a folder that this user can write")
    if isinstance(error, ValueError) and "Failed to connect" in str(error):
        problem = f"{shown} does not answer ({first_line(error)})"
        return InputError(ADDRESS, problem, "Correct the address, or the credentials of the bucket")
    return None


STORE = StoreKind(
    open=_open,
    is_temporary=_is_temporary,
    refusal=_refusal,
    is_of_one_process=lambda _: True,
    batch_rows=50_000,
)
