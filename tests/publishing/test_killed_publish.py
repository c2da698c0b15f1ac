"""A publishing job that is killed at any moment goes on, and the store ends equal to the table."""

from __future__ import annotations

import importlib
import os
import random
import signal
import threading
from dataclasses import replace

import pytest
from forks import forks
from publish_stores import STORES
from test_publish import OTHER_MODEL, config_of, rows_of, same
from vector_tables import VectorTables

import pipelines
from pipelines.catalog import STORES as KINDS
from pipelines.publishing import publish as job

pytestmark = pytest.mark.slow

KILLS = 3
MOST_KILLS = 10


class Dying:
    """A store that kills its process in the call of a number, or a moment later."""

    calls = 0

    def __init__(self, store, last: int, seconds: float) -> None:
        self._store = store
        self._last = last
        self._seconds = seconds

    def __getattr__(self, name: str):
        attribute = getattr(self._store, name)

        def call(*arguments, **options):
            Dying.calls += 1
            if Dying.calls == self._last:
                threading.Timer(self._seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
            return attribute(*arguments, **options)

        return call


def publish_and_die(config, name: str, secret: str | None, last: int, seconds: float) -> None:
    """Publishes in rounds of a part each, unless it dies before the end; runs in a child."""
    job.TASK_ROWS = 1
    os.environ["PUBLISH_PASSWORD"] = secret or ""
    module, _, attribute = KINDS.entries[name].partition(":")
    kind = getattr(importlib.import_module(module), attribute)
    dying = replace(kind, open=lambda target: Dying(kind.open(target), last, seconds))
    setattr(importlib.import_module(module), attribute, dying)
    pipelines.publish(config)


def killed(served, table: VectorTables, drawn: random.Random, kills: int) -> None:
    """Kills so many jobs; the table changes before some of them, and after each that has ended."""
    target, killed = served.target, 0
    with forks() as exit_code:
        for _ in range(5 * kills):
            config = config_of(served, table, connections=1, batch_rows=7)
            last, seconds = drawn.randrange(1, 45), drawn.choice([0.0, 0.0, 0.002, 0.02])
            code = exit_code(publish_and_die, config, target.store, target.secret, last, seconds)
            assert code in (0, -signal.SIGKILL)
            killed += code != 0
            if killed == kills:
                return
            if code == 0 or drawn.random() < 0.3:
                next_version(table, drawn)
    raise AssertionError(f"{killed} of {kills} jobs were killed")


def next_version(table: VectorTables, drawn: random.Random) -> None:
    """Changes, removes and adds some rows, with another model now and then."""
    rows = [row for row in table.rows.values() if drawn.random() > 0.1]
    texts = (None, "changed", f"text {drawn.random()}")
    rows = [{**row, "text": drawn.choice(texts)} if drawn.random() < 0.2 else row for row in rows]
    first = 1000 * (table.version + 2)
    rows += [{**row, "id": first + row["id"]} for row in rows_of(20, "new")]
    model = OTHER_MODEL if drawn.random() < 0.3 else None
    table.write(rows, part_rows=20, model=model)


def check(name: str, folder, kills: int, monkeypatch) -> None:
    drawn = random.Random(f"{name} {kills}")
    with STORES[name](folder) as served:
        monkeypatch.setenv("PUBLISH_PASSWORD", served.target.secret or "")
        monkeypatch.setattr(job, "TASK_ROWS", 1)
        table = VectorTables(folder / "embedded")
        table.write(rows_of(200), part_rows=20)
        killed(served, table, drawn, kills)
        pipelines.publish(config_of(served, table, connections=1))
        same(served, table)


@pytest.mark.parametrize("name", ["lancedb", "pgvector"])
def test_a_store_survives_kills(name, tmp_path, monkeypatch):
    check(name, tmp_path, KILLS, monkeypatch)


@pytest.mark.matrix
@pytest.mark.parametrize("name", STORES)
def test_each_store_survives_ten_kills(name, tmp_path, monkeypatch):
    check(name, tmp_path, MOST_KILLS, monkeypatch)
