"""Every store of the catalog for the tests of publishing, each with a reader that is not ours."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from server_stores import COLLECTION, KEY, SERVED, VECTOR, Rows, ServedStore, without_nulls

from pipelines.publishing.store import Target


@contextmanager
def lance(folder: Path) -> Iterator[ServedStore]:
    """LanceDB in a folder."""
    target = Target("lancedb", str(folder / "lance"), COLLECTION)
    yield ServedStore(target, partial(rows_of_lance, target.address))


def rows_of_lance(address: str, name: str) -> Rows:
    import lancedb

    rows = lancedb.connect(address).open_table(name).search().to_list()
    assert len({row[KEY] for row in rows}) == len(rows), "a key is there twice"
    return {row[KEY]: without_nulls(row) for row in rows}


@cache
def postgres_server() -> Any:
    """A PostgreSQL with pgvector for all tests of this process; it ends with the process."""
    import atexit

    import pgserver

    folder = Path(tempfile.mkdtemp(prefix="pg"))
    server = pgserver.get_server(folder, cleanup_mode="stop")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return server


@contextmanager
def postgres(_folder: Path) -> Iterator[ServedStore]:
    """A database of a PostgreSQL server."""
    import psycopg

    server, name = postgres_server(), f"d{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        address = server.get_uri(name)
        yield ServedStore(Target("pgvector", address, COLLECTION), partial(rows_of, address))
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def rows_of(address: str, name: str) -> Rows:
    import psycopg
    from pgvector.psycopg import register_vector

    with psycopg.connect(address) as connection:
        register_vector(connection)
        cursor = connection.execute(f'SELECT * FROM "{name}"')
        names = [column.name for column in cursor.description or ()]
        rows = [dict(zip(names, row, strict=True)) for row in cursor]
    found = {row[KEY]: without_nulls(row) for row in rows}
    return {key: {**row, VECTOR: row[VECTOR].to_numpy()} for key, row in found.items()}


STORES: Mapping[str, Callable[[Path], AbstractContextManager[ServedStore]]] = {
    "lancedb": lance,
    "pgvector": postgres,
    **SERVED,
}
"""By the name of a store, or a form of it."""
