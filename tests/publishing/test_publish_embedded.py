"""Tables that `embed` has made, on a file system and in a bucket: a store follows each version."""

from __future__ import annotations

from pathlib import Path

import lancedb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from embedding_fixtures import small_model
from embedding_rounds import embed_here, write_lake

import pipelines
from pipelines.files import versions
from pipelines.files.locations import arrow_source
from pipelines.settings import Config
from pipelines.settings.load import parse
from pipelines.vectors.store import open_table

__all__ = ["small_model"]

pytestmark = pytest.mark.slow

VERSIONS = (
    {"a": [(1, "one"), (2, "two")], "b": [(3, "three"), (4, None)]},
    {"a": [(1, "one"), (2, "two")], "b": [(3, "3"), (4, None), (5, "new")]},
    {"a": [(1, "one"), (2, None)], "c": [(4, "four"), (6, "six")]},
)


@pytest.fixture
def settings(tmp_path, small_model):
    embedding = {
        "model": str(small_model),
        "precision": "fp32",
        "part_rows": 1,
        "key_column": "id",
        "inputs": [str(tmp_path / "lake")],
        "output": str(tmp_path / "vectors"),
    }
    publish = {"store": "lancedb", "address": str(tmp_path / "lance"), "collection": "texts"}
    return {"embedding": embedding, "publish": publish}


def follow(config: Config, lake: Path, put) -> None:
    for number, files in enumerate(VERSIONS):
        write_lake(lake, files)
        put()
        embed_here(config)
        made = pipelines.publish(config)
        assert made.version == number
        assert made.rows == same(config)
        if number:
            assert made.collection == "texts"
    made = pipelines.publish(config.changed("embedding", overwrite=True))
    assert str(made) == "nothing to write"


def same(config: Config) -> int:
    """The number of rows in the store, which are those of the table with a vector."""
    table = open_table(config.embedding.output, stores=config.storage)
    rows = pa.concat_tables([pq.read_table(arrow_source(file.path)) for file in table.files])
    expected = {row["id"]: row for row in rows.to_pylist() if row["embedding"] is not None}
    address = config.publish.address
    found = {
        row["id"]: row for row in lancedb.connect(address).open_table("texts").search().to_list()
    }
    assert {*found} == {*expected}
    for key, row in expected.items():
        assert found[key]["text"] == row["text"]
        np.testing.assert_array_equal(found[key]["embedding"], np.float32(row["embedding"]))
    return len(found)


def test_a_store_follows_embed(settings, tmp_path):
    follow(parse(settings), tmp_path / "lake", lambda: None)


def test_a_store_follows_a_table_in_a_bucket(settings, s3_bucket, tmp_path):
    lake = tmp_path / "lake"

    def put() -> None:
        there = s3_bucket.root / "lake"
        names = {file.name for file in lake.iterdir()}
        for file in there.glob("*.parquet") if there.is_dir() else ():
            if file.name not in names:
                file.unlink()
        for name in names:
            if (
                not (there / name).exists()
                or (there / name).read_bytes() != (lake / name).read_bytes()
            ):
                versions.put_file(lake / name, there / name)

    address = s3_bucket.address
    embedding = settings["embedding"] | {
        "inputs": [f"{address}/lake"],
        "output": f"{address}/vectors",
    }
    stores = s3_bucket.options.model_dump() | {"cache_folder": str(tmp_path / "cache")}
    follow(parse(settings | {"embedding": embedding, "storage": stores}), lake, put)


def test_another_model_of_embed_is_another_collection(settings, tmp_path, small_model):
    lake, config = tmp_path / "lake", parse(settings)
    write_lake(lake, VERSIONS[0])
    embed_here(config)
    pipelines.publish(config)
    narrow = config.changed("embedding", dimensions=8)
    embed_here(narrow)
    made = pipelines.publish(narrow)
    assert (made.upserted, made.rows) == (3, same(narrow))
    made_again = embed_here(config)
    assert made_again == 4
    assert pipelines.publish(config).rows == same(config)
