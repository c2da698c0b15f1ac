"""A Router asks tables of its documents' model, whichever folder made them, and no others."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from routers import write_pair
from tiny_checkpoints import edit

from pipelines.errors import InputError
from pipelines.models.inference.embedder import load_embedder
from pipelines.vectors.embedding import embedding_options, vector_array
from pipelines.vectors.search import embed_queries, find_texts
from pipelines.vectors.store import open_table

ASKED = ["what does the parser do", "a"]


@pytest.fixture(scope="module")
def pair(small_model, tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("pair"), small_model)


@pytest.fixture
def table(pair, lines, tmp_path):
    """As an embedding job leaves it, of the model of documents."""
    return table_of(pair.documents, lines, tmp_path / "table")


def table_of(model, lines, folder, prompt="document"):
    folder.mkdir()
    column = vector_array(load_embedder(model)(lines, prompt), np.ones(len(lines), bool))
    pq.write_table(pa.table({"text": lines, "embedding": column}), folder / "part-0.parquet")
    options = embedding_options(model, prompt_name=prompt)
    return replace(
        open_table(folder),
        text="text",
        model=str(model),
        model_sha256=options.made_by,
        prompt_name=prompt,
        precision="fp32",
    )


def test_a_table_of_either_folder_is_asked_by_the_model_of_queries(pair, table, lines, tmp_path):
    by_router = table_of(pair.router, lines, tmp_path / "by-router")
    assert by_router.model_sha256 == table.model_sha256
    expected = load_embedder(pair.queries).queries(ASKED)
    for asked in (table, by_router):
        found = embed_queries(asked, ASKED, model=pair.router)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    hits = find_texts(table, lines[4:5], 1, model=pair.router)
    assert [hit.position for hit in hits] == [4]
    # The table's own model still asks it, too.
    own = load_embedder(pair.documents).queries(ASKED)
    np.testing.assert_allclose(
        embed_queries(by_router, ASKED, model=pair.documents), own, atol=1e-5
    )


def test_a_search_does_not_load_the_model_of_documents(pair, table, tmp_path, monkeypatch):
    read = []

    def load(folder, **options):
        made = load_embedder(folder, **options)
        read.append(made)
        return made

    monkeypatch.setattr("pipelines.vectors.search.load_embedder", load)
    embed_queries(table, ASKED, model=pair.router)
    assert [*read[0]._loaded] == ["query"]


def test_tables_of_other_vectors_are_refused(pair, table, lines, tmp_path):
    refused = r"^embedding\.model: .* was made with another model than "
    of_queries = table_of(pair.queries, lines, tmp_path / "of-queries")
    # Its vectors are of queries, by the model of documents.
    as_queries = table_of(pair.documents, lines, tmp_path / "as-queries", "query")
    router = shutil.copytree(pair.router, tmp_path / "router")
    for other in (of_queries, as_queries):
        with pytest.raises(InputError, match=refused):
            embed_queries(other, ASKED, model=router)
    # Another prompt before documents, and the record of the export no longer holds.
    prompts = {"query": "ask: ", "document": "other: "}
    edit(router / "config_sentence_transformers.json", prompts=prompts)
    with pytest.raises(InputError, match=refused):
        embed_queries(table, ASKED, model=router)
    with pytest.raises(InputError, match=refused):
        embed_queries(table, ASKED, model=pair.queries)
