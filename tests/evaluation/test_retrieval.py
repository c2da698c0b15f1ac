"""Retrieval on the cluster, against sentence-transformers' evaluator."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.errors import InputError
from pipelines.evaluation.base import WHOLE
from pipelines.evaluation.embedder import embedder_loader
from pipelines.evaluation.held_out import held_out_tables
from pipelines.evaluation.retrieval import (
    arranged,
    embed_queries,
    rank_documents,
    ranking_of,
    retrieval_metrics,
)
from pipelines.evaluation.rows import SparkRows

ANIMALS = ("cat", "dog", "horse", "sparrow", "salmon", "frog", "bee", "whale")
ACTIONS = ("sleeps in the warm sun", "looks for food", "runs away from a man")


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """24 documents, of which one text occurs twice, and 16 queries with 1 to 3 relevant ones."""
    folder = tmp_path_factory.mktemp("retrieval")
    documents = {
        10 * number: f"The {animal} {action}."
        for number, (animal, action) in enumerate(
            (animal, action) for animal in ANIMALS for action in ACTIONS
        )
    }
    documents[5] = documents[0]
    queries = {}
    for number, animal in enumerate(ANIMALS):
        relevant = [key for key, text in documents.items() if animal in text]
        queries[2 * number] = (f"What does a {animal} do?", relevant)
        queries[2 * number + 1] = (f"Is there a {animal} that sleeps?", relevant[:1])
    pq.write_table(
        pa.table({"document_id": list(documents), "text": list(documents.values())}),
        folder / "documents.parquet",
    )
    rows = [(key, text, item) for key, (text, items) in queries.items() for item in items]
    pq.write_table(
        pa.table(
            dict(zip(("query_id", "text", "document_id"), zip(*rows, strict=True), strict=True))
        ),
        folder / "queries.parquet",
    )
    return folder, queries, documents


def test_equals_sentence_transformers_on_any_number_of_partitions(
    spark, tables, reference, reference_loader
) -> None:
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    folder, queries, documents = tables
    load = reference_loader([*(text for text, _ in queries.values()), *documents.values()])
    frame = spark.read.parquet(str(folder / "documents.parquet"))
    read = {"asked": spark.read.parquet(str(folder / "queries.parquet")), "documents": frame}
    rows = {name: SparkRows(one) for name, one in arranged(read).items()}
    asked = embed_queries(rows, load)
    found = rank_documents(rows["documents"], asked, load, widths=(WHOLE, 32))
    by_width = {width: ranking_of(one) for width, one in found.items()}
    (elsewhere,) = rank_documents(SparkRows(frame.repartition(5)), asked, load).values()
    assert ranking_of(elsewhere) == by_width[WHOLE]
    ranked = by_width[WHOLE]
    assert list(ranked) == sorted(queries)
    assert all(len(found) == 10 for found in ranked.values())
    # The two documents of one text tie, and the lower id comes first.
    for found in ranked.values():
        assert (0 in found) <= (5 not in found or found.index(0) == found.index(5) - 1)

    for width, cut in ((WHOLE, None), (32, 32)):
        evaluator = InformationRetrievalEvaluator(
            # Padded, so that the evaluator's order of ids as text is ours as numbers.
            {str(key): text for key, (text, _) in queries.items()},
            {f"{key:04}": text for key, text in documents.items()},
            {str(key): {f"{item:04}" for item in items} for key, (_, items) in queries.items()},
            name="test",
            truncate_dim=cut,
        )
        expected = evaluator(reference)
        figures = retrieval_metrics(by_width[width], asked.relevant)
        assert 20 < figures["ndcg@10"] < 100
        for name, value in figures.items():
            assert value == pytest.approx(100 * expected[f"test_cosine_{name}"], abs=1e-6)
    assert by_width[32] != ranked


def test_refuses_tables_that_are_not_there(spark, tables, tmp_path) -> None:
    folder, *_ = tables
    queries, documents = folder / "queries.parquet", folder / "documents.parquet"
    with pytest.raises(InputError, match=r"^prepared.folder: there is no .*/absent.parquet"):
        held_out_tables(spark, queries, tmp_path / "absent.parquet")
    with pytest.raises(InputError, match="has no column `query_id`"):
        held_out_tables(spark, documents, documents)
    empty = tmp_path / "empty.parquet"
    pq.write_table(pq.read_table(documents).slice(0, 0), empty)
    with pytest.raises(InputError, match="is empty"):
        held_out_tables(spark, queries, empty)
    with pytest.raises(InputError, match="holds no model"):
        embedder_loader(spark, tmp_path)
