"""Stores behind servers for the tests: a target for each, and a reader that is not ours."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from free_addresses import free_addresses
from qdrant_server import qdrant_server
from search_engine_server import search_engine_server

from pipelines.publishing.store import Target

SECONDS = 120
COLLECTION = "documents"
KEY, VECTOR = "id", "embedding"

Rows = dict[int | str, dict[str, Any]]


@dataclass(frozen=True)
class ServedStore:
    """A store: how the package reaches it, and its rows by key, of a collection or an alias."""

    target: Target
    rows: Callable[[str], Rows]
    state: Any = None


@contextmanager
def qdrant(_folder: Path) -> Iterator[ServedStore]:
    """Qdrant's stand-in: its REST interface over the local mode; see `qdrant_server.py`."""
    with qdrant_server(key="let me in") as (address, state):
        target = Target("qdrant", address, COLLECTION, secret="let me in")
        yield ServedStore(target, partial(points_of, state.engine), state)


@contextmanager
def qdrant_folder(folder: Path) -> Iterator[ServedStore]:
    """Qdrant's local mode in a folder."""
    from qdrant_client import QdrantClient

    target = Target("qdrant", str(folder / "qdrant"), COLLECTION)

    def rows(name: str) -> Rows:
        client = QdrantClient(path=target.address)
        try:
            return points_of(client, name)
        finally:
            client.close()

    yield ServedStore(target, rows)


def points_of(client: Any, name: str) -> Rows:
    points, _ = client.scroll(name, limit=100_000, with_vectors=True)
    return {point.payload[KEY]: {VECTOR: point.vector, **point.payload} for point in points}


@contextmanager
def milvus(folder: Path) -> Iterator[ServedStore]:
    """Milvus Lite as a server of its own, the real engine of that release."""
    with free_addresses(1) as ((_, port),):
        pass
    program = str(Path(sys.executable).with_name("milvus-lite"))
    command = [program, "server", "--host", "127.0.0.1"]
    with (folder / "milvus.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--data-dir", str(folder / "milvus"), "--port", str(port)],
            stdout=log,
            stderr=log,
        )
    try:
        wait_for(port, process)
        target = Target("milvus", f"http://127.0.0.1:{port}", COLLECTION)
        yield ServedStore(target, partial(entities_of, target.address))
    finally:
        process.kill()
        process.wait(SECONDS)


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("the server of Milvus Lite did not start")


@contextmanager
def milvus_file(folder: Path) -> Iterator[ServedStore]:
    """Milvus Lite in a file, within the process."""
    target = Target("milvus", str(folder / "vectors.db"), COLLECTION)
    yield ServedStore(target, partial(entities_of, target.address))


def entities_of(address: str, name: str) -> Rows:
    from milvus_lite.server_manager import server_manager_instance
    from pymilvus import MilvusClient
    from pymilvus.client.cache import GlobalCache

    # Schemas are kept by port, which an earlier file may have had. Only writes notice.
    GlobalCache.schema.clear()
    client = MilvusClient(address, dedicated=True)
    try:
        client.load_collection(name)
        batches = client.query_iterator(name, batch_size=1000, output_fields=["*"])
        found: Rows = {}
        while batch := batches.next():
            found |= {entity[KEY]: dict(entity) for entity in batch}
        batches.close()
        return {key: without_nulls(row) for key, row in found.items()}
    finally:
        client.close()
        server_manager_instance.release_server(address)


@contextmanager
def search_engine(kind: str, _folder: Path) -> Iterator[ServedStore]:
    """The stand-in of a search engine; see `search_engine_server.py`."""
    with search_engine_server(kind, user="ada:let me in") as (address, state):
        target = Target(kind, address, COLLECTION, user="ada", secret="let me in")

        def rows(name: str) -> Rows:
            found = state.index(name).visible.values()
            return {row[KEY]: without_nulls(row) for row in found}

        yield ServedStore(target, rows, state)


def without_nulls(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def unit(vector: Any) -> np.ndarray:
    """A vector of unit length, as Qdrant keeps them under cosine."""
    array = np.asarray(vector, np.float64)
    return array / np.linalg.norm(array)


SERVED: Mapping[str, Callable[[Path], AbstractContextManager[ServedStore]]] = {
    "qdrant": qdrant,
    "qdrant_folder": qdrant_folder,
    "milvus": milvus,
    "milvus_file": milvus_file,
    "opensearch": partial(search_engine, "opensearch"),
    "elasticsearch": partial(search_engine, "elasticsearch"),
}
