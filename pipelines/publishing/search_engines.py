"""OpenSearch and Elasticsearch, by their own clients and the bulk helper that both have.

An index has a mapping without dynamic fields, whose `_meta` holds the state. Texts are for BM25,
and filters are keywords. Each client is imported when its store is opened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa

from pipelines.errors import InputError
from pipelines.publishing.servers import (
    TEMPORARY_STATUSES,
    Server,
    brief,
    is_ours,
    refused,
    requests_of,
    server_of,
    unreachable,
)
from pipelines.publishing.store import (
    COLUMNS,
    Layout,
    Metric,
    StoreKind,
    Target,
    check_names,
    payload_of,
    vectors_of,
)

STATE = "sentence_pipelines"
"""The field of a mapping's `_meta`."""
LONGEST_ID = 512
"""Bytes of an `_id`; longer keys are hashed."""
METADATA_FIELDS = frozenset(
    {"_doc_count", "_feature", "_field_names", "_id", "_ignored", "_ignored_source", "_index"}
    | {"_index_mode", "_nested_path", "_primary_term", "_routing", "_seq_no", "_size", "_source"}
    | {"_tier", "_tsid", "_type", "_version"}
)
_NOT_FOUND = 404
_LOGGERS = ("opensearch", "elastic_transport.node_pool", "elastic_transport.transport")
_TYPES = {"bool": "boolean", "int64": "long", "double": "double"}


class RowsRefusedError(Exception):
    """Rows of a bulk request that the server refused; ``statuses`` are theirs."""

    def __init__(self, count: int, first: Mapping[str, Any], statuses: set[int]) -> None:
        cause = first.get("error", {})
        reason = cause.get("reason", cause) if isinstance(cause, Mapping) else cause
        super().__init__(
            f"{count:,} rows, the first `{first.get('_id')}`: {first.get('status')},"
            f" {brief(reason)}"
        )
        self.statuses = statuses


@dataclass(frozen=True)
class Engine:
    """A search engine: what differs between the two.

    Attributes:
        connect: Returns a client.
        vector: Returns the mapping of a vector.
        settings: Of an index.
        no_answer: Returns the client's errors for a request without an answer.
        helpers: Returns the client's module of bulk helpers.
        most_numbers: The widest vector.
    """

    connect: Callable[[Server, float], Any]
    vector: Callable[[Layout], dict[str, Any]]
    settings: Mapping[str, Any]
    no_answer: Callable[[], tuple[type[Exception], ...]]
    helpers: Callable[[], ModuleType]
    most_numbers: int


