"""The part of OpenSearch's and Elasticsearch's interface that publishing needs, for tests.

No registry of Python, npm or Debian packages carries either server. This is not the real one: it
has no search, shards or versions. It refuses each request, parameter and type that it does not
know: see `search_engine_mappings.py`. OpenSearch's published protocol buffers read action lines.
"""

from __future__ import annotations

import json
import re
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from ssl import SSLContext
from typing import Any
from urllib.parse import parse_qs, unquote, urlparse

from google.protobuf.json_format import ParseDict, ParseError
from json_requests import JsonRequests
from local_servers import serving
from opensearch.protobufs.schemas import common_pb2
from search_engine_mappings import check_mappings, fits, only

LONGEST_ID = 512  # bytes


class RefusedError(Exception):
    """An error of the interface: its status, type and reason."""

    def __init__(self, status: int, kind: str, reason: object) -> None:
        super().__init__(reason)
        self.status = status
        self.error = {"type": kind, "reason": str(reason)}


@dataclass
class Index:
    """An index: its mapping, and its documents before and after a refresh."""

    mappings: dict[str, Any]
    documents: dict[str, Any] = field(default_factory=dict)
    visible: dict[str, Any] = field(default_factory=dict)


@dataclass
class State:
    """What the requests share; the next answers and bulk items fail with the given statuses."""

    kind: str
    authorization: str | None = None
    indices: dict[str, Index] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    failures: list[int] = field(default_factory=list)
    item_failures: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def index(self, name: str) -> Index:
        found = self.indices.get(self.aliases.get(name, name))
        if found is None:
            raise RefusedError(404, "index_not_found_exception", f"no such index [{name}]")
        return found


@contextmanager
def search_engine_server(
    kind: str, user: str | None = None, tls: SSLContext | None = None
) -> Iterator[tuple[str, State]]:
    """Gives the address of an empty `opensearch` or `elasticsearch` for a `user:password`."""
    state = State(kind, f"Basic {b64encode(user.encode()).decode()}" if user else None)
    headers = {"X-Elastic-Product": "Elasticsearch"} if kind == "elasticsearch" else {}
    with serving(Requests, tls, state=state, more_headers=headers) as place:
        yield f"{place['schema']}://{place['host']}:{place['port']}", state


def create(state: State, name: str, body: Any) -> None:
    if name in {*state.indices, *state.aliases}:
        raise RefusedError(400, "resource_already_exists_exception", name)
    only(body, {"mappings", "settings"})
    only(body["settings"], {"index.knn"} if state.kind == "opensearch" else set())
    check_mappings(state.kind, body["mappings"])
    state.indices[name] = Index(body["mappings"])


def mappings(state: State, name: str, _body: Any) -> Any:
    # As with `ignore_unavailable`: a name that is not there is no error.
    names = {
        state.aliases.get(found, found)
        for pattern in name.split(",")
        for found in (*state.indices, *state.aliases)
        if fnmatch(found, pattern)
    }
    return {found: {"mappings": state.indices[found].mappings} for found in names}


def put_mapping(state: State, name: str, body: Any) -> None:
    only(body, {"_meta"})
    state.index(name).mappings |= body


def drop(state: State, name: str, _body: Any) -> None:
    # Aliases are no indices to delete.
    state.indices.pop(name, None)
    state.aliases = {alias: index for alias, index in state.aliases.items() if index != name}


def refresh(state: State, name: str, _body: Any) -> None:
    index = state.index(name)
    index.visible = dict(index.documents)


def count(state: State, name: str, _body: Any) -> Any:
    return {"count": len(state.index(name).visible)}


def change_aliases(state: State, _name: str, body: Any) -> None:
    changed = dict(state.aliases)
    for action in body["actions"]:
        ((verb, change),) = action.items()
        only(change, {"index", "alias"})
        state.index(change["index"])
        is_set = changed.get(change["alias"]) == change["index"]
        if change["alias"] in state.indices or (verb != "add" and not is_set):
            raise RefusedError(400, "illegal_argument_exception", action)
        if verb == "add":
            changed[change["alias"]] = change["index"]
        else:
            del changed[change["alias"]]
    state.aliases = changed


