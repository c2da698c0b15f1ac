"""The corpus stage as a whole: formats, pair forms, split and funnel."""

import gzip
import json
import random
import re
from itertools import combinations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus_runs import (
    dropped,
    evaluation_of,
    pairs_of,
    prepared,
    sentence,
    sides_of,
    write_parquet,
)

from pipelines.corpus.funnel import check_adds_up

COLUMNS = {
    "one": [
        "The first text here.",
        "  The second\ttext. ",
        'Quoted "text", here.',
        "Grüße an alle.",
        "A text\nof two lines.",
    ],
    "two": [
        "Its own partner.",
        "Another partner.",
        "A partner, too.",
        "Viele Grüße.",
        "Its own line.",
    ],
}
EXPECTED = {
    ("The first text here.", "Its own partner."),
    ("The second text.", "Another partner."),
    ('Quoted "text", here.', "A partner, too."),
    ("Grüße an alle.", "Viele Grüße."),
    ("A text of two lines.", "Its own line."),
}

# Near duplicates have tests of their own.
UNCOMPARED = {"pairs": "single", "near_duplicates": 0}


def write_columns(folder, kind):
    """The rows as files of a kind, for `csv` one with commas and one with tabs."""
    rows = list(zip(*COLUMNS.values(), strict=True))
    objects = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    quoted = [",".join('"' + text.replace('"', '""') + '"' for text in row) for row in rows[2:]]
    # A tab separated file knows no quoting, so its texts hold no tab.
    tabbed = ["\t".join(text.replace("\t", " ") for text in row) for row in rows[:3]]
    contents = {
        "a b[1].jsonl": "\n".join(json.dumps(row) for row in objects) + "\n\n",
        # The last two are quarantined.
        "a b[1].csv": "\r\n".join(["one,two", *quoted, "only one", "a,b,c"]),
        "a b[1].tsv": "\n".join(["one\ttwo", *tabbed]),
    }
    if kind == "parquet":
        return [write_parquet(folder / "a b[1].parquet", **COLUMNS)]
    paths = [folder / f"a b[1].{ending}" for ending in {"csv": ("csv", "tsv")}.get(kind, (kind,))]
    for path in paths:
        path.write_text(contents[path.name], encoding="utf-8", newline="")
    return list(map(str, paths))


# The readers' own tests compare these formats; other tests of the stage read JSON and Parquet.
@pytest.mark.parametrize(
    "kind",
    ["csv", *(pytest.param(kind, marks=pytest.mark.matrix) for kind in ("jsonl", "parquet"))],
)
def test_columns_of_every_format(spark, tmp_path, kind):
    summary = prepared(
        spark,
        tmp_path,
        inputs=write_columns(tmp_path, kind),
        format=kind,
        pairs="columns",
        pair_columns=["one", "two"],
        evaluation_share=0,
        max_quarantined=0.7,
    )
    assert sides_of(summary) == EXPECTED
    assert (summary.pairs, summary.queries, summary.documents) == (5, 0, 0)
    quarantined = {line.name: line.rows for line in summary.funnel if line.kind == "quarantined"}
    assert quarantined == ({"not as many fields as the header": 2} if kind == "csv" else {})
    assert not (summary.folder / "evaluation").exists()
    assert sorted(path.name for path in summary.folder.iterdir()) == [
        "funnel.json",
        "pairs.parquet",
        "quarantine.parquet",
        "statistics.json",
    ]


