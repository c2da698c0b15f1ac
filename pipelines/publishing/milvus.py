"""Milvus and Zilliz Cloud by pymilvus, and Milvus Lite in a file for one process at a time.

A collection has a typed field for each column: VARCHAR for texts and, in ISO 8601, for times; JSON
for lists. The state of a collection is one of its properties.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.compute as pc
from pymilvus import DataType, MilvusClient, MilvusException

from pipelines.errors import InputError
from pipelines.libraries import is_installed
from pipelines.publishing.servers import (
    NOT_AUTHENTICATED,
    NOT_PERMITTED,
    brief,
    is_ours,
    is_server,
    refused,
    requests_of,
    server_of,
    unreachable,
)
from pipelines.publishing.store import (
    ADDRESS,
    COLUMNS,
    Layout,
    Metric,
    StoreKind,
    Target,
    payload_of,
    vectors_of,
)

STATE = "sentence_pipelines.state"
"""The property of a collection."""
METRICS: Mapping[Metric, str] = {"cosine": "COSINE", "dot": "IP", "euclidean": "L2"}
LONGEST_TEXT = 65_535
"""Bytes of a VARCHAR."""
FILE_ENDING = ".db"
"""Of a file of Milvus Lite; pymilvus knows it by this."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FIELDS = {"bool": DataType.BOOL, "int64": DataType.INT64, "double": DataType.DOUBLE}
_MOST_NUMBERS = 32_768
# Milvus Lite knows no others, and takes other control characters as they are.
_ESCAPES = str.maketrans({'"': r"\"", "\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"})

# Codes of Milvus, and of Milvus Lite, which has others.
_NO_ALIAS = (1600, 100)
_NO_ANSWER = 2
_TEMPORARY = (_NO_ANSWER, 8, 9)
_STATUSES = {
    1400: NOT_AUTHENTICATED,
    1401: NOT_AUTHENTICATED,
    1402: NOT_PERMITTED,
    grpc.StatusCode.UNAUTHENTICATED: NOT_AUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED: NOT_PERMITTED,
}
_NO_REPLY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def field_type(column: pa.Field) -> DataType:
    """Return the type of a column's field."""
    if pa.types.is_list(column.type):
        return DataType.JSON
    return _FIELDS.get(str(column.type), DataType.VARCHAR)


@contextmanager
def _untied() -> Iterator[None]:
    """Free errors of pymilvus from themselves as their cause, an endless chain for others."""
    try:
        yield
    except Exception as error:
        if error.__cause__ is error:
            error.__cause__ = None
        raise


class MilvusStore:
    """An open connection; see :class:`~pipelines.publishing.store.Store`."""

    def __init__(self, client: MilvusClient, target: Target) -> None:
        self._client = client
        self._target = target

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the client, with a deadline."""
        with _untied():
            return getattr(self._client, method)(
                *arguments, timeout=self._target.timeout, **options
            )

    def collections(self) -> Mapping[str, str | None]:
        """Return the states of collections by name."""
        current = self.current()
        names = self._call("list_collections")
        return {
            name: self._state(name)
            for name in names
            if name == current or is_ours(self._target, name)
        }

    def _state(self, name: str) -> str | None:
        described = self._call("describe_collection", name)
        state: str | None = (described.get("properties") or {}).get(STATE)
        return state

    def current(self) -> str | None:
        """Return the collection behind the alias, or one with the alias's own name."""
        alias = self._target.collection
        if alias in self._call("list_collections"):
            return alias
        return self._aliased()

    def _aliased(self) -> str | None:
        try:
            found = self._call("describe_alias", self._target.collection)
        except MilvusException as error:
            if error.code in _NO_ALIAS:
                return None
            raise
        return str(found["collection_name"])

    def create(self, name: str, layout: Layout, state: str) -> None:
        """Create an empty collection with its state, and load it."""
        fields = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        key = field_type(layout.key)
        length = {"max_length": LONGEST_TEXT} if key == DataType.VARCHAR else {}
        fields.add_field(_named(layout.key.name), key, is_primary=True, **length)
        vector = _named(layout.vector.name)
        fields.add_field(vector, DataType.FLOAT_VECTOR, dim=layout.width)
        for column in layout.payload:
            kind = field_type(column)
            length = {"max_length": LONGEST_TEXT} if kind == DataType.VARCHAR else {}
            fields.add_field(_named(column.name), kind, nullable=True, **length)
        self._call(
            "create_collection",
            name,
            schema=fields,
            properties={STATE: state},
            consistency_level="Strong",
        )
        self.finish(name, layout)

    def write_state(self, name: str, state: str) -> None:
        """Replace the state of a collection."""
        self._call("alter_collection_properties", name, properties={STATE: state})

    def upsert(
        self, name: str, layout: Layout, rows: pa.RecordBatch, *, may_exist: bool = True
    ) -> None:
        """Insert or replace rows, in requests of some megabytes.

        A repeated insert would double its rows in Milvus, so ``may_exist`` changes nothing.
        """
        _check_lengths(rows)
        for part in requests_of(layout, rows):
            self._call("upsert", name, data=list(_entities(layout, part)))

    def delete(self, name: str, layout: Layout, keys: pa.Array) -> None:
        """Delete rows by key."""
        # For `ids` pymilvus writes such a condition too, and escapes no quotes in it.
        values = ", ".join(map(_literal, keys.to_pylist()))
        self._call("delete", name, filter=f"{layout.key.name} in [{values}]")

    def finish(self, name: str, layout: Layout) -> None:
        """Build missing indexes, and load the collection; reads are of strong consistency."""
        indexed = {
            self._call("describe_index", name, index)["field_name"]
            for index in self._call("list_indexes", name)
        }
        missing = MilvusClient.prepare_index_params()
        for column, options in _indexes(layout):
            if column not in indexed:
                missing.add_index(column, **options)
        if len(missing):
            self._call("create_index", name, missing)
        self._call("load_collection", name)

    def count(self, name: str) -> int:
        """Return the number of rows."""
        (found,) = self._call("query", name, output_fields=["count(*)"], consistency_level="Strong")
        return int(found["count(*)"])

    def switch(self, name: str) -> None:
        """Point the alias to a collection."""
        alias = self._target.collection
        is_there = self._aliased() is not None
        self._call("alter_alias" if is_there else "create_alias", name, alias)

    def drop(self, name: str) -> None:
        """Drop a collection."""
        self._call("drop_collection", name)

    def close(self) -> None:
        """Close the connection, and give the file of Milvus Lite to other processes."""
        self._client.close()
        if not is_server(self._target):
            from milvus_lite.server_manager import server_manager_instance

            server_manager_instance.release_server(self._target.address)


