"""Search by words beside vectors: the same in this process and by executors."""

from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.cli import main
from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.models.inference.embedder import load_embedder
from pipelines.vectors import search as hybrid_module
from pipelines.vectors import search as text_search
from pipelines.vectors.bm25 import WordQueries, best_by_words, word_statistics
from pipelines.vectors.embedding import embedding_options, quantised, vector_array
from pipelines.vectors.exact import search_table
from pipelines.vectors.index import build_index
from pipelines.vectors.search import (
    find_texts,
    fits_in_process,
    fuse_with_words,
    search_words,
    text_bytes,
)
from pipelines.vectors.store import VectorTable, open_table

QUERIES = ["the help of an argument", "ArgumentParser", "zzz qqq", "", "a"]
FILES = 3


@pytest.fixture(scope="module")
def texts(lines) -> list[str | None]:
    """Some twice, so that there are ties; a null, an empty one and one without words."""
    return [*lines[:150], None, *lines[:40], "", "...", *lines[150:]]


@pytest.fixture(scope="module")
def table(small_model, texts, tmp_path_factory) -> VectorTable:
    """As an embedding job leaves it, in files of several row groups, with vectors of int8."""
    folder = tmp_path_factory.mktemp("hybrid")
    present = np.array([text is not None for text in texts])
    values, scales = quantised(
        load_embedder(small_model)([text for text in texts if text is not None])
    )
    spread = np.zeros(len(texts), np.float32)
    spread[present] = scales
    columns = {
        "text": texts,
        "embedding": vector_array(values, present),
        "embedding_scale": pa.array(spread, mask=~present),
        "id": [f"row-{number}" for number in range(len(texts))],
    }
    whole, size = pa.table(columns), -(-len(texts) // FILES)
    for number in range(FILES):
        part = whole.slice(number * size, size)
        pq.write_table(part, folder / f"part-{number}.parquet", row_group_size=50)
    manifest = {
        "vector_column": "embedding",
        "scale_column": "embedding_scale",
        "text_column": "text",
        "key_column": "id",
        "dimensions": values.shape[1],
        "model": str(small_model),
        "settings": {"embedding.model": embedding_options(small_model).model_sha256},
    }
    storage.write_json(folder / "_manifest.json", manifest)
    return open_table(folder)


def as_rows(found) -> list[tuple]:
    return list(
        zip(found.queries.tolist(), found.documents.tolist(), found.scores.tolist(), strict=True)
    )


def test_words_are_found_as_if_the_table_were_one_list(spark, table, texts) -> None:
    asked = WordQueries.of(QUERIES)
    known = [(text, number) for number, text in enumerate(texts) if text is not None]
    block = [text for text, _ in known], np.array([number for _, number in known])
    expected = best_by_words(asked, word_statistics(asked, block[0]), [block], 30)
    for session in (None, spark):
        assert as_rows(search_words(table, QUERIES, 30, session)) == as_rows(expected)
    assert {0, 1, 4} == set(expected.queries.tolist())
    # More than there are: all that share a word, and no others.
    everything = search_words(table, QUERIES[1:2], 10 * len(texts))
    having = [number for text, number in known if "argumentparser" in text.lower()]
    assert 0 < len(everything.documents) <= len(having)
    assert set(everything.documents.tolist()) <= set(having)


def test_both_rankings_are_fused_whoever_searches(spark, table, texts, monkeypatch) -> None:
    # Fewer than there are, so that some rows are in one of the rankings only.
    monkeypatch.setattr(hybrid_module, "FUSED_RANKS", 6)
    find = partial(find_texts, table, QUERIES, 5, hybrid=True)
    hits = find()
    assert find(session=spark) == hits
    nearest = find_texts(table, QUERIES, 6)
    near = {(hit.query, hit.position): hit.rank for hit in nearest}
    worded: dict[tuple[int, int], int] = {}
    sums: dict[int, dict[int, float]] = {query: {} for query in range(len(QUERIES))}
    for hit in nearest:
        sums[hit.query][hit.position] = hit.cosine
    lowest = {query: min(of_query.values()) for query, of_query in sums.items()}
    best_words: dict[int, float] = {}
    for query, position, score in as_rows(search_words(table, QUERIES, 6)):
        worded[query, position] = sum(key[0] == query for key in worded) + 1
        share = score / best_words.setdefault(query, score)
        sums[query][position] = sums[query].get(position, lowest[query]) + 0.1 * share
    for query, of_query in sums.items():
        best = sorted(of_query, key=lambda one: (-of_query[one], one))[:5]
        found = [hit for hit in hits if hit.query == query]
        assert [hit.position for hit in found] == best
        assert [hit.rank for hit in found] == [1, 2, 3, 4, 5]
    for hit in hits:
        place = hit.query, hit.position
        assert (hit.by_vectors, hit.by_words) == (near.get(place), worded.get(place))
        assert (hit.text, hit.key) == (texts[hit.position], f"row-{hit.position}")
    assert {(hit.by_vectors is None, hit.by_words is None) for hit in hits} >= {
        (True, False),
        (False, True),
    }
    # A query without words is one of vectors alone.
    assert [hit.by_words for hit in hits if hit.query == 2] == [None] * 5


def test_rows_that_only_words_find_have_their_cosine(table, small_model) -> None:
    vectors = load_embedder(small_model)(QUERIES[:2])
    everything = search_table(table, vectors, table.rows)
    cosines = {(query, row): score for query, row, score in as_rows(everything)}
    few = search_table(table, vectors, 2)
    fused = fuse_with_words(table, QUERIES[:2], vectors, few, 10)
    assert (fused.by_vectors == 0).sum() >= 10
    for (query, row, _), cosine in zip(as_rows(fused.found), fused.cosines, strict=True):
        assert cosine == pytest.approx(cosines[query, row], abs=2e-6)


def test_the_index_may_find_the_vectors(spark, table, tmp_path) -> None:
    pytest.importorskip("usearch")
    exact = find_texts(table, QUERIES[:1], 3, hybrid=True)
    build_index(spark, table)
    for session in (None, spark):
        found = find_texts(table, QUERIES[:1], 3, hybrid=True, indexed=True, session=session)
        assert [hit.position for hit in found] == [hit.position for hit in exact]


def test_a_table_that_does_not_say_where_its_texts_are_is_refused(table, small_model) -> None:
    foreign = replace(table, text=None)
    told = r"^embedding.output: .* does not name its column of texts.*without --hybrid"
    with pytest.raises(InputError, match=told):
        find_texts(foreign, ["x"], 1, hybrid=True, model=small_model)
    with pytest.raises(InputError, match=told):
        fits_in_process(foreign, hybrid=True)
    assert fits_in_process(foreign)


def test_large_texts_are_left_to_executors(table, texts, monkeypatch) -> None:
    assert text_bytes(table) > sum(len(text or "") for text in set(texts)) / 2
    assert fits_in_process(table, hybrid=True)
    monkeypatch.setattr(text_search, "IN_PROCESS_TEXT_BYTES", text_bytes(table) - 1)
    assert not fits_in_process(table, hybrid=True)
    assert fits_in_process(table)


def test_the_command_shows_both_ranks(table, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    command = ["search", "--set", f"embedding.output={table.folder}", "--query", QUERIES[1]]
    assert main([*command, "-k", "2", "--hybrid"]) == 0
    heading, *rows = [
        [cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")]
        for line in capsys.readouterr().out.splitlines()
        if line[0] in "┃│"
    ]
    assert heading == ["cosine", "by vectors", "by words", "key", "text"]
    assert rows[0][2] == "1" or rows[1][2] == "1"
    assert main([*command, "-k", "2"]) == 0
    assert "by words" not in capsys.readouterr().out
