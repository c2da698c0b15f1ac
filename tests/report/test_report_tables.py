"""The table in a terminal."""

import pytest
from rich.console import Console

from pipelines.progress.screen import Screen
from pipelines.report.tables import hits_table, metrics_table
from pipelines.search.text_search import Hit


def figures(before, after, ends=None):
    """As metrics.json has them; `ends` are those of the intervals, by metric of `dev`."""
    known = {
        name: {"low": low, "high": high, "detectable": 1} for name, (low, high) in ends.items()
    }
    return {"before": before, "after": after, "interval": {"dev": known}}


def printed(before, after, ends=None) -> list[str]:
    console = Console(width=120, record=True, file=None, force_terminal=False, quiet=False)
    with console.capture() as capture:
        console.print(metrics_table(figures(before, after, ends or {})))
    return capture.get().splitlines()


def test_each_figure_is_a_line() -> None:
    before = {"retrieval": {"queries": 3, "documents": 4, "mrr@10": 50.0, "recall@1": 40.0}}
    after = {
        "retrieval": {"queries": 3, "documents": 4, "mrr@10": 62.5, "recall@1": 39.0},
        "dev": {"pairs": 2, "spearman": 10.0},
    }
    lines = [line.split("│")[1:-1] for line in printed(before, after) if line.startswith("│")]
    assert [[cell.strip() for cell in line] for line in lines] == [
        ["retrieval", "3 queries, 4 documents", "MRR@10", "50.00", "62.50", "+12.50"],
        ["", "", "Recall@1", "40.00", "39.00", "-1.00"],
        ["dev", "2 pairs", "Spearman", "–", "10.00", "–"],  # noqa: RUF001
    ]


def test_says_that_nothing_was_measured() -> None:
    assert any("nothing was measured" in line for line in printed({}, {}))


def test_better_is_green_and_worse_is_red() -> None:
    before = {"dev": {"a": 1.0, "b": 1.0, "alignment": 0.9, "uniformity": -2.0, "same": 1.0}}
    after = {"dev": {"a": 2.0, "b": 0.5, "alignment": 0.5, "uniformity": -1.0, "same": 1.001}}
    ends = {
        "a": (0.9, 1.1),
        "b": (-0.6, -0.4),
        # Of these two less is more.
        "alignment": (-0.5, -0.3),
        "uniformity": (0.9, 1.1),
        # Nobody would see it.
        "same": (0.0005, 0.0015),
    }
    cells = metrics_table(figures(before, after, ends)).columns[-1].cells
    assert [(str(cell), cell.style) for cell in cells] == [
        ("+1.00 (0.90 to 1.10)", "green"),
        ("-0.50 (-0.60 to -0.40)", "red"),
        ("-0.40 (-0.50 to -0.30)", "green"),
        ("+1.00 (0.90 to 1.10)", "red"),
        ("+0.00 (0.00 to 0.00)", ""),
    ]


def test_what_may_be_chance_has_no_colour() -> None:
    before = {"dev": {"a": 1.0, "b": 1.0, "c": 9.0}}
    after = {"dev": {"a": 2.0, "b": 2.0, "c": 1.0}}
    ends = {"a": (-0.5, 2.5), "b": (0.5, 1.5)}
    cells = metrics_table(figures(before, after, ends)).columns[-1].cells
    assert [(str(cell), cell.style) for cell in cells] == [
        ("+1.00 (-0.50 to 2.50)", ""),
        ("+1.00 (0.50 to 1.50)", "green"),
        # Where this one lies is not known.
        ("-8.00", ""),
    ]
    shown = " ".join(map(str.strip, printed(before, after, ends)))
    assert "by paired bootstrap" in shown


def test_brackets_in_a_name_are_shown() -> None:
    lines = printed({}, {"dev[v2].csv": {"a[b]": 1.0}, "[/]": {"a": 1.0}})
    names = [line.split("│")[1].strip() for line in lines if line.startswith("│")]
    assert names == ["dev[v2].csv", "[/]"]
    assert any("A[b]" in line for line in lines)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_narrow_screen_breaks_no_word(width) -> None:
    counts = {"queries": 1500, "documents": 1500}
    before = {"hybrid retrieval": {**counts, "ndcg@10": 85.1, "recall@10": 90.2}}
    after = {"hybrid retrieval": {**counts, "ndcg@10": 100.0, "recall@10": 80.2}}
    known = {"hybrid retrieval": {"recall@10": {"low": -11.2, "high": 15.6, "detectable": 1}}}
    measured = {"before": before, "after": after, "interval": known}
    screen = Screen(width=width)
    with screen.capture() as capture:
        screen.print(metrics_table(measured, screen.width))
    words = set(capture.get().replace("│", " ").split())
    assert words >= {
        "hybrid",
        "retrieval",
        "1,500",
        "queries,",
        "documents",
        "Recall@10",
        "nDCG@10",
    }
    assert words >= {"85.10", "-10.00", "(-11.20", "15.60)", "difference"}
    assert "…" not in capture.get()


def test_a_found_text_steers_no_terminal() -> None:
    bad = "a\x1b]0;title \x9b31m \u202egnp.exe\u2066 [red]b[/red] :smile: c\nd"
    hits = [Hit(query=0, rank=1, cosine=0.5, position=1, text=bad, key=f"key {bad}")]
    screen = Screen(width=300)
    with screen.capture() as capture:
        screen.print(hits_table([bad, "other"], hits))
        screen.print(bad)
    shown = capture.get()
    assert all(one.isprintable() or one == "\n" for one in shown)
    assert shown.count("a\\x1b]0;title \\x9b31m \\u202egnp.exe\\u2066 [red]b[/red] :smile: c") == 4
    lines = [line for line in shown.splitlines() if line.startswith("│")]
    assert len({len(line) for line in lines}) == 1