def _literal(key: int | str) -> str:
    """Return a key as it stands in a condition."""
    return str(key) if isinstance(key, int) else f'"{key.translate(_ESCAPES)}"'


def _named(name: str) -> str:
    """Return the name of a field.

    Raises:
        InputError: Milvus has no such names.
    """
    if _NAME.fullmatch(name):
        return name
    raise InputError(
        COLUMNS,
        f"Milvus has no field `{name}`: names are of letters, digits and underscores",
        "Rename the column in the table, or leave it out",
    )


def _check_lengths(rows: pa.RecordBatch) -> None:
    """Refuse texts that do not fit into a VARCHAR."""
    for column in rows.schema:
        if not pa.types.is_string(column.type):
            continue
        longest = pc.max(pc.binary_length(rows.column(column.name))).as_py() or 0
        if longest > LONGEST_TEXT:
            raise InputError(
                COLUMNS,
                f"`{column.name}` has a text of {longest:,} bytes, and Milvus takes"
                f" {LONGEST_TEXT:,}",
                "Leave the column out, or shorten its texts",
            )


def _entities(layout: Layout, rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield rows as pymilvus takes them: nulls included, and vectors as arrays."""
    keys, vectors = rows.column(0).to_pylist(), vectors_of(layout, rows)
    nulls = {column.name: None for column in layout.payload}
    for key, vector, payload in zip(keys, vectors, payload_of(rows), strict=True):
        yield {layout.key.name: key, layout.vector.name: vector, **nulls, **payload}


def _indexes(layout: Layout) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the indexes of a collection by field; conditions on lists need none."""
    yield (
        layout.vector.name,
        {"index_type": "AUTOINDEX", "metric_type": METRICS[layout.metric]},
    )
    for column in layout.payload:
        if column.name in layout.filters and not pa.types.is_list(column.type):
            yield column.name, {"index_type": "INVERTED"}


def _open(target: Target) -> MilvusStore:
    """Connect to a server, or open a file."""
    for library in ("pymilvus", "milvus_lite"):
        # They log each error with a traceback, and then raise it.
        logging.getLogger(library).setLevel(logging.CRITICAL)
    if not is_server(target):
        if not target.address.endswith(FILE_ENDING):
            problem = f"{target.address} is no file of Milvus Lite"
            remedy = f"Write http://host:19530, or a path that ends in {FILE_ENDING}"
            raise InputError(ADDRESS, problem, remedy)
        if not is_installed("milvus_lite"):
            raise InputError(
                ADDRESS,
                f"{target.address} needs Milvus Lite, which is not installed",
                "Run `pip install milvus-lite`, or name a server",
            )
        with _untied():
            client = MilvusClient(target.address, timeout=target.timeout, dedicated=True)
        return MilvusStore(client, target)
    server = server_of(target, "http", "https")
    token = f"{server.user}:{server.secret}" if server.user else server.secret
    with _untied():
        client = MilvusClient(
            server.url,
            token=token or "",
            timeout=target.timeout,
            server_pem_path=server.ca_file or "",
            dedicated=True,
        )
    return MilvusStore(client, target)


def _code(error: Exception) -> object:
    if isinstance(error, grpc.RpcError):
        return error.code()
    return error.code if isinstance(error, MilvusException) else None


def _is_temporary(error: Exception) -> bool:
    """Tell whether an error may pass."""
    code = _code(error)
    return code in _NO_REPLY or code in _TEMPORARY or getattr(error, "retriable", False)


def _refusal(error: Exception, target: Target) -> InputError | None:
    """Return the error of one line for a fault of the user's."""
    code = _code(error)
    if code in _NO_REPLY or code == _NO_ANSWER:
        return unreachable(target, error)
    if not is_server(target) and "Open local milvus failed" in str(error):
        problem = f"{target.address} cannot be opened ({brief(error)})"
        return InputError(
            ADDRESS, problem, "Close it in other processes, and name a folder that exists"
        )
    return refused(target, _STATUSES.get(code))  # type: ignore[call-overload]


STORE = StoreKind(
    open=_open,
    is_temporary=_is_temporary,
    refusal=_refusal,
    is_of_one_process=lambda target: not is_server(target),
    most_numbers=_MOST_NUMBERS,
)
