"""The funnel adds up, and a corpus of which too many rows lack a usable value is refused."""

import pyarrow as pa
import pytest
from corpus_runs import prepared, sentence, write_parquet

from pipelines.corpus.funnel import ROWS, FunnelLine, check_adds_up, level_lines, losses
from pipelines.corpus.statistics import (
    check_dropped,
    check_quarantined,
    check_scores_differ,
    check_some_left,
)
from pipelines.errors import InputError
from pipelines.settings.load import parse


def test_lines_are_in_order_and_add_up():
    lines = level_lines("rows", ("rows read", 10), {"rare": 1, "often": 3}, {"kept": 6})
    assert [(line.kind, line.name) for line in lines] == [
        ("in", "rows read"),
        ("dropped", "often"),
        ("dropped", "rare"),
        ("kept", "kept"),
    ]
    check_adds_up(lines)


def test_what_is_lost_is_told_by_level():
    dropped = {"no text": 450, "too short": 1, "too long": 2, "repeats itself": 1, "none": 0}
    lines = level_lines("rows", ("read", 500), dropped, {"kept": 43}, {"torn": 3})
    lines += level_lines("paragraphs", ("found", 5), {}, {"kept": 5})
    lines += level_lines("pairs", ("made", 5), {"leak": 5}, {})
    assert losses(lines) == [
        "left out 457 of 500 rows (450 no text, 3 torn, 2 too long, 2 for other reasons)",
        "left out 5 of 5 pairs (5 leak)",
    ]


def test_a_lost_row_is_noticed():
    lines = level_lines("rows", ("rows read", 10), {"often": 3}, {"kept": 6})
    with pytest.raises(ValueError, match="funnel of rows has 10 in, but 9"):
        check_adds_up(lines)


def test_a_level_that_nothing_entered_is_noticed():
    with pytest.raises(ValueError, match="pairs has 0 in, but 2"):
        check_adds_up([FunnelLine("pairs", "kept", "pairs", 2)])


def test_json_tells_reasons_from_stages():
    assert FunnelLine("rows", "dropped", "too short", 2).as_json() == {
        "level": "rows",
        "kind": "dropped",
        "reason": "too short",
        "rows": 2,
    }
    assert FunnelLine("rows", "in", "rows read", 2).as_json()["stage"] == "rows read"


SCORED = {"format": "csv", "pairs": "columns", "score_column": "score"}
GROUPED = {"format": "csv", "pairs": "group", "group_column": "image"}
UNREADABLE = {"quarantined": {"torn": 100}}


def lines(rows, dropped, quarantined=None):
    kept = {"rows that give pairs": rows - sum(dropped.values())}
    total = rows + sum((quarantined or {}).values())
    return level_lines(ROWS, ("rows read", total), dropped, kept, quarantined)


def settings(corpus):
    return parse({"corpus": {"inputs": ["a.csv"], **corpus}}).corpus


def units(spark, *scores):
    return spark.createDataFrame([(score,) for score in scores], "score string")


@pytest.mark.parametrize(
    "corpus, dropped, key, problem, remedy",
    [
        (SCORED, {"score out of range": 120}, "corpus.score_range", "120 of 160 .* 0.0 to 5.0", ""),
        (SCORED, {"score out of range": 17}, "corpus.score_range", "17 of 160", "least 0.107"),
        (SCORED, {"no score": 64}, "corpus.score_column", r"`score`, such as `3,4`", "decimal p"),
        (SCORED, {"no text": 81}, "corpus.max_dropped", r"81 of 160 .*\(81 no text\)", "0.507"),
        (SCORED | {"max_dropped": 0.1}, {"empty text": 17}, "corpus.max_dropped", "17 of", "0.107"),
        (GROUPED, {"no group": 90, "no text": 5}, "corpus.max_dropped", "95 of", "0.594"),
    ],
)
def test_too_many_rows_without_a_value_are_refused(spark, corpus, dropped, key, problem, remedy):
    read = units(spark, "0", "5", "3,4", "nan", None)
    with pytest.raises(InputError, match=problem) as raised:
        check_dropped(lines(160, dropped, {"torn": 100}), read, settings(corpus))
    assert raised.value.key == key
    assert remedy in raised.value.remedy


def test_booleans_are_numbers_here_as_they_are_in_pairs(spark):
    read = units(spark, "true", "False", "7", "yes")
    with pytest.raises(InputError, match="such as `yes`"):
        check_dropped(lines(160, {"no score": 64}), read, settings(SCORED))
    with pytest.raises(InputError, match=r"the column goes from 0\.0 to 7\.0"):
        check_dropped(lines(160, {"score out of range": 64}), read, settings(SCORED))