def alias(state: State, name: str, _body: Any) -> Any:
    if name not in state.aliases:
        raise RefusedError(404, "aliases_not_found_exception", f"alias [{name}] missing")
    return {state.aliases[name]: {"aliases": {name: {}}}}


def bulk(state: State, _name: str, content: str) -> Any:
    lines, items = iter(content.splitlines()), []
    for line in lines:
        ((verb, action),) = json.loads(line).items()
        # Protocol buffers have no names that begin with an underscore.
        plain = {re.sub("^_", "x_", key): value for key, value in action.items()}
        ParseDict({verb: plain}, common_pb2.OperationContainer())
        document = None if verb == "delete" else json.loads(next(lines))
        answer: dict[str, Any] = {"_index": action["_index"], "_id": action["_id"]}
        try:
            answer["status"] = applied(state, action["_index"], action["_id"], document)
        except RefusedError as error:
            answer |= {"status": error.status, "error": error.error}
        items.append({verb: answer})
    errors = any("error" in answer for item in items for answer in item.values())
    return {"took": 1, "errors": errors, "items": items}


def applied(state: State, name: str, key: str, document: dict[str, Any] | None) -> int:
    """The status of one item, after it was applied; without a document it is a deletion."""
    index = state.index(name)
    if state.item_failures:
        raise RefusedError(state.item_failures.pop(0), "rejected_execution_exception", "full queue")
    if len(key.encode()) > LONGEST_ID:
        raise RefusedError(400, "illegal_argument_exception", "id is too long")
    if document is None:
        return 200 if index.documents.pop(key, None) is not None else 404
    for column, value in document.items():
        mapped = index.mappings["properties"].get(column)
        if mapped is None:
            raise RefusedError(400, "strict_dynamic_mapping_exception", f"new field [{column}]")
        if value is not None and not fits(mapped, value):
            raise RefusedError(400, "document_parsing_exception", f"failed to parse [{column}]")
    status = 200 if key in index.documents else 201
    index.documents[key] = document
    return status


NAME = "/([^/_][^/]*)"
ROUTES: Mapping[str, Callable[[State, str, Any], Any]] = {
    f"HEAD {NAME}": lambda state, name, _body: state.index(name) and None,
    f"PUT {NAME}": create,
    f"DELETE {NAME}": drop,
    f"GET {NAME}/_mapping": mappings,
    f"PUT {NAME}/_mapping": put_mapping,
    f"POST {NAME}/_refresh": refresh,
    f"(?:GET|POST) {NAME}/_count": count,
    "POST /_aliases()": change_aliases,
    f"(?:GET|HEAD) /_alias{NAME}": alias,
    "(?:PUT|POST) /_bulk()": bulk,
}
"""By method and path; where a function gives nothing, the answer is an acknowledgement."""


class Requests(JsonRequests):
    """Answers the requests of :data:`ROUTES`, and refuses all others."""

    state: State

    def answer(self, content: str) -> tuple[int, Any]:
        with self.state.lock:
            try:
                return 200, self._found(content) or {"acknowledged": True}
            except (ParseError, ValueError) as error:
                return 400, {"error": {"type": "parsing_exception", "reason": str(error)}}
            except RefusedError as error:
                return error.status, {"error": error.error, "status": error.status}

    def _found(self, content: str) -> Any:
        address, state = urlparse(self.path), self.state
        if state.authorization not in (None, self.headers.get("Authorization")):
            raise RefusedError(401, "security_exception", "unable to authenticate")
        if state.failures:
            raise RefusedError(state.failures.pop(0), "rejected_execution_exception", "not now")
        only(parse_qs(address.query), {"ignore_unavailable", "allow_no_indices"})
        for pattern, function in ROUTES.items():
            if found := re.fullmatch(pattern, f"{self.command} {address.path}"):
                is_json = bool(content) and function is not bulk
                return function(
                    state, unquote(found[1]), json.loads(content) if is_json else content
                )
        raise RefusedError(400, "stand_in", f"it does not know {self.command} {address.path}")
