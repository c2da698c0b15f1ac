"""Qdrant, by its own client: a server, or a folder for one process at a time.

Ids of points are unsigned integers or UUIDs. A key that is neither becomes
``uuid5(NAMESPACE_OID, key)``, and every key is in the payload. The state of a collection is in its
metadata, which Qdrant has since 1.16.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from ssl import create_default_context
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import httpx
import pyarrow as pa
from qdrant_client import QdrantClient, models
from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from pipelines.errors import InputError
from pipelines.publishing.servers import (
    TEMPORARY_STATUSES,
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
    Layout,
    Metric,
    StoreKind,
    Target,
    payload_of,
    vectors_of,
)

STATE = "sentence_pipelines"
"""The field of a collection's metadata."""
DISTANCES: Mapping[Metric, str] = {"cosine": "Cosine", "dot": "Dot", "euclidean": "Euclid"}
_MOST_NUMBERS = 65_536


def point_id(key: int | str) -> int | str:
    """Return the id of a key's point: itself, or a UUID for texts and negative numbers."""
    return key if isinstance(key, int) and key >= 0 else str(uuid5(NAMESPACE_OID, str(key)))


def index_type(column: pa.Field) -> str:
    """Return the type of the index for a filter; a list has that of its values."""
    kind = column.type.value_type if pa.types.is_list(column.type) else column.type
    if pa.types.is_temporal(kind):
        return "datetime"
    return {"bool": "bool", "int64": "integer", "double": "float"}.get(str(kind), "keyword")


class QdrantStore:
    """An open connection; see :class:`~pipelines.publishing.store.Store`."""

    def __init__(self, client: QdrantClient, target: Target) -> None:
        self._client = client
        self._target = target

    def collections(self) -> Mapping[str, str | None]:
        """Return the states of collections by name."""
        current = self.current()
        names = [found.name for found in self._client.get_collections().collections]
        return {
            name: self._state(name)
            for name in names
            if name == current or is_ours(self._target, name)
        }

    def _state(self, name: str) -> str | None:
        metadata = self._client.get_collection(name).config.metadata or {}
        state: str | None = metadata.get(STATE)
        return state

    def current(self) -> str | None:
        """Return the collection behind the alias, or one with the alias's own name."""
        alias = self._target.collection
        if (found := self._aliased()) is not None:
            return found
        return alias if self._client.collection_exists(alias) else None

    def _aliased(self) -> str | None:
        for found in self._client.get_aliases().aliases:
            if found.alias_name == self._target.collection:
                return str(found.collection_name)
        return None

    def create(self, name: str, layout: Layout, state: str) -> None:
        """Create an empty collection with its state."""
        vectors = models.VectorParams(
            size=layout.width, distance=models.Distance(DISTANCES[layout.metric])
        )
        self._client.create_collection(name, vectors_config=vectors, metadata={STATE: state})
        if self._state(name) != state:
            self._client.delete_collection(name)
            raise InputError(
                ADDRESS, "this Qdrant keeps no metadata of collections", "Use Qdrant 1.16 or later"
            )
        # Graphs for filters need the indexes before the points.
        self._index(name, layout)

    def _index(self, name: str, layout: Layout) -> None:
        if not is_server(self._target):
            return  # The local mode has no such indexes.
        indexed = self._client.get_collection(name).payload_schema
        for column in layout.payload:
            if column.name in layout.filters and column.name not in indexed:
                kind = models.PayloadSchemaType(index_type(column))
                self._client.create_payload_index(name, column.name, kind, wait=True)

    def write_state(self, name: str, state: str) -> None:
        """Replace the state of a collection."""
        self._client.update_collection(name, metadata={STATE: state})

    def upsert(
        self, name: str, layout: Layout, rows: pa.RecordBatch, *, may_exist: bool = True
    ) -> None:
        """Insert or replace rows, in requests of some megabytes."""
        for part in requests_of(layout, rows):
            keys = part.column(0).to_pylist()
            payloads = payload_of(part)
            for key, payload in zip(keys, payloads, strict=True):
                payload[layout.key.name] = key
            ids = [point_id(key) for key in keys]
            vectors = vectors_of(layout, part).tolist()
            points = models.Batch(ids=ids, vectors=vectors, payloads=payloads)
            self._client.upsert(name, points, wait=True)

    def delete(self, name: str, layout: Layout, keys: pa.Array) -> None:
        """Delete rows by key."""
        ids = [point_id(key) for key in keys.to_pylist()]
        self._client.delete(name, models.PointIdsList(points=ids), wait=True)

    def finish(self, name: str, layout: Layout) -> None:
        """Build missing indexes; all writes have waited to be visible."""
        self._index(name, layout)

    def count(self, name: str) -> int:
        """Return the number of rows."""
        return int(self._client.count(name, exact=True).count)

    def switch(self, name: str) -> None:
        """Point the alias to a collection."""
        alias = self._target.collection
        actions: list[Any] = []
        if self._aliased() is not None:
            deleted = models.DeleteAlias(alias_name=alias)
            actions.append(models.DeleteAliasOperation(delete_alias=deleted))
        created = models.CreateAlias(collection_name=name, alias_name=alias)
        actions.append(models.CreateAliasOperation(create_alias=created))
        self._client.update_collection_aliases(actions)

    def drop(self, name: str) -> None:
        """Drop a collection."""
        if self._client.collection_exists(name):
            self._client.delete_collection(name)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _open(target: Target) -> QdrantStore:
    """Connect to a server, or open a folder."""
    if not is_server(target):
        try:
            return QdrantStore(QdrantClient(path=target.address), target)
        except RuntimeError as error:
            raise InputError(
                ADDRESS,
                f"another process has the folder {target.address} open",
                "Close it, or use a Qdrant server",
            ) from error
    server = server_of(target, "http", "https")
    with warnings.catch_warnings():
        # Each executor would warn of a key without TLS.
        warnings.simplefilter("ignore", UserWarning)
        client = QdrantClient(
            url=server.url,
            api_key=server.secret,
            timeout=target.timeout,
            check_compatibility=False,
            verify=create_default_context(cafile=server.ca_file),
        )
    return QdrantStore(client, target)


def _is_temporary(error: Exception) -> bool:
    """Tell whether an error may pass."""
    if isinstance(error, UnexpectedResponse):
        return error.status_code in TEMPORARY_STATUSES
    return isinstance(error, ResourceExhaustedResponse) or _no_answer(error) is not None


def _no_answer(error: Exception) -> object:
    """Return what ended a request without an answer; None for answers of any kind."""
    cause = error.source if isinstance(error, ResponseHandlingException) else error
    return cause if isinstance(cause, httpx.TransportError) else None


def _refusal(error: Exception, target: Target) -> InputError | None:
    """Return the error of one line for a fault of the user's."""
    if isinstance(error, UnexpectedResponse):
        return refused(target, error.status_code)
    if isinstance(error, OSError) and not is_server(target):
        problem = f"{target.address} cannot be read or written ({brief(error)})"
        return InputError(ADDRESS, problem, "Name a folder that this user can write")
    reason = _no_answer(error)
    return None if reason is None else unreachable(target, reason)


STORE = StoreKind(
    open=_open,
    is_temporary=_is_temporary,
    refusal=_refusal,
    is_of_one_process=lambda target: not is_server(target),
    most_numbers=_MOST_NUMBERS,
)
