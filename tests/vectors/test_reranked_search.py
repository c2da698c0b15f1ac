"""Search whose best rows a cross-encoder ranks again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sentence_transformers import CrossEncoder
from tiny_rerankers import write_reranker

import pipelines
from pipelines.cli import main
from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.models.inference.embedder import load_embedder
from pipelines.models.rerankers.folder import read_reranker
from pipelines.settings import Config
from pipelines.vectors.embedding import vector_array
from pipelines.vectors.nearest import rank_fusion
from pipelines.vectors.search import Hit, reranked
from pipelines.vectors.table_job import MANIFEST_FILE


@pytest.fixture(scope="module")
def reranker(tmp_path_factory) -> Path:
    return write_reranker(tmp_path_factory.mktemp("reranker") / "bert", "bert")


@pytest.fixture
def table(small_model, lines, tmp_path) -> Path:
    """As an embedding job leaves it."""
    folder = tmp_path / "table"
    folder.mkdir()
    column = vector_array(load_embedder(small_model)(lines), np.ones(len(lines), bool))
    pq.write_table(pa.table({"text": lines, "embedding": column}), folder / "part-0.parquet")
    known = {"text_column": "text", "vector_column": "embedding", "model": str(small_model)}
    storage.write_json(folder / MANIFEST_FILE, known)
    return folder


def config_of(table: Path, model: Path) -> Config:
    return Config().changed("embedding", output=str(table), model=str(model))


def test_the_best_rows_of_a_cross_encoder_are_first(table, small_model, lines, reranker):
    config, queries = config_of(table, small_model), [lines[4], lines[17]]
    nearest = pipelines.search(config, queries, 30)
    found = pipelines.search(config, queries, 5, rerank=str(reranker), depth=30)
    theirs = CrossEncoder(str(reranker), device="cpu")
    for number, query in enumerate(queries):
        texts = [hit.text for hit in nearest if hit.query == number]
        scores = theirs.predict([(query, text) for text in texts])
        best = np.argsort(-scores, kind="stable")[:5]
        hits = [hit for hit in found if hit.query == number]
        assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
        np.testing.assert_allclose([hit.score for hit in hits], scores[best], atol=1e-2)
        assert {hit.text for hit in hits} <= set(texts)
    # In fp32 they would be equal; the first rows here differ by more than bf16 rounds.
    assert [hit.text for hit in found] != [hit.text for hit in nearest if hit.rank <= 5]


def test_its_ranking_may_be_fused_with_the_one_before_it(table, small_model, lines, reranker):
    config, query = config_of(table, small_model), lines[4]
    first = [hit.position for hit in pipelines.search(config, [query], 30)]
    asked = {"rerank": str(reranker), "depth": 30}
    again = [hit.position for hit in pipelines.search(config, [query], 30, **asked)]
    found = pipelines.search(config, [query], 5, **asked, share=0.3)
    assert [hit.position for hit in found] == rank_fusion(first, again, 0.3)[:5]
    assert [hit.rank for hit in found] == [1, 2, 3, 4, 5]
    assert all(hit.score is not None for hit in found)


def test_rows_without_a_text_come_last_and_equal_ones_keep_their_order(reranker):
    hits = [
        Hit(0, 1, 0.9, 7, None),
        Hit(0, 2, 0.8, 3, "ten words"),
        Hit(0, 3, 0.7, 9, "ten words"),
        Hit(1, 1, 0.9, 7, None),
    ]
    found = reranked(hits, ["the model", "a text"], read_reranker(reranker, "--rerank"), 3)
    assert [(hit.query, hit.rank, hit.position) for hit in found] == [
        *((0, 1, 3), (0, 2, 9), (0, 3, 7)),
        (1, 1, 7),
    ]
    assert found[0].score == found[1].score
    assert found[2].score is None


def test_the_command_shows_the_scores(table, small_model, lines, reranker, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    given = ["--set", f"embedding.output={table}", "--set", f"embedding.model={small_model}"]
    command = ["search", "--query", lines[4], "-k", "3", "--rerank", str(reranker), *given]
    assert main(command) == 0
    told = capsys.readouterr().out
    assert "score" in told
    assert "cosine" in told


def test_what_cannot_be_ranked_again_is_refused(table, small_model, lines, tmp_path, reranker):
    config = config_of(table, small_model)
    with pytest.raises(InputError, match=r"^--share: no --rerank names a cross-encoder\. Leave it"):
        pipelines.search(config, lines[:1], 3, share=0.3)
    with pytest.raises(InputError, match=r"^--share: 0 is no share\. Name a number above 0"):
        pipelines.search(config, lines[:1], 3, rerank=str(reranker), share=0)
    with pytest.raises(InputError, match=r"^--rerank: there is no folder /nowhere"):
        pipelines.search(config, lines[:1], 3, rerank="/nowhere")
    with pytest.raises(InputError, match=r"^--rerank: .* holds BertModel"):
        pipelines.search(config, lines[:1], 3, rerank=str(small_model))
    storage.write_json(table / MANIFEST_FILE, {"vector_column": "embedding"})
    with pytest.raises(InputError, match=r"column of texts, which --rerank reads\. Search it"):
        pipelines.search(config, lines[:1], 3, rerank=str(reranker))
