"""Paraphrase classification on the cluster, against sentence-transformers' evaluator."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers.sentence_transformer.evaluation import BinaryClassificationEvaluator
from sklearn.metrics import average_precision_score

from pipelines.errors import InputError
from pipelines.evaluation.classification import (
    classification_figures,
    evaluate_classification,
    labelled_pairs,
    separation,
)
from pipelines.evaluation.metrics import average_precision, best_accuracy, best_f1

COLUMNS = ("sentence1", "sentence2", "label")
PAIRS = [
    ("A man plays the guitar.", "A man is playing a guitar.", 1),
    ("Two dogs run over a field.", "Dogs are running through grass.", 1),
    ("Two dogs run over a field.", "The parliament voted on Monday.", 0),
    ("The price of oil fell.", "Oil became cheaper.", 1),
    ("The price of oil fell.", "The price of oil rose.", 0),
    ("A child eats an apple.", "A child eats a pear.", 0),
    ("He missed the train.", "The train left without him.", 1),
    ("It rains in London.", "London is the capital of England.", 0),
]


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 1)), min_size=2))
def test_thresholds_are_those_of_sentence_transformers(pairs) -> None:
    scores = np.array([score / 10 for score, _ in pairs])
    labels = np.array([label for _, label in pairs])
    if len(set(labels)) < 2:
        return
    accuracy = BinaryClassificationEvaluator.find_best_acc_and_threshold(scores, labels, True)
    assert best_accuracy(scores, labels) == pytest.approx(accuracy)
    f1, _, _, threshold = BinaryClassificationEvaluator.find_best_f1_and_threshold(
        scores, labels, True
    )
    assert best_f1(scores, labels) == pytest.approx((f1, threshold))
    expected = average_precision_score(labels, scores)
    assert average_precision(scores, labels) == pytest.approx(expected)


def check_against_library(figures, pairs, model) -> None:
    left, right, labels = map(list, zip(*pairs, strict=True))
    expected = BinaryClassificationEvaluator(left, right, labels, similarity_fn_names=["cosine"])(
        model
    )
    assert figures["pairs"] == len(pairs)
    names = {"average_precision": "ap", "f1": "f1", "accuracy": "accuracy"}
    for name, theirs in names.items():
        assert figures[name] == pytest.approx(100 * expected[f"cosine_{theirs}"], abs=1e-3)
    for name in ("f1_threshold", "accuracy_threshold"):
        assert figures[name] == pytest.approx(expected[f"cosine_{name}"], abs=1e-5)


def test_equals_sentence_transformers(spark, tmp_path, reference_loader) -> None:
    path = tmp_path / "pairs.parquet"
    pq.write_table(
        pa.table(dict(zip(COLUMNS, map(list, zip(*PAIRS, strict=True)), strict=True))), path
    )
    figures = separation(labelled_pairs(spark, str(path), COLUMNS), reference_loader)
    check_against_library(figures, PAIRS, reference_loader().__self__)


def test_equals_sentence_transformers_on_parade(spark, shared_data, minilm) -> None:
    from sentence_transformers import SentenceTransformer

    path = shared_data / "pairs" / "parade-validation.parquet"
    columns = ("text1", "text2", "label2")
    figures = evaluate_classification(spark, minilm, [str(path)], columns)
    rows = [tuple(row.values()) for row in pq.read_table(path, columns=list(columns)).to_pylist()]
    check_against_library(
        figures["parade-validation"], rows, SentenceTransformer(str(minilm), device="cpu")
    )
    assert figures["parade-validation"]["average_precision"] > 60


def test_nothing_is_better_than_calling_all_unlike() -> None:
    figures = classification_figures(np.array([0.9, 0.2, 0.1]), np.array([0.0, 0.0, 1.0]))
    assert figures["accuracy"] == pytest.approx(200 / 3)
    assert figures["accuracy_threshold"] > 0.9


def test_refuses_what_is_no_label(spark, minilm, tmp_path) -> None:
    def write(name: str, text: str) -> str:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    header = "sentence1,sentence2,label\n"
    cases = {
        write("graded.csv", header + "a,b,1\nc,d,0\ne,f,2\n"): "`label` of .* has 2, labels are 0",
        write("ones.csv", header + "a,b,1\nc,d,1\n"): "every `label` of .* is 1, some pairs must",
        write("words.csv", header + "a,b,yes\nc,d,no\n"): "`label` of 2 rows of .* is no number",
        write("none.csv", "sentence1,sentence2\na,b\nc,d\n"): "has no column `label`",
    }
    for file, problem in cases.items():
        with pytest.raises(InputError, match=f"^evaluation.classification_columns: .*{problem}"):
            evaluate_classification(spark, minilm, [file], COLUMNS)
    with pytest.raises(InputError, match=r"^evaluation.classification: .* holds 0 pairs"):
        evaluate_classification(spark, minilm, [write("empty.csv", header)], COLUMNS)
