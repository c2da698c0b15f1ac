"""What a model gave for each item of a set: what figures, and intervals of differences, are of."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.files import storage
from pipelines.files.locations import Location, arrow_source


@dataclass(frozen=True, eq=False)
class Observations:
    """Numbers of a model for each item of a set.

    Attributes:
        items: [items], int64: query ids, or hashes of pairs of texts; in an order that is the same
            for all models.
        values: By name, [items], float64: figures of each query times 100, or the cosine and the
            number of each pair.
        groups: [items], int64: equal for items that gain and lose together, such as the queries of
            one package or thread; None where each item is its own.
    """

    items: np.ndarray
    values: Mapping[str, np.ndarray]
    groups: np.ndarray | None = None


class Observed(Protocol):
    """What was observed of a model on a set."""

    @property
    def observations(self) -> Observations:
        """Item by item."""
        ...


_COLUMNS = ("set", "name", "item", "value")
GROUP = "group"
"""A column that tables of earlier releases lack; null where an item is its own."""


def write_observations(path: Location, by_set: Mapping[str, Observations]) -> None:
    """Writes observations as Parquet.

    Columns are `set` and `name` (strings), `item` (int64), `value` (double) and `group` (int64).

    Args:
        path: The file, which is there whole or not at all.
        by_set: By the names of the sets.
    """
    tables = [
        pa.table(
            {
                "set": pa.array([name] * len(found.items), pa.string()),
                "name": pa.array([value] * len(found.items), pa.string()),
                "item": pa.array(found.items, pa.int64()),
                "value": pa.array(numbers, pa.float64()),
                GROUP: _groups(found),
            }
        )
        for name, found in by_set.items()
        for value, numbers in found.values.items()
    ]
    empty = pa.table(dict.fromkeys(_COLUMNS[:2], pa.array([], pa.string())))
    with storage.built_file(path) as aside:
        pq.write_table(pa.concat_tables(tables) if tables else empty, aside, compression="zstd")


def _groups(found: Observations) -> pa.Array:
    if found.groups is None:
        return pa.nulls(len(found.items), pa.int64())
    return pa.array(found.groups, pa.int64())


def digest_observations(path: Location) -> str | None:
    """SHA-256 of the file, by which figures and observations are known to be of one evaluation."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


def read_observations(path: Location) -> dict[str, Observations]:
    """What :func:`write_observations` wrote, by set; nothing where there is no file."""
    if not path.is_file():
        return {}
    table = pq.read_table(arrow_source(path))
    numbers: dict[str, dict[str, list[int]]] = {}
    if table.num_rows == 0:
        return {}
    sets, names = (table.column(name).to_pylist() for name in _COLUMNS[:2])
    for row, (of_set, name) in enumerate(zip(sets, names, strict=True)):
        numbers.setdefault(of_set, {}).setdefault(name, []).append(row)
    items, values = (table.column(name).to_numpy() for name in _COLUMNS[2:])
    groups = table.column(GROUP) if GROUP in table.column_names else None

    def groups_of(rows: list[int]) -> np.ndarray | None:
        told = None if groups is None else groups.take(rows)
        return None if told is None or told.null_count else told.to_numpy()

    return {
        of_set: Observations(
            items[next(iter(by_name.values()))],
            {name: values[rows] for name, rows in by_name.items()},
            groups_of(next(iter(by_name.values()))),
        )
        for of_set, by_name in numbers.items()
    }
