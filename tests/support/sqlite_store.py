"""A store of vectors in one file: what a new store has to do, on the standard library's SQLite."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping

import pyarrow as pa

from pipelines.errors import InputError
from pipelines.publishing.store import (
    ADDRESS,
    Layout,
    StoreKind,
    Target,
    payload_of,
    vectors_of,
)

TABLES = """
    CREATE TABLE IF NOT EXISTS states (name TEXT PRIMARY KEY, state TEXT);
    CREATE TABLE IF NOT EXISTS aliases (alias TEXT PRIMARY KEY, name TEXT);
    CREATE TABLE IF NOT EXISTS vectors (name TEXT, key, vector BLOB, payload TEXT,
                                        PRIMARY KEY (name, key));
"""


class SqliteStore:
    def __init__(self, target: Target) -> None:
        self._alias = target.collection
        self._database = sqlite3.connect(
            target.address, timeout=target.timeout, isolation_level=None
        )
        self._database.executescript(TABLES)

    def collections(self) -> Mapping[str, str | None]:
        found = self._database.execute("SELECT name, state FROM states").fetchall()
        return {
            name: state
            for name, state in found
            if name == self._alias or name.startswith(f"{self._alias}_")
        }

    def current(self) -> str | None:
        found = self._database.execute("SELECT name FROM aliases WHERE alias = ?", [self._alias])
        name = found.fetchone()
        return None if name is None else str(name[0])

    def create(self, name: str, layout: Layout, state: str) -> None:
        self._database.execute("INSERT INTO states VALUES (?, ?)", [name, state])

    def write_state(self, name: str, state: str) -> None:
        self._database.execute("UPDATE states SET state = ? WHERE name = ?", [state, name])

    def upsert(
        self, name: str, layout: Layout, rows: pa.RecordBatch, *, may_exist: bool = True
    ) -> None:
        keys, vectors = rows.column(0).to_pylist(), vectors_of(layout, rows)
        payloads = map(json.dumps, payload_of(rows))
        found = zip(keys, map(bytes, vectors), payloads, strict=True)
        insert = "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)"
        self._database.execute("BEGIN IMMEDIATE")
        self._database.executemany(insert, ((name, *row) for row in found))
        self._database.execute("COMMIT")

    def delete(self, name: str, layout: Layout, keys: pa.Array) -> None:
        named = [(name, key) for key in keys.to_pylist()]
        self._database.executemany("DELETE FROM vectors WHERE name = ? AND key = ?", named)

    def finish(self, name: str, layout: Layout) -> None:
        self._database.execute("ANALYZE")

    def count(self, name: str) -> int:
        found = self._database.execute("SELECT count(*) FROM vectors WHERE name = ?", [name])
        return int(found.fetchone()[0])

    def switch(self, name: str) -> None:
        self._database.execute("INSERT OR REPLACE INTO aliases VALUES (?, ?)", [self._alias, name])

    def drop(self, name: str) -> None:
        self._database.execute("DELETE FROM states WHERE name = ?", [name])
        self._database.execute("DELETE FROM vectors WHERE name = ?", [name])

    def close(self) -> None:
        self._database.close()


def _is_temporary(error: Exception) -> bool:
    return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)


def _refusal(error: Exception, target: Target) -> InputError | None:
    if isinstance(error, sqlite3.OperationalError) and "unable to open" in str(error):
        problem = f"{target.address} cannot be opened ({error})"
        return InputError(ADDRESS, problem, "Name a file in a folder that exists")
    return None


STORE = StoreKind(open=SqliteStore, is_temporary=_is_temporary, refusal=_refusal)
