"""What is held out for the evaluation, and that nothing of it is trained on."""

import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus_runs import (
    distractors_of,
    dropped,
    evaluation_of,
    many_pairs,
    pairs_of,
    prepared,
    sentence,
    sides_of,
    write_parquet,
)
from hypothesis import given
from hypothesis import strategies as st

from pipelines.corpus.funnel import check_adds_up
from pipelines.corpus.held_out import draw_distractors, packages_to_hold_out, without_leaks
from pipelines.settings import CorpusSettings

SHARE = {"format": "parquet", "pairs": "columns", "evaluation_share": 0.3, "evaluation_pairs": 40}


def test_only_similar_pairs_are_asked_and_no_more_is_searched_than_is_wanted(spark, tmp_path):
    path = write_parquet(
        tmp_path / "a.parquet",
        sentence1=[sentence(n) for n in range(60)],
        sentence2=[sentence(100 + n) for n in range(60)],
        score=[float(n % 2) for n in range(60)],
    )
    summary = prepared(
        spark,
        tmp_path,
        path,
        pairs="columns",
        score_column="score",
        evaluation_share=0.5,
        evaluation_documents=0,
    )
    queries, documents = evaluation_of(summary)
    asked = {int(re.search(r"number (\d+)", row["text"]).group(1)) for row in queries}
    assert asked and all(number % 2 for number in asked)
    assert dropped(summary)["held out, but not similar enough to ask for"] > 0
    # No documents that are trained on are wanted.
    assert not (summary.folder / "evaluation" / "distractors.parquet").exists()
    assert summary.documents == len(documents)


@pytest.fixture(scope="module")
def held_out(spark, tmp_path_factory):
    """Files of pairs, and what is made of them where 40 pairs are held out."""
    folder = tmp_path_factory.mktemp("held-out")
    inputs = many_pairs(folder)
    return inputs, prepared(spark, folder, inputs=inputs, **SHARE)


def test_no_held_out_text_is_trained_on(held_out):
    _, summary = held_out
    queries, documents = evaluation_of(summary)
    assert len(queries) == summary.queries == 40
    assert len({row["text"] for row in queries}) == len({row["query_id"] for row in queries}) == 40
    assert {row["document_id"] for row in queries} == {row["document_id"] for row in documents}
    held = {row["text"].lower() for row in queries + documents}
    trained = {text.lower() for pair in sides_of(summary) for text in pair}
    assert trained and not held & trained
    assert {"another pair of its group is held out", "held out beyond corpus.evaluation_pairs"} <= (
        dropped(summary).keys()
    )


def test_documents_that_are_trained_on_are_searched_too(held_out):
    _, summary = held_out
    _, documents = evaluation_of(summary)
    others = distractors_of(summary)
    assert set(others.values()) == {positive for _, positive in sides_of(summary)}
    assert not others.keys() & {row["document_id"] for row in documents}
    assert summary.documents == len(documents) + len(others)
    assert str(summary).endswith(f"40 held out, {summary.documents} documents to search")


def test_so_many_documents_are_drawn_by_their_texts_alone(spark, held_out):
    _, summary = held_out
    pairs = spark.createDataFrame([(text,) for _, text in sides_of(summary)], "positive string")
    wanted = len(sides_of(summary)) // 3

    def drawn(frame):
        return {row["text"] for row in draw_distractors(frame, frame.count(), wanted).collect()}

    whole = drawn(pairs)
    assert len(whole) == wanted
    assert drawn(pairs.unionAll(pairs).repartition(3)) == whole
    # More of them are more of the same, so two preparations with other bounds can be compared.
    assert whole < {row["text"] for row in draw_distractors(pairs, 1, 2 * wanted).collect()}


def test_the_content_depends_on_no_partition(spark, held_out, tmp_path):
    inputs, first = held_out
    whole = tmp_path / "whole.parquet"
    pq.write_table(pa.concat_tables([pq.read_table(path) for path in reversed(inputs)]), whole)
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", str(int(before) - 1))
    try:
        second = prepared(spark, tmp_path, inputs=[str(whole)], **SHARE)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
    assert pairs_of(first) == pairs_of(second)
    assert evaluation_of(first) == evaluation_of(second)
    assert distractors_of(first) == distractors_of(second)
    assert first.funnel == second.funnel


def test_what_is_asked_or_ranked_leaks_on_every_side_and_nothing_else(spark):
    columns = "anchor string, positive string, negatives array<string>, reason string, held boolean"
    rows = [
        ("Asked one.", "Found one.", ["Harmless.", "Pushed away."], True),
        ("Trained one.", "Other one.", ["Harmless.", "found ONE"], False),
        ("Trained two.", "Other two.", ["Harmless.", "Asked one."], False),
        ("Trained three.", "pushed away", ["Harmless.", "Another."], False),
        ("Trained four.", "Other four.", ["Harmless.", "Pushed away!"], False),
        ("Trained five.", "Other five.", ["Harmless.", "Yet another."], False),
        ("Trained six.", "Other six.", None, False),
        ("Asked one", "Other seven.", None, False),
        ("Trained eight.", "Found one!", ["Harmless.", "Another."], False),
    ]
    lists = [(*texts, None, held) for *texts, held in rows]
    pairs = spark.createDataFrame(lists, columns)
    pairs = pairs.selectExpr("*", "null as anchor_key", "null as positive_key")
    triplets = CorpusSettings(pairs="triplets", triplet_columns=("a", "p", "one", "other"))
    left = without_leaks(pairs.where("not held"), pairs.where("held"), triplets).collect()
    # The negative of a held-out triplet is neither asked nor ranked.
    assert {row["anchor"] for row in left} == {
        "Trained three.",
        "Trained four.",
        "Trained five.",
        "Trained six.",
    }


@given(st.lists(st.integers(1, 500), max_size=40), st.floats(0, 0.9))
def test_packages_held_out_are_between_the_share_and_twice_the_share(sizes, share):
    packages = list(enumerate(sizes))
    held = packages_to_hold_out(packages, share)
    total = sum(sizes[package] for package in held)
    wanted = share * sum(sizes)
    assert total <= 2 * wanted
    small_enough = sum(size for size in sizes if size <= wanted)
    assert total >= min(wanted, small_enough)


@pytest.mark.matrix
def test_real_captions_leave_out_what_the_similarity_test_holds(spark, tmp_path, shared_data):
    captions = pq.read_table(shared_data / "captions" / "multi30k-captions-en-val.parquet")
    pq.write_table(captions.slice(0, 2000), tmp_path / "captions.parquet")
    exclude = [shared_data / "stsb" / f"stsb-en-{part}.parquet" for part in ("dev", "test")]
    summary = prepared(
        spark,
        tmp_path,
        str(tmp_path / "captions.parquet"),
        pairs="group",
        group_column="image",
        evaluation_share=0.05,
        exclude=[str(path) for path in exclude],
    )
    check_adds_up(summary.funnel)
    assert dropped(summary)["in corpus.exclude"] > 0
    letters = re.compile(r"[\W_]+")
    columns = ("sentence1", "sentence2")
    tables = [pq.read_table(path, columns=list(columns)) for path in exclude]
    held = {text for table in tables for name in columns for text in table[name].to_pylist()}
    held = {letters.sub("", text.lower()) for text in held}
    trained = {letters.sub("", text.lower()) for pair in sides_of(summary) for text in pair}
    assert len(trained) > 1000
    assert not trained & held
