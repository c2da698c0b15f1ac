"""The funnel adds up, or says where it does not."""

import pytest

from pipelines.corpus.funnel import FunnelLine, check_adds_up, level_lines, losses


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
        "457 of 500 rows not kept (450 no text, 3 torn, 2 too long, 2 for other reasons)",
        "5 of 5 pairs not kept (5 leak)",
    ]


def test_a_lost_row_is_noticed():
    lines = level_lines("rows", ("rows read", 10), {"often": 3}, {"kept": 6})
    with pytest.raises(ValueError, match="funnel of rows has 10 in and 9"):
        check_adds_up(lines)


def test_a_level_that_nothing_entered_is_noticed():
    with pytest.raises(ValueError, match="pairs has 0 in and 2"):
        check_adds_up([FunnelLine("pairs", "kept", "pairs", 2)])


def test_json_tells_reasons_from_stages():
    assert FunnelLine("rows", "dropped", "too short", 2).as_json() == {
        "level": "rows",
        "kind": "dropped",
        "reason": "too short",
        "rows": 2,
    }
    assert FunnelLine("rows", "in", "rows read", 2).as_json()["stage"] == "rows read"
