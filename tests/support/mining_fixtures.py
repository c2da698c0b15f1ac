"""A table of pairs, and jobs that search their negatives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipelines
from pipelines.settings import Config
from pipelines.settings.load import parse
from pipelines.vectors.mine import MiningSummary


@pytest.fixture(scope="session")
def pair_file(lines, tmp_path_factory) -> Path:
    """Pairs of neighbouring lines in two groups of three; some repeated, some without text.

    Anchors are documents, too, and one anchor has two positives.
    """
    rows = [
        {"id": number, "q": lines[number], "a": lines[number + 1], "topic": f"t{number // 3}"}
        for number in range(0, 240, 1)
    ]
    rows.append({"id": 900, "q": lines[0], "a": lines[100], "topic": "t0"})
    rows += [{**rows[5], "id": 901}, {**rows[6], "id": 902, "a": None}, {**rows[7], "q": "  "}]
    path = tmp_path_factory.mktemp("pairs") / "pairs.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def configured(**settings) -> Config:
    """A job in files of some 80 rows."""
    known = {
        "anchor_column": "q",
        "positive_column": "a",
        "group_column": "topic",
        "key_column": "id",
        "part_rows": 90,
        "negatives": 2,
    }
    return parse({"mining": known | settings, "embedding": {"precision": "fp32"}})


@pytest.fixture
def mining_job(small_model, pair_file, tmp_path) -> Callable[..., Config]:
    """Makes the configuration of a job."""
    places = {"model": small_model, "output": tmp_path / "mined"}
    known = {name: str(path) for name, path in places.items()} | {"inputs": [str(pair_file)]}
    return lambda **settings: configured(**known | settings)


@pytest.fixture(scope="session")
def mined(spark, small_model, pair_file, tmp_path_factory) -> MiningSummary:
    """What such a job has made."""
    folder = tmp_path_factory.mktemp("of-all") / "mined"
    inputs = [str(pair_file)]
    return pipelines.mine(configured(model=str(small_model), inputs=inputs, output=str(folder)))
