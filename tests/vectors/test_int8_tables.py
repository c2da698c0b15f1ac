"""Tables made with int8 matrix products: calibrated once, accepted by neighbours, and kept so."""

from __future__ import annotations

import json
import logging
import re
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from measured_sets import write_set

from pipelines.errors import InputError
from pipelines.jobs.embed import judge_int8
from pipelines.models.folder import read_encoder, write_encoder
from pipelines.models.inference.embedder import load_embedder
from pipelines.models.inference.processor import multiplies_in_int8
from pipelines.vectors.embed import EmbeddingJob, embed_table
from pipelines.vectors.embedding import refuse_int8, vectors_of
from pipelines.vectors.int8 import (
    CALIBRATION_FILE,
    SAMPLE_TEXTS,
    Int8Form,
    check_judged,
    check_kept,
    compared,
    sample_texts,
)
from pipelines.vectors.nearest import unit_length
from pipelines.vectors.parts import RowRange
from pipelines.vectors.table_job import MANIFEST_FILE

pytest.importorskip("openvino")
PRODUCTS = {(32, 32), (64, 32), (32, 64)}
with_instructions = pytest.mark.skipif(
    not multiplies_in_int8(), reason="this processor has no instructions for int8"
)


def manifest_of(folder):
    return json.loads((folder / MANIFEST_FILE).read_text())


def by_id(folder) -> dict[int, list[float]]:
    table = pq.read_table(folder)
    return dict(zip(table["id"].to_pylist(), table["embedding"].to_pylist(), strict=True))


@pytest.fixture
def model(small_model, tmp_path) -> Path:
    """The small encoder with larger products: of small ones int8 changes next to nothing."""
    spec, weights = read_encoder(small_model)
    larger = {
        name: value * np.float32(20 if value.shape in PRODUCTS else 1)
        for name, value in weights.items()
    }
    write_encoder(tmp_path / "model", spec, larger, small_model, "")
    return tmp_path / "model"


@with_instructions
def test_a_table_keeps_its_calibration(spark, job, lines, model, tmp_path, caplog) -> None:
    caplog.set_level(logging.INFO, "pipelines")
    source, output = tmp_path / "texts.parquet", tmp_path / "table"
    pq.write_table(pa.table({"id": range(280), "text": lines[:280]}), source)
    known = {"model": str(model), "inputs": [str(source)], "key_column": "id"}
    documents = {f"d{number}": ("", line) for number, line in enumerate(lines[:40])}
    queries = {f"q{number}": lines[number].lower() for number in range(0, 40, 4)}
    judgements = [(query, f"d{query[1:]}", 1) for query in queries]
    judged = write_set(tmp_path / "judged", documents, queries, judgements)
    asked = job(**known, precision="int8", part_rows=70)
    asked = asked.changed("evaluation", retrieval_sets=(str(judged),))
    with EmbeddingJob.of(asked).working():
        made = EmbeddingJob.of(asked).run(spark, partial(judge_int8, spark, asked))
    manifest = manifest_of(output)
    assert (manifest["precision"], manifest["type"], manifest["backend"]) == (
        *("int8", "float32", "openvino"),
    )
    assert manifest["int8"]["texts"] == 140
    assert manifest["int8"]["ndcg"] == {"judged": {"fp32": 100, "int8": 100}}
    assert f"embedding: {made.int8}" in caplog.text
    content = (output / CALIBRATION_FILE).read_bytes()

    # Executors compute what this process does, in batches of other texts.
    here = load_embedder(model, precision="int8", calibration=content)
    vectors = vectors_of(pq.read_table(output).sort_by("id")["embedding"])
    np.testing.assert_allclose(vectors[::4], here(lines[:280:4]), atol=1e-4)

    # `auto` goes on in the table's form, with other texts and the same calibration.
    before = by_id(output)
    changed = [f"{lines[0]} again", *lines[1:300]]
    pq.write_table(pa.table({"id": range(300), "text": changed}), source)
    summary = embed_table(spark, job(**known, precision="auto", part_rows=70))
    assert summary.embedded == 21
    assert manifest_of(output)["int8"] == manifest["int8"]
    assert (output / CALIBRATION_FILE).read_bytes() == content
    after = by_id(output)
    assert all(after[key] == before[key] for key in range(1, 280))
    np.testing.assert_allclose(after[0], here(changed[:1])[0], atol=1e-4)

    # Another precision makes every vector again.
    caplog.clear()
    pq.write_table(pa.table({"id": range(20), "text": changed[:20]}), source)
    summary = embed_table(spark, job(**known, precision="fp32", part_rows=70))
    assert summary.embedded == 20
    assert "embedding.precision has changed" in caplog.text
    assert manifest_of(output)["int8"] is None
    assert not (output / CALIBRATION_FILE).exists()
    exact = by_id(output)
    cosines = [float(np.dot(before[key], exact[key])) for key in range(1, 20)]
    assert 0.98 < min(cosines) < 0.99999


