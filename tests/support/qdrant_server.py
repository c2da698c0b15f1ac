"""Qdrant's REST interface over the client's local mode, for executors of tests.

No registry of Python, npm or Debian packages carries a Qdrant server. This one answers only the
requests of `pipelines.publishing.qdrant`. It checks each body by the models that Qdrant generates
from its published OpenAPI definition, and applies it to the client's own local mode, which knows
collections, aliases, ids, widths and payloads. It is not the real server: it has no payload
indexes, shards or write-ahead log.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any
from urllib.parse import unquote, urlparse

from json_requests import JsonRequests
from local_servers import serving
from pydantic import TypeAdapter, ValidationError
from qdrant_client import QdrantClient, models
from qdrant_client.http.models import models as published


@dataclass
class State:
    """What the requests share: the engine, the key that they need, and answers to give first."""

    engine: QdrantClient
    key: str | None = None
    failures: list[int] = field(default_factory=list)
    indexed: list[tuple[str, str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def qdrant_server(
    key: str | None = None, tls: SSLContext | None = None
) -> Iterator[tuple[str, State]]:
    """Gives the address of a server with an empty store, and its state."""
    engine = QdrantClient(":memory:", force_disable_check_same_thread=True)
    state = State(engine, key)
    with serving(Requests, tls, state=state) as place:
        yield f"{place['schema']}://{place['host']}:{place['port']}", state
    engine.close()


def create(state: State, name: str, body: published.CreateCollection) -> Any:
    if state.engine.collection_exists(name):
        raise ValueError(f"Wrong input: Collection `{name}` already exists!")
    assert isinstance(body.vectors, models.VectorParams)
    return state.engine.create_collection(name, vectors_config=body.vectors, metadata=body.metadata)


def update(state: State, name: str, body: published.UpdateCollection) -> Any:
    return state.engine.update_collection(name, metadata=body.metadata)


def describe(state: State, name: str, _body: None) -> Any:
    return state.engine.get_collection(name)


def drop(state: State, name: str, _body: None) -> Any:
    return state.engine.delete_collection(name)


def exists(state: State, name: str, _body: None) -> Any:
    return {"exists": state.engine.collection_exists(name)}


def index(state: State, name: str, body: published.CreateFieldIndex) -> Any:
    assert isinstance(body.field_schema, models.PayloadSchemaType)
    state.indexed.append((name, body.field_name, body.field_schema.value))
    return finished()


def insert(state: State, name: str, body: published.PointsBatch | published.PointsList) -> Any:
    if isinstance(body, published.PointsBatch):
        state.engine.upsert(name, body.batch)
    else:
        state.engine.upsert(name, body.points)
    return finished()


def delete(state: State, name: str, body: published.PointIdsList) -> Any:
    state.engine.delete(name, body)
    return finished()


def count(state: State, name: str, body: published.CountRequest) -> Any:
    assert body.exact, "an estimate is no count"
    return state.engine.count(name, exact=True)


def retrieve(state: State, name: str, body: published.PointRequest) -> Any:
    payload, vector = body.with_payload, body.with_vector
    return state.engine.retrieve(name, body.ids, with_payload=payload, with_vectors=vector)


def change_aliases(state: State, _name: str, body: published.ChangeAliasesOperation) -> Any:
    return state.engine.update_collection_aliases(body.actions)


def aliases(state: State, _name: str, _body: None) -> Any:
    return state.engine.get_aliases()


def collections(state: State, _name: str, _body: None) -> Any:
    return state.engine.get_collections()


def finished() -> Any:
    return models.UpdateResult(operation_id=0, status=models.UpdateStatus.COMPLETED)


COLLECTION = "/collections/([^/]+)"
ROUTES: Mapping[tuple[str, str], tuple[Callable[[State, str, Any], Any], Any]] = {
    ("GET", "/collections()"): (collections, None),
    ("GET", "/aliases()"): (aliases, None),
    ("POST", "/collections/aliases()"): (change_aliases, published.ChangeAliasesOperation),
    ("GET", f"{COLLECTION}/exists"): (exists, None),
    ("GET", COLLECTION): (describe, None),
    ("PUT", COLLECTION): (create, published.CreateCollection),
    ("PATCH", COLLECTION): (update, published.UpdateCollection),
    ("DELETE", COLLECTION): (drop, None),
    ("PUT", f"{COLLECTION}/index"): (index, published.CreateFieldIndex),
    ("PUT", f"{COLLECTION}/points"): (insert, published.PointInsertOperations),
    ("POST", f"{COLLECTION}/points"): (retrieve, published.PointRequest),
    ("POST", f"{COLLECTION}/points/delete"): (delete, published.PointIdsList),
    ("POST", f"{COLLECTION}/points/count"): (count, published.CountRequest),
}
"""By method and path: the function of a request, and the published model of its body."""


class Requests(JsonRequests):
    """Answers the requests of :data:`ROUTES`, and refuses all others."""

    state: State

    def answer(self, content: str) -> tuple[int, Any]:
        if self.state.key is not None and self.headers.get("api-key") != self.state.key:
            return 401, problem("Must provide an API key or an Authorization bearer token")
        if self.state.failures:
            return self.state.failures.pop(0), problem("Service is not available now")
        path = urlparse(self.path).path
        for (method, pattern), (function, model) in ROUTES.items():
            found = re.fullmatch(pattern, path)
            if found and method == self.command:
                return self._applied(function, unquote(found[1]), model, content)
        return 501, problem(f"the stand-in does not know {self.command} {path}")

    def _applied(
        self, function: Callable[..., Any], name: str, model: Any, content: str
    ) -> tuple[int, dict[str, Any]]:
        try:
            body = TypeAdapter(model).validate_json(content) if model is not None else None
            with self.state.lock:
                result = function(self.state, name, body)
        except ValidationError as error:
            return 400, problem(f"Format error in JSON body: {error.errors()[0]['msg']}")
        except ValueError as error:
            missing = str(error).endswith("not found")
            return 404 if missing else 400, problem(str(error))
        plain = TypeAdapter(Any).dump_python(result, mode="json", exclude_none=True)
        return 200, {"result": plain, "status": "ok", "time": 0.0}


def problem(text: str) -> dict[str, Any]:
    """The body of a refusal, as Qdrant writes it."""
    return {"status": {"error": text}, "time": 0.0}