class SearchEngineStore:
    """An open connection; see :class:`~pipelines.publishing.store.Store`."""

    def __init__(self, engine: Engine, client: Any, target: Target) -> None:
        self._engine = engine
        self._client = client
        self._target = target

    def collections(self) -> Mapping[str, str | None]:
        """Return the states of indices by name."""
        alias, current = self._target.collection, self.current()
        found = self._client.indices.get_mapping(
            index=f"{alias},{alias}_*", ignore_unavailable=True, allow_no_indices=True
        )
        return {
            name: described["mappings"].get("_meta", {}).get(STATE)
            for name, described in found.items()
            if name == current or is_ours(self._target, name)
        }

    def current(self) -> str | None:
        """Return the index behind the alias, or one with the alias's own name."""
        alias = self._target.collection
        if behind := self._behind():
            return behind[0]
        return alias if self._client.indices.exists(index=alias) else None

    def _behind(self) -> list[str]:
        """Return the indices behind the alias; others may have added some."""
        alias = self._target.collection
        if not self._client.indices.exists_alias(name=alias):
            return []
        return sorted(self._client.indices.get_alias(name=alias))

    def create(self, name: str, layout: Layout, state: str) -> None:
        """Create an empty index with its state."""
        check_names(self._target, layout, _is_refused)
        mappings = {
            "dynamic": "strict",
            "_meta": {STATE: state},
            "properties": {
                layout.key.name: _field(layout.key, is_filter=True),
                layout.vector.name: self._engine.vector(layout),
                **{
                    column.name: _field(column, is_filter=column.name in layout.filters)
                    for column in layout.payload
                },
            },
        }
        body = {"mappings": mappings, "settings": dict(self._engine.settings)}
        self._client.indices.create(index=name, body=body)

    def write_state(self, name: str, state: str) -> None:
        """Replace the state of an index."""
        self._client.indices.put_mapping(index=name, body={"_meta": {STATE: state}})

    def upsert(
        self, name: str, layout: Layout, rows: pa.RecordBatch, *, may_exist: bool = True
    ) -> None:
        """Insert or replace rows, in requests of some megabytes."""
        for part in requests_of(layout, rows):
            self._bulk(_documents(name, layout, part))

    def delete(self, name: str, layout: Layout, keys: pa.Array) -> None:
        """Delete rows by key."""
        self._bulk(
            {"_op_type": "delete", "_index": name, "_id": document_id(key)}
            for key in keys.to_pylist()
        )

    def _bulk(self, actions: Iterator[dict[str, Any]]) -> None:
        """Send actions, and raise an error for items that failed in a request that did not."""
        failed = []
        sent = self._engine.helpers().streaming_bulk(
            self._client, actions, raise_on_error=False, max_retries=0, yield_ok=False
        )
        for _, item in sent:
            ((verb, answer),) = item.items()
            if verb != "delete" or answer["status"] != _NOT_FOUND:
                failed.append(answer)
        if failed:
            statuses = {answer["status"] for answer in failed}
            raise RowsRefusedError(len(failed), failed[0], statuses)

    def finish(self, name: str, layout: Layout) -> None:
        """Make all writes visible."""
        self._client.indices.refresh(index=name)

    def count(self, name: str) -> int:
        """Return the number of rows."""
        return int(self._client.count(index=name)["count"])

    def switch(self, name: str) -> None:
        """Point the alias to an index alone."""
        alias = self._target.collection
        removed = [{"remove": {"index": index, "alias": alias}} for index in self._behind()]
        added = {"add": {"index": name, "alias": alias}}
        self._client.indices.update_aliases(body={"actions": [*removed, added]})

    def drop(self, name: str) -> None:
        """Drop an index."""
        self._client.indices.delete(index=name, ignore_unavailable=True)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _is_refused(name: str) -> bool:
    """Tell whether a field is one of the server's own, or a part of its path is empty."""
    return name in METADATA_FIELDS or not all(part.strip() for part in name.split("."))


def document_id(key: int | str) -> str:
    """Return the `_id` of a key: its text, or its SHA-256 where the text is too long."""
    text = str(key)
    return text if len(text.encode()) <= LONGEST_ID else sha256(text.encode()).hexdigest()


