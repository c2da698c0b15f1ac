"""What the page shows, as values."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.errors import DamagedFileError
from pipelines.report.comparison import compare, read_lines, smoothed, thinned
from pipelines.report.page_parts import LOST, funnel_levels

FINITE = st.floats(-1e6, 1e6)


def test_compare_keeps_order_and_counts_apart() -> None:
    before = {"retrieval": {"queries": 2000, "documents": 1500, "ndcg@10": 60.0, "recall@1": 50.0}}
    after = {
        "retrieval": {"queries": 2000, "documents": 1500, "ndcg@10": 62.5, "recall@1": 49.0},
        "dev": {"pairs": 7, "spearman": 80.0},
    }
    lines = compare({"before": before, "after": after})
    assert [(line.evaluation, line.metric, line.difference) for line in lines] == [
        ("retrieval", "nDCG@10", 2.5),
        ("retrieval", "Recall@1", -1.0),
        ("dev", "Spearman", None),
    ]
    assert [line.basis for line in lines] == [*["2,000 queries, 1,500 documents"] * 2, "7 pairs"]
    assert (lines[2].before, lines[2].after) == (None, 80.0)


@settings(deadline=None)
@given(st.lists(FINITE, min_size=1, max_size=60), st.floats(0.5, 30))
def test_smoothing_stays_within_and_has_no_direction(values: list[float], span: float) -> None:
    smooth = smoothed(values, span)
    assert len(smooth) == len(values)
    slack = 1e-9 * max(map(abs, values))
    assert all(min(values) - slack <= value <= max(values) + slack for value in smooth)
    assert smoothed(values[::-1], span)[::-1] == pytest.approx(smooth, abs=1e-6, rel=1e-9)


def test_smoothing_by_hand_and_over_a_gap() -> None:
    near = math.exp(-0.5)
    smooth = smoothed([0.0, 3.0, math.nan], 1.0)
    assert smooth[0] == pytest.approx(3 * near / (1 + near))
    assert smooth[1] == pytest.approx(3 / (1 + near))
    assert smoothed([2.0, math.inf, 2.0], 1.0) == pytest.approx([2.0, 2.0, 2.0])
    assert all(map(math.isnan, smoothed([math.nan], 1.0)))


@settings(deadline=None)
@given(st.lists(FINITE, min_size=1, max_size=200), st.integers(1, 50))
def test_thinning_keeps_the_sum(values: list[float], most: int) -> None:
    lines = thinned([{"loss": value, "step": place} for place, value in enumerate(values)], most)
    assert 1 <= len(lines) <= most
    size = math.ceil(len(values) / most)
    sizes = [size] * (len(lines) - 1) + [len(values) - size * (len(lines) - 1)]
    total = sum(line["loss"] * count for line, count in zip(lines, sizes, strict=True))
    assert total == pytest.approx(math.fsum(values), abs=1e-3)
    if len(values) <= most:
        assert [line["loss"] for line in lines] == values


def test_half_a_last_line_is_dropped_but_no_other(tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"ste', encoding="utf-8")
    assert read_lines(path) == [{"step": 1}, {"step": 2}]
    path.write_text('{"step": 1}\n{"ste\n{"step": 3}\n', encoding="utf-8")
    with pytest.raises(DamagedFileError, match=r"metrics\.jsonl is damaged"):
        read_lines(path)


def test_funnel_bars_hang_from_what_is_left() -> None:
    rows = [("in", 100), ("dropped", 25), ("quarantined", 5), ("dropped", 10), ("kept", 50)]
    lines = [
        {"level": "pairs", "kind": kind, "reason" if kind in LOST else "stage": "name", "rows": n}
        for kind, n in [*rows, ("kept", 10)]
    ]
    bars = funnel_levels(lines)["pairs"]
    assert [bar.start for bar in bars] == pytest.approx([0.0, 0.75, 0.7, 0.6, 0.0, 0.5])
    assert [bar.length for bar in bars] == pytest.approx([1.0, 0.25, 0.05, 0.1, 0.5, 0.1])
    assert [bar.kind for bar in bars] == [kind for kind, _ in rows] + ["kept"]
    assert [bar.name for bar in bars[:3]] == ["name", "dropped: name", "quarantined: name"]