@with_instructions
def test_few_texts_are_refused_before_embedding(spark, job, lines, tmp_path) -> None:
    source = tmp_path / "few.parquet"
    pq.write_table(pa.table({"text": lines[:150]}), source)
    with pytest.raises(
        InputError, match=r"^embedding.precision: 1[45]\d different texts are too few"
    ):
        embed_table(spark, job(inputs=[str(source)], precision="int8"))
    assert not (tmp_path / "table").exists()


def test_the_sample_is_spread_and_always_the_same(tmp_path) -> None:
    parts = []
    for number, rows in enumerate((1000, 10, 5000)):
        path = tmp_path / f"{number}.parquet"
        texts = [f"text {number} {row}" for row in range(rows)]
        pq.write_table(pa.table({"text": [*texts[:-1], None]}), path, row_group_size=300)
        parts += [RowRange(f"a{number}", path, 0, rows // 2), RowRange("b", path, rows // 2, rows)]
    found = sample_texts(parts, "text")
    assert found == sample_texts(parts, "text")
    assert SAMPLE_TEXTS * 0.95 < len(found) <= SAMPLE_TEXTS
    files = [text.split()[1] for text in found]
    assert files.count("2") > 4 * files.count("0") > 0
    (only,) = sample_texts([RowRange("p", tmp_path / "1.parquet", 3, 4)], "text")
    assert only == "text 1 3"


def test_neighbours_and_ndcg_decide() -> None:
    vectors = unit_length(np.random.default_rng(1).normal(size=(150, 16)))
    same = compared(vectors, vectors, "digest")
    assert (same.neighbours_kept, same.lists_changed, same.least_cosine) == (1, 0, 1)
    check_kept(same)
    noise = np.random.default_rng(2).normal(size=vectors.shape)
    other = compared(vectors, unit_length(vectors + 0.3 * noise), "digest")
    assert other.lists_changed > 0.9
    with pytest.raises(InputError, match=r"`int8` keeps [\d.]+% of the 10 nearest .* than 90%"):
        check_kept(other)
    check_judged({"set": {"fp32": 40.0, "int8": 39.81}})
    with pytest.raises(InputError, match=re.escape("nDCG@10 of b from 40.00 to 39.79, more")):
        check_judged({"a": {"fp32": 1.0, "int8": 2.0}, "b": {"fp32": 40.0, "int8": 39.79}})
    told = str(Int8Form("x", 512, 0.95, 0.5, 0.998, 0.99, {"cacm": {"fp32": 40, "int8": 39.9}}))
    assert told.startswith("int8 keeps 95.0% of the 10 nearest of 512 texts, and changes 50.0% of")
    assert told.endswith("; nDCG@10 of cacm 39.90, in fp32 40.00")


def test_only_tables_of_embed_are_made_in_int8() -> None:
    refuse_int8("bf16", "mine")
    with pytest.raises(InputError, match=r"^embedding.precision: .* not by mine\. Choose one of"):
        refuse_int8("int8", "mine")
