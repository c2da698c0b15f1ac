"""Negatives come from what one training has left, and are what the next one begins with."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from mining_cases import bytes_of, rows_of

import pipelines
from pipelines.corpus.stage import prepare_corpus
from pipelines.files.locations import location
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.files.versions import current, put_file
from pipelines.settings.load import parse


def test_prepared_pairs_become_triplets(spark, prepared, small_model, tmp_path) -> None:
    output = tmp_path / "mined"
    config = parse(
        {
            "prepared": {"folder": str(prepared)},
            "mining": {"model": str(small_model), "output": str(output)},
            "embedding": {"precision": "fp32"},
        }
    )
    summary = pipelines.mine(config)
    pairs = pq.read_table(PreparedFolder.of(config).corpus.pairs).to_pylist()
    assert summary.read == len(pairs) == summary.rows + summary.repeated + summary.short
    assert summary.of_own_group == 0.0
    group_of = {(pair["anchor"], pair["positive"]): pair["group"] for pair in pairs}
    of_text: dict[str, set[int]] = {}
    for pair in pairs:
        of_text.setdefault(pair["positive"], set()).add(pair["group"])
    for row in rows_of(output):
        assert row["group"] == group_of[row["anchor"], row["positive"]]
        assert row["group"] not in of_text[row["negative_0"]]
    triplets = parse(
        {
            "corpus": {
                "inputs": [str(output)],
                "format": "parquet",
                "pairs": "triplets",
                "triplet_columns": ["anchor", "positive", "negative_0"],
                "group_column": "group",
                "evaluation_share": 0.0,
            },
            "prepared": {"folder": str(tmp_path / "prepared")},
        }
    )
    prepare_corpus(spark, triplets)
    examples = pq.read_table(PreparedFolder.of(triplets).corpus.pairs).to_pylist()
    assert len(examples) > 0.8 * summary.rows
    mined = {(row["anchor"], row["positive"], row["negative_0"]) for row in rows_of(output)}
    assert {(one["anchor"], one["positive"], *one["negatives"]) for one in examples} <= mined


def test_pairs_and_negatives_lie_in_a_store(
    mined, mining_job, pair_file, s3_bucket, tmp_path
) -> None:
    put_file(pair_file, s3_bucket.root / "lake" / "pairs.parquet")
    places = {
        "inputs": [f"{s3_bucket.address}/lake"],
        "output": f"{s3_bucket.address}/mined",
    }
    stores = s3_bucket.options.model_copy(update={"cache_folder": str(tmp_path / "cache")})
    config = mining_job(**places).model_copy(update={"storage": stores})
    summary = pipelines.mine(config)
    folder = current(location(config.mining.output, stores))
    assert summary.folder == str(folder)
    files = {file.name: file.read_bytes() for file in folder.glob("part-*.parquet")}
    assert files == bytes_of(mined.folder)
    names = {path.name for path in folder.iterdir()} - set(files)
    assert names == {"_manifest.json", "_mining.json"}
    assert pipelines.mine(config).searched == 0


@pytest.mark.matrix
def test_an_index_of_documents_lies_in_a_store(spark, mining_job, s3_bucket, tmp_path) -> None:
    stores = s3_bucket.options.model_copy(update={"cache_folder": str(tmp_path / "cache")})
    config = mining_job(output=f"{s3_bucket.address}/mined", search="index")
    assert pipelines.mine(config.model_copy(update={"storage": stores})).searched == 242
