"""The stages: how each is called, and what it has made when it is done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from corpus_factory import small_config

from pipelines.settings import Config
from pipelines.vectors.index import INDEX_FOLDER

PREPARED, RUN, EMBEDDED, SERVED = "prepared", "run", "embedded", "served"
"""Folders on the disk of a cell."""
PART_ROWS = 60
QUERY = "read a line from the file"
ROW = "\N{BOX DRAWINGS LIGHT VERTICAL}"
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@dataclass(frozen=True)
class Stage:
    """A command of the command line.

    Attributes:
        arguments: Of the command line, the verb first.
        needs: Folders that must be there, made by the stages before.
        result: What it has made, by the folder of its disk and what it said, as plain values.
        tasks: Whether Spark's executors work for it.
        makes: Names of what it makes in folders that it needs, which a cell begins without.
    """

    arguments: Sequence[str]
    needs: Sequence[str]
    result: Callable[[Path, str], object]
    tasks: bool = True
    makes: Sequence[str] = ()


def settings_of(disk: Path, texts: Path) -> Config:
    """The settings of all stages; what they read and write is on the disk, but for the texts."""
    config = small_config(disk / PREPARED, max_steps=20, framework="torch", engine="local")
    section = {
        "corpus": {"inputs": (str(texts),)},
        "run": {"folder": str(disk / RUN)},
        "embedding": {
            "inputs": (str(texts),),
            "format": "jsonl",
            # A table remembers where its model was, which is another place here.
            "model": str(disk / RUN / "model"),
            "output": str(disk / EMBEDDED),
            "part_rows": PART_ROWS,
        },
        "promotion": {"target": str(disk / SERVED)},
    }
    changed = {
        name: getattr(config, name).model_copy(update=values) for name, values in section.items()
    }
    return config.model_copy(update=changed)


def _lanes(disk: Path, _: str) -> object:
    """The digest of all granules."""
    files = sorted((disk / PREPARED / "lanes").rglob("*.arrow"))
    return [hashlib.sha256(one.read_bytes()).hexdigest() for one in files]


def _figures(disk: Path, _: str) -> object:
    figures = json.loads((disk / RUN / "metrics.json").read_text())
    return {name: figures[name] for name in ("before", "after")}


def _vectors(disk: Path, _: str) -> object:
    table = pq.read_table(disk / EMBEDDED, columns=["text", "embedding"]).sort_by("text")
    return [table["text"].to_pylist(), table["embedding"].to_pylist()]


def _hits(_: Path, said: str) -> object:
    """The rows of the table that is printed."""
    return [line for line in said.splitlines() if line.startswith(ROW)]


def _served(disk: Path, _: str) -> object:
    model = disk / SERVED / "current" / "model.safetensors"
    return hashlib.sha256(model.read_bytes()).hexdigest()


STAGES = {
    "prepare": Stage(("prepare",), (), _lanes),
    "evaluate": Stage(("evaluate",), (PREPARED, RUN), _figures),
    "embed": Stage(("embed",), (RUN,), _vectors),
    "search": Stage(
        ("search", "--query", QUERY, "--index", "-k", "3"),
        (RUN, EMBEDDED),
        _hits,
        makes=(INDEX_FOLDER,),
    ),
    "promote": Stage(("promote",), (PREPARED, RUN), _served, tasks=False),
}
"""In the order in which they need one another."""


def is_same(one: object, other: object) -> bool:
    """Whether two results are the same, numbers within what the order of sums changes."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.isclose(one, other, **CLOSE))
    return one == other