def _documents(name: str, layout: Layout, rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    keys, vectors = rows.column(0).to_pylist(), vectors_of(layout, rows).tolist()
    for key, vector, payload in zip(keys, vectors, payload_of(rows), strict=True):
        source = {layout.key.name: key, layout.vector.name: vector, **payload}
        yield {"_op_type": "index", "_index": name, "_id": document_id(key), "_source": source}


def _field(column: pa.Field, *, is_filter: bool) -> dict[str, Any]:
    """Return the mapping of a column; a list has that of its values."""
    kind = column.type.value_type if pa.types.is_list(column.type) else column.type
    if pa.types.is_string(kind):
        return {"type": "keyword" if is_filter else "text"}
    if pa.types.is_temporal(kind):
        return {"type": "date", "format": "strict_date_optional_time", "index": is_filter}
    return {"type": _TYPES[str(kind)], "index": is_filter}


_SPACES: Mapping[Metric, str] = {"cosine": "cosinesimil", "dot": "innerproduct", "euclidean": "l2"}
_SIMILARITIES: Mapping[Metric, str] = {
    "cosine": "cosine",
    # `dot_product` refuses vectors of another length than 1.
    "dot": "max_inner_product",
    "euclidean": "l2_norm",
}


def _knn_vector(layout: Layout) -> dict[str, Any]:
    # Lucene's graphs have all three spaces in every release since 2.13; those of faiss do not.
    method = {"name": "hnsw", "engine": "lucene", "space_type": _SPACES[layout.metric]}
    kind = {"data_type": "byte"} if layout.is_int8 else {}
    return {"type": "knn_vector", "dimension": layout.width, **kind, "method": method}


def _dense_vector(layout: Layout) -> dict[str, Any]:
    kind = {"element_type": "byte"} if layout.is_int8 else {}
    similarity = _SIMILARITIES[layout.metric]
    common = {"type": "dense_vector", "dims": layout.width, "index": True}
    return {**common, **kind, "similarity": similarity}


def _connect_opensearch(server: Server, timeout: float) -> Any:
    from opensearchpy import OpenSearch

    with_token = server.secret is not None and server.user is None
    return OpenSearch(
        hosts=[server.url],
        http_auth=(server.user, server.secret or "") if server.user else None,
        headers={"Authorization": f"Bearer {server.secret}"} if with_token else None,
        ca_certs=server.ca_file,
        timeout=timeout,
        max_retries=0,
    )


def _with_port(url: str) -> str:
    """Return a URL with the port that OpenSearch's client adds, and Elasticsearch's does not."""
    parts = urlsplit(url)
    if parts.port is not None:
        return url
    port = 443 if parts.scheme == "https" else 9200
    return urlunsplit(parts._replace(netloc=f"{parts.netloc.rstrip(':')}:{port}"))


def _connect_elasticsearch(server: Server, timeout: float) -> Any:
    from elasticsearch import Elasticsearch

    return Elasticsearch(
        hosts=[_with_port(server.url)],
        basic_auth=(server.user, server.secret or "") if server.user else None,
        api_key=server.secret if server.user is None else None,
        **({"ca_certs": server.ca_file} if server.ca_file else {}),
        request_timeout=timeout,
        max_retries=0,
    )


def _opensearch_no_answer() -> tuple[type[Exception], ...]:
    from opensearchpy import exceptions

    return (exceptions.ConnectionError,)


def _elasticsearch_no_answer() -> tuple[type[Exception], ...]:
    import elastic_transport

    return (elastic_transport.ConnectionError, elastic_transport.ConnectionTimeout)


def _opensearch_helpers() -> ModuleType:
    from opensearchpy import helpers

    return helpers  # type: ignore[no-any-return]


def _elasticsearch_helpers() -> ModuleType:
    from elasticsearch import helpers

    return helpers  # type: ignore[no-any-return]


def _open(engine: Engine, target: Target) -> SearchEngineStore:
    for logger in _LOGGERS:
        # They warn of each failed request, before the error says the same.
        logging.getLogger(logger).setLevel(logging.ERROR)
    server = server_of(target, "http", "https")
    client = engine.connect(server, target.timeout)
    return SearchEngineStore(engine, client, target)


def _status(error: Exception) -> int | None:
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def _is_temporary(engine: Engine, error: Exception) -> bool:
    if isinstance(error, RowsRefusedError):
        return error.statuses <= TEMPORARY_STATUSES
    return _status(error) in TEMPORARY_STATUSES or isinstance(error, engine.no_answer())


def _refusal(engine: Engine, error: Exception, target: Target) -> InputError | None:
    if isinstance(error, engine.no_answer()):
        # The clients' own texts leave the reason out.
        return unreachable(target, error.__cause__ or error.__context__ or error)
    if isinstance(error, RowsRefusedError):
        problem = f"{target.store} refused rows ({error})"
        if _is_temporary(engine, error):
            return InputError("publish.connections", problem, "Use fewer connections")
        return InputError(COLUMNS, problem, "Correct the column, or leave it out")
    return refused(target, _status(error))


def _kind(engine: Engine) -> StoreKind:
    return StoreKind(
        open=partial(_open, engine),
        is_temporary=partial(_is_temporary, engine),
        refusal=partial(_refusal, engine),
        has_int8=True,
        most_numbers=engine.most_numbers,
    )


OPENSEARCH = _kind(
    Engine(
        connect=_connect_opensearch,
        vector=_knn_vector,
        settings={"index.knn": True},
        no_answer=_opensearch_no_answer,
        helpers=_opensearch_helpers,
        most_numbers=16_000,
    )
)
ELASTICSEARCH = _kind(
    Engine(
        connect=_connect_elasticsearch,
        vector=_dense_vector,
        settings={},
        no_answer=_elasticsearch_no_answer,
        helpers=_elasticsearch_helpers,
        most_numbers=4_096,
    )
)
