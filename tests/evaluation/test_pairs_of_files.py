"""Similarity and classification on the cluster, against sentence-transformers' evaluators."""

import csv
import json
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_sets import measured_on
from sklearn.metrics import f1_score

from pipelines.errors import InputError
from pipelines.evaluation.base import WHOLE_ALONE
from pipelines.evaluation.pairs import (
    CLASSIFICATION,
    CLASSIFICATION_FILES,
    SIMILARITY_FILES,
    PairFiles,
    arranged,
    best_accuracy,
    best_f1,
    classification_figures,
    cosines_of,
    labelled_pairs,
    scored_pairs,
    similarity_figures,
)
from pipelines.evaluation.rows import LocalRows, SparkRows
from pipelines.settings import Config


@pytest.fixture
def write(tmp_path) -> Callable[[str, str], str]:
    """Writes a text to a file of a name; returns its path."""

    def write_to(name: str, text: str) -> str:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    return write_to


COLUMNS = ("left", "right", "likeness")
PAIRS = [
    ("A man plays the guitar.", "A man is playing a guitar.", 4.9),
    ("A man plays the guitar.", 'He said: "the guitar, please",\nand left.', 2.0),
    ("Two dogs run over a field.", "Dogs are running through grass.", 4.1),
    ("Two dogs run over a field.", "The parliament voted on Monday.", 0.0),
    ("Ein Hund schläft.", "A dog sleeps.", 3.5),
    ("The price of oil fell.", "Oil became cheaper.", 4.4),
    ("The price of oil fell.", "The price of oil rose.", 2.4),
    ("A child eats an apple.", "A child eats a pear.", 3.0),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same pairs in each format."""
    folder = tmp_path_factory.mktemp("similarity")
    rows = [dict(zip(COLUMNS, pair, strict=True)) for pair in PAIRS]
    pq.write_table(pa.Table.from_pylist(rows), folder / "in-parquet.parquet")
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "in-json.jsonl").write_text(lines, encoding="utf-8")
    with (folder / "in-csv.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return [str(folder / name) for name in ("in-parquet.parquet", "in-json.jsonl", "in-csv.csv")]


def test_every_format_gives_the_same_pairs(spark, files) -> None:
    for file in files:
        found = [
            tuple(row)
            for row in scored_pairs(spark, file, PairFiles(SIMILARITY_FILES, COLUMNS)).collect()
        ]
        assert sorted(found) == sorted(PAIRS)


def test_similarity_equals_sentence_transformers(spark, files, reference, reference_loader) -> None:
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    pairs = scored_pairs(spark, files[0], PairFiles(SIMILARITY_FILES, COLUMNS))
    left, right, scores = map(list, zip(*PAIRS, strict=True))
    load = reference_loader([*left, *right])
    found = cosines_of(SparkRows(arranged({"pairs": pairs})["pairs"]), load)
    figures = similarity_figures(found.cosines, found.scores)
    expected = EmbeddingSimilarityEvaluator(left, right, scores, main_similarity="cosine")(
        reference
    )
    assert figures["pairs"] == len(PAIRS)
    assert figures["spearman"] == pytest.approx(100 * expected["spearman_cosine"], abs=1e-6)
    assert figures["pearson"] == pytest.approx(100 * expected["pearson_cosine"], abs=1e-3)
    assert 0 < figures["spearman"] < 100


def test_refuses_what_cannot_be_ranked(spark, minilm, tmp_path, write) -> None:
    header = "left,right,likeness\n"
    cases = {
        str(tmp_path / "absent.csv"): ("evaluation.similarity", "there is no file or folder"),
        write("pairs.xlsx", "a"): ("evaluation.similarity", "shows no format"),
        write("fake.parquet", "left,right"): ("evaluation.similarity", "not Parquet"),
        write("other.csv", "a,b,c\n1,2,3\n"): (
            "evaluation.similarity_columns",
            "has no column `left`",
        ),
        write("one.csv", header + "a,b,1\n"): ("evaluation.similarity", "holds 1 pairs"),
        write("none.csv", header): ("evaluation.similarity", "holds 0 pairs"),
        write("word.csv", header + "a,b,1\nc,d,high\n"): (
            "evaluation.similarity_columns",
            "`likeness` of 1 rows of .* is no number",
        ),
        write("nan.csv", header + "a,b,1\nc,d,NaN\n"): (
            "evaluation.similarity_columns",
            "`likeness` of 1 rows of .* is no number",
        ),
        write("gap.csv", header + "a,,1\nc,d,2\n"): (
            "evaluation.similarity_columns",
            "1 rows of .* have no `left` or `right`",
        ),
        write("same.csv", header + "a,b,1\nc,d,1\n"): (
            "evaluation.similarity_columns",
            "every `likeness` of .* is 1",
        ),
        write("broken.jsonl", '{"left": "a"\n'): ("evaluation.similarity", "no JSON object"),
    }
    for file, (key, problem) in cases.items():
        with pytest.raises(InputError, match=f"^{key}: .*{problem}") as caught:
            measured_on(spark, minilm, similarity=[file], similarity_columns=COLUMNS)
        assert "corpus." not in str(caught.value).replace(str(tmp_path), "")


LABELLED_COLUMNS = ("sentence1", "sentence2", "label")
LABELLED = [
    ("A man plays the guitar.", "A man is playing a guitar.", 1),
    ("Two dogs run over a field.", "Dogs are running through grass.", 1),
    ("Two dogs run over a field.", "The parliament voted on Monday.", 0),
    ("The price of oil fell.", "Oil became cheaper.", 1),
    ("The price of oil fell.", "The price of oil rose.", 0),
    ("A child eats an apple.", "A child eats a pear.", 0),
    ("He missed the train.", "The train left without him.", 1),
    ("It rains in London.", "London is the capital of England.", 0),
]


@pytest.fixture(scope="module")
def evaluator() -> type:
    """The evaluator of sentence-transformers, which takes seconds to import."""
    from sentence_transformers.sentence_transformer import evaluation

    return evaluation.BinaryClassificationEvaluator


@given(pairs=st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 1)), min_size=2))
def test_thresholds_are_those_of_sentence_transformers(evaluator, pairs) -> None:
    scores = np.array([score / 10 for score, _ in pairs])
    labels = np.array([label for _, label in pairs])
    if len(set(labels)) < 2:
        return
    accuracy = evaluator.find_best_acc_and_threshold(scores, labels, True)
    assert best_accuracy(scores, labels) == pytest.approx(accuracy)
    f1, *_ = evaluator.find_best_f1_and_threshold(scores, labels, True)
    ours, threshold = best_f1(scores, labels)
    assert ours == pytest.approx(f1)
    # Of two that are equally good it is left to rounding which of them the library takes.
    assert f1_score(labels, scores >= threshold) == pytest.approx(f1)


def check_against_library(figures, pairs, evaluator, model) -> None:
    left, right, labels = map(list, zip(*pairs, strict=True))
    expected = evaluator(left, right, labels, similarity_fn_names=["cosine"])(model)
    assert figures["pairs"] == len(pairs)
    names = {"average_precision": "ap", "f1": "f1", "accuracy": "accuracy"}
    for name, theirs in names.items():
        assert figures[name] == pytest.approx(100 * expected[f"cosine_{theirs}"], abs=1e-3)
    for name in ("f1_threshold", "accuracy_threshold"):
        assert figures[name] == pytest.approx(expected[f"cosine_{name}"], abs=1e-5)


def test_classification_equals_sentence_transformers(
    tmp_path, evaluator, reference, reference_loader
) -> None:
    rows = [dict(zip(("text_0", "text_1", "score"), row, strict=True)) for row in LABELLED]
    pairs = pa.Table.from_pylist([row | {"pair": number} for number, row in enumerate(rows)])
    load = reference_loader([text for *texts, _ in LABELLED for text in texts])
    (found,) = CLASSIFICATION.measure({"pairs": LocalRows(pairs.to_batches)}, load, WHOLE_ALONE)
    check_against_library(found.figures, LABELLED, evaluator, reference)


@pytest.mark.matrix
def test_equals_sentence_transformers_on_parade(
    spark, shared_data, tmp_path, minilm, evaluator, reference
) -> None:
    columns = ("text1", "text2", "label2")
    whole = pq.read_table(shared_data / "pairs" / "parade-validation.parquet")
    path = tmp_path / "parade-validation.parquet"
    pq.write_table(whole.slice(0, 300), path)
    figures = measured_on(spark, minilm, classification=[str(path)], classification_columns=columns)
    rows = [tuple(row.values()) for row in pq.read_table(path, columns=list(columns)).to_pylist()]
    check_against_library(figures["parade-validation"], rows, evaluator, reference)
    assert figures["parade-validation"]["average_precision"] > 60


def test_labels_may_be_booleans(spark, tmp_path) -> None:
    rows = [
        {**dict(zip(LABELLED_COLUMNS, row, strict=True)), "label": row[2] == 1} for row in LABELLED
    ]
    files = [tmp_path / f"pairs.{form}" for form in ("parquet", "jsonl", "csv")]
    pq.write_table(pa.Table.from_pylist(rows), files[0])
    files[1].write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    lines = [",".join(LABELLED_COLUMNS), *(",".join(map(str, row.values())) for row in rows)]
    files[2].write_text("\n".join(lines))
    wanted = sorted((first, float(label)) for first, _, label in LABELLED)
    for file in files:
        pairs = labelled_pairs(spark, str(file), PairFiles(CLASSIFICATION_FILES, LABELLED_COLUMNS))
        assert sorted((row["text_0"], row["score"]) for row in pairs.collect()) == wanted


def test_nothing_is_better_than_calling_all_unlike() -> None:
    figures = classification_figures(np.array([0.9, 0.2, 0.1]), np.array([0.0, 0.0, 1.0]))
    assert figures["accuracy"] == pytest.approx(200 / 3)
    assert figures["accuracy_threshold"] > 0.9


def test_refuses_what_is_no_label(spark, minilm, write) -> None:
    header = "sentence1,sentence2,label\n"
    cases = {
        write("graded.csv", header + "a,b,1\nc,d,0\ne,f,2\n"): "`label` of .* holds 2. Use only",
        write("ones.csv", header + "a,b,1\nc,d,1\n"): "every `label` of .* is 1. Add pairs",
        write("words.csv", header + "a,b,yes\nc,d,no\n"): "`label` of 2 rows of .* is no number",
        write("none.csv", "sentence1,sentence2\na,b\nc,d\n"): "has no column `label`",
    }
    for file, problem in cases.items():
        with pytest.raises(InputError, match=f"^evaluation.classification_columns: .*{problem}"):
            measured_on(spark, minilm, classification=[file])
    with pytest.raises(InputError, match=r"^evaluation.classification: .* holds 0 pairs"):
        measured_on(spark, minilm, classification=[write("empty.csv", header)])


def test_without_scikit_learn_it_is_refused_before_anything_is_read(monkeypatch):
    monkeypatch.setattr("pipelines.libraries.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"^evaluation\.classification: scikit-learn is not inst"):
        CLASSIFICATION.check(Config(), "no-such-file.tsv")