def test_lines_of_text_files_alone(spark, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"The first line of it.\r\n\r\nThe second line.\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"The packed line.\nThe second line.\n"))
    summary = prepared(spark, tmp_path, inputs=[str(tmp_path)], format="text", **UNCOMPARED)
    assert {anchor for anchor, _ in sides_of(summary)} == {
        "The first line of it.",
        "The second line.",
        "The packed line.",
    }
    assert dropped(summary) == {"empty text": 1, "duplicate": 1}


def test_summaries_of_text_files_without_what_many_share(spark, tmp_path):
    (tmp_path / "a.md").write_text("# Title\n\nThe first sentence. The rest\nof it.\n\nMore text.")
    (tmp_path / "b.txt").write_text("Only a single sentence.")
    (tmp_path / "c.txt").write_text(" \n")
    # A paragraph that follows many sentences says nothing of them.
    for number in range(4):
        text = f"{sentence(number)} See the page of the project."
        (tmp_path / f"{number}.txt").write_text(text)
    summary = prepared(spark, tmp_path, inputs=[str(tmp_path)], format="text", evaluation_share=0)
    assert sides_of(summary) == {("The first sentence.", "The rest of it.")}
    assert dropped(summary) == {
        "nothing after the first sentence": 1,
        "empty text": 1,
        "paragraph that follows many sentences": 4,
    }


def test_docstrings_of_a_folder_and_whole_packages_held_out(spark, tmp_path):
    for package in range(12):
        for module in range(3):
            file = tmp_path / "source" / f"package{package}" / f"module{module}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            number = 3 * package + module
            file.write_text(f'"""{sentence(number)} It belongs to package{package} alone."""')
    copies = tmp_path / "source" / "package0"
    for package in range(12):
        copy = tmp_path / "source" / f"package{package}" / "shared.py"
        copy.write_text('"""This text is in every package. It was copied from the first."""')
    (copies / "broken.py").write_text('"""Broken"""\nprint 1')
    summary = prepared(spark, tmp_path, inputs=[str(tmp_path / "source")], evaluation_share=0.2)
    lines = {(line.level, line.name): line.rows for line in summary.funnel}
    assert lines["source files", "source files found"] == 49
    assert lines["source files", "does not parse"] == 1
    assert lines["rows", "rows read"] == 48
    assert lines["pairs", "repeated pair"] == 11
    queries, documents = evaluation_of(summary)
    trained = {re.search(r"package\d+", row["positive"]) for row in pairs_of(summary)}
    trained = {match.group() for match in trained if match}
    held = {re.search(r"package\d+", row["text"]) for row in documents}
    held = {match.group() for match in held if match}
    assert held and trained and not held & trained
    assert 7 <= len(queries) <= 15
    # Queries of one package gain and lose together, so they are of one group.
    packages = {row["document_id"]: re.search(r"package\d+", row["text"]) for row in documents}
    named = [(row["group"], packages[row["document_id"]]) for row in queries]
    told = {(group, package.group()) for group, package in named if package}
    assert len({group for group, _ in told}) == len({package for _, package in told}) == len(told)
    assert len(told) < len(queries)


def test_groups_give_pairs_of_their_distinct_texts(spark, tmp_path):
    texts = {"a": range(5), "b": [10, 10, 11], "c": [20], "d": range(30, 60), "e": range(70, 74)}
    path = write_parquet(
        tmp_path / "a.parquet",
        caption=[sentence(n) for numbers in texts.values() for n in numbers] + [None, "no group"],
        image=[name for name, numbers in texts.items() for _ in numbers] + ["a", None],
    )
    summary = prepared(
        spark,
        tmp_path,
        path,
        text_column="caption",
        pairs="group",
        group_column="image",
        pairs_per_group=6,
        min_characters=5,
    )
    rows = pairs_of(summary)
    per_group = {}
    for row in rows:
        assert row["anchor"] != row["positive"]
        per_group.setdefault(row["group"], []).append(frozenset((row["anchor"], row["positive"])))
    assert sorted(map(len, per_group.values())) == [1, 6, 6, 6]
    assert all(len(set(found)) == len(found) for found in per_group.values())
    # Four texts have no more pairs than the limit allows, and give them all.
    every = {frozenset(map(sentence, pair)) for pair in combinations(texts["e"], 2)}
    assert every in map(set, per_group.values())
    largest = {text for pair in per_group.values() for both in pair for text in both}
    assert len(largest) == 5 + 2 + 7 + 4
    assert dropped(summary) == {
        "no text": 1,
        "no group": 1,
        "repeated in its group": 1,
        "alone in its group": 1,
        "beyond corpus.pairs_per_group": 23,
    }


def test_scores_are_scaled_and_ranges_kept(spark, tmp_path):
    scores = ["0", "5", "2.5", "5.1", "-1", "much", None, "nan"]
    path = write_parquet(
        tmp_path / "a.parquet",
        sentence1=[sentence(n) for n in range(8)],
        sentence2=[sentence(100 + n) for n in range(8)],
        score=scores,
    )
    summary = prepared(
        spark, tmp_path, path, pairs="columns", score_column="score", score_range=[0, 5]
    )
    found = {row["anchor"]: row["score"] for row in pairs_of(summary)}
    assert found == {sentence(0): 0.0, sentence(1): 1.0, sentence(2): 0.5}
    assert dropped(summary) == {"score out of range": 3, "no score": 2}


def test_a_text_to_exclude_drops_its_whole_group(spark, tmp_path):
    path = write_parquet(
        tmp_path / "a.parquet",
        text=[sentence(n) for n in range(9)] + ["Short!"],
        image=[n // 3 for n in range(9)] + [2],
    )
    exclude = write_parquet(
        tmp_path / "test.parquet",
        sentence1=[sentence(4).upper().replace(" ", "  ") + "?", None],
        sentence2=["...", "short"],
    )
    corpus = {"pairs": "group", "group_column": "image", "near_duplicates": 0}
    summary = prepared(spark, tmp_path, path, **corpus, exclude=[exclude])
    texts = {text for pair in sides_of(summary) for text in pair}
    # The short text is dropped for its length, and still speaks for its group.
    assert texts == {sentence(n) for n in range(3)}
    assert dropped(summary) == {"in corpus.exclude": 6, "too short": 1}


ODD = (
    [None, "", " \t\n", "\x00\x01", "a\x00b", "👍🏽" * 12, "Grüße", "e\u0301" * 20, "x" * 300]
    + [sentence(n) for n in range(4)]
    + [f"{sentence(n)} {sentence(n + 1)}" for n in range(3)]
    + ["\ud7ff\ue000\uffff", "\U0010ffff \u202e.", "“a”. \u2028 b? c!", "1 2 3", "<br>" * 9]
)


def odd_rows(seed):
    """Each of the odd texts twice on either side, beside others, with a kind and a score."""
    chance = random.Random(seed)
    sides = [chance.sample(2 * ODD, 2 * len(ODD)) for _ in range(2)]
    kinds, scores = ["a", "b", "c", None], [0.0, 1.0, 7.0]
    return [
        (*texts, chance.choice(kinds), chance.choice(scores)) for texts in zip(*sides, strict=True)
    ]


# In the other forms a row is one text, or a text and what stands before or after it.
OF_THE_MATRIX = ("adjacent", "triplets", "summary", "title", "single")


@pytest.mark.parametrize(
    "form",
    [
        *("columns", "group"),
        *(pytest.param(form, marks=pytest.mark.matrix) for form in OF_THE_MATRIX),
    ],
)
def test_the_funnel_adds_up_on_odd_rows(spark, tmp_path, form):
    # One row that always gives a pair, so that there is a corpus to write.
    rows = [*odd_rows(form), (f"{sentence(7)} {sentence(8)}", sentence(9), "surely so", 1.0)]
    rows += [(sentence(11), sentence(12), "surely so", 1.0)]
    table = pa.table(
        {
            "text": pa.array([row[0] for row in rows], pa.string()),
            "other": pa.array([row[1] for row in rows], pa.string()),
            "kind": pa.array([row[2] for row in rows], pa.string()),
            "score": [row[3] for row in rows],
        }
    )
    pq.write_table(table, tmp_path / "odd.parquet")
    summary = prepared(
        spark,
        tmp_path,
        str(tmp_path / "odd.parquet"),
        pairs=form,
        pair_columns=["text", "other"],
        triplet_columns=["text", "other", "kind"],
        title_column="other",
        near_duplicates=0,
        min_characters=1,
        group_column="kind" if form == "group" else None,
        score_column="score" if form == "columns" else None,
        max_characters=200,
        evaluation_share=0.0,
    )
    check_adds_up(summary.funnel)
    entered = {line.level: line.rows for line in summary.funnel if line.kind == "in"}
    assert entered["rows"] == len(rows)
    written = pairs_of(summary)
    assert summary.pairs == len(written) == len({row["id"] for row in written}) > 0
    assert all(row["anchor"] != row["positive"] for row in written)
    told = json.loads((summary.folder / "funnel.json").read_text())
    assert told == [line.as_json() for line in summary.funnel]


def test_schema_hashes_and_files_with_other_headers(spark, tmp_path):
    (tmp_path / "a.csv").write_text(f"text,other\n{sentence(1)},x\n")
    (tmp_path / "b.csv").write_text(f"other,text\nx,{sentence(2)}\n")
    summary = prepared(
        spark, tmp_path, inputs=[str(tmp_path)], format="csv", evaluation_share=0.5, **UNCOMPARED
    )
    assert {anchor for anchor, _ in sides_of(summary)} == {sentence(1), sentence(2)}
    table = pq.read_table(summary.folder / "pairs.parquet")
    types = {field.name: str(field.type) for field in table.schema}
    assert types == {
        "id": "int64",
        "group": "int64",
        "anchor": "string",
        "positive": "string",
        "negatives": "list<element: string>",
        "score": "float",
        "candidate_scores": "list<element: float>",
    }
    assert table["positive"].null_count == table["score"].null_count == 2
    expected = spark.sql(f"select xxhash64('{sentence(1)}') as id").first()["id"]
    assert {row["anchor"]: row["id"] for row in pairs_of(summary)}[sentence(1)] == expected
    # Nothing to look for: single texts are never held out.
    assert summary.queries == 0
