"""Similarity on the cluster, against sentence-transformers' evaluator."""

import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from measured_sets import measured_on

from pipelines.errors import InputError
from pipelines.evaluation.pairs import (
    SIMILARITY_FILES,
    PairFiles,
    arranged,
    cosines_of,
    scored_pairs,
    similarity_figures,
)
from pipelines.evaluation.rows import SparkRows

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


def test_equals_sentence_transformers(spark, files, reference, reference_loader) -> None:
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


def test_refuses_what_cannot_be_ranked(spark, minilm, tmp_path) -> None:
    def write(name: str, text: str) -> str:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    header = "left,right,likeness\n"
    cases = {
        str(tmp_path / "absent.csv"): ("evaluation.similarity", "there is no file or folder"),
        write("pairs.xlsx", "a"): ("evaluation.similarity", "says no format"),
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