@pytest.mark.parametrize(
    "corpus, rows, dropped",
    [
        (SCORED, 160, {"score out of range": 10, "no score": 6}),
        (SCORED | {"max_dropped": 1}, 160, {"score out of range": 120, "no score": 39}),
        (SCORED, 8, {"score out of range": 3, "no score": 2}),
        (SCORED, 160, {"no text": 80, "too short": 79}),
        ({}, 160, {"no text": 159}),
        ({"format": "documents", "pairs": "title"}, 160, {"no title": 159}),
        (GROUPED | {"key_column": "user"}, 160, {"deleted by its key": 100, "no group": 30}),
    ],
)
def test_what_rules_drop_is_not_counted(corpus, rows, dropped):
    check_dropped(lines(rows, dropped), None, settings(corpus))


def test_no_text_of_a_row_with_a_key_is_shown(spark):
    corpus = settings(SCORED | {"key_column": "user"})
    with pytest.raises(InputError, match=r"have no number in `score`\.") as raised:
        check_dropped(lines(100, {"no score": 50}), units(spark, "secret"), corpus)
    assert "secret" not in str(raised.value)


def test_scores_outside_of_their_range_and_equal_ones(spark, tmp_path):
    texts = {
        f"sentence{side}": [sentence(1000 * side + number) for number in range(60)]
        for side in (1, 2)
    }
    scores = [number % 26 / 5 for number in range(60)]
    path = write_parquet(tmp_path / "a.parquet", **texts, score=scores, label=[1] * 60)
    corpus = {"inputs": [path], "format": "parquet", "pairs": "columns", "evaluation_share": 0}
    with pytest.raises(InputError, match=r"outside of \[0, 1\]; the column goes from 0.0 to 5.0"):
        prepared(spark, tmp_path, **corpus, score_column="score")
    with pytest.raises(InputError, match="all 60 training pairs have the same score") as raised:
        prepared(spark, tmp_path, **corpus, score_column="label")
    assert raised.value.key == "corpus.score_column"


def test_each_source_has_scores_that_differ(spark, tmp_path):
    rows = {
        "source": [0, 0, 1, 1, 2, 2],
        "score": [0.2, 0.9, 1.0, 1.0, None, None],
        "candidate_scores": pa.array([None] * 6, pa.list_(pa.float32())),
    }
    path = tmp_path / "pairs.parquet"
    write_parquet(path, **rows)
    scored = settings(SCORED)
    with pytest.raises(InputError, match="all 2 training pairs of source b have the same"):
        check_scores_differ(spark, path, [scored, scored, settings({})], ["a", "b", "c"])
    listed = [[3.0, 3.0], [3.0, 3.0], [1.0, 2.0], [1.0, 2.0], None, None]
    write_parquet(path, **rows | {"score": [None] * 6, "candidate_scores": listed})
    margins = settings({"format": "csv", "pairs": "triplets", "score_columns": ["x", "y"]})
    with pytest.raises(InputError, match="of source a have the same") as raised:
        check_scores_differ(spark, path, [margins, margins, settings({})], ["a", "b", "c"])
    assert raised.value.key == "corpus.score_columns"
    # All scores of one source together.
    check_scores_differ(spark, path, [margins], [])


@pytest.mark.parametrize(
    "reason, remedy",
    [
        ("no score", "columns of numbers"),
        ("no text", "columns and inputs that hold text"),
        ("both sides are the same", "two different columns"),
    ],
)
def test_advice_fits_what_dropped_all(reason, remedy):
    with pytest.raises(InputError, match=rf"main reason is `{reason}` \(40\)\. .*{remedy}"):
        check_some_left(lines(40, {reason: 40}))


@pytest.mark.parametrize(
    "unread, reason, remedy",
    [
        (120, "quotes that are not closed", r"corpus.csv_escape to \\), or name another"),
        (119, "torn", "Repair the input, or name another"),
        (12, "torn", "Repair the input, or set it to at least 0.1"),
        (12, "not as many fields as the header", "check corpus.csv_separator and"),
    ],
)
def test_nothing_is_advised_that_leaves_little(spark, unread, reason, remedy):
    row = [("a.csv", 16, reason)]
    read = spark.createDataFrame(row, "file string, offset bigint, quarantined string")
    with pytest.raises(InputError) as raised:
        check_quarantined(120, unread, "rows", read, 0.01)
    assert remedy.replace("\\\\", "\\") in raised.value.remedy
