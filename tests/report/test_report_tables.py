"""The table in a terminal."""

import pytest
from rich.console import Console

from pipelines.progress.screen import Screen
from pipelines.report.comparison import compare
from pipelines.report.verdict import hits_table, metrics_table, told_interval, verdict
from pipelines.vectors.search import Hit


def figures(before, after, ends=None):
    """As metrics.json has them; `ends` are those of the intervals, by set and metric."""
    known = {
        name: {
            metric: {"low": low, "high": high, "detectable": 1}
            for metric, (low, high) in by_metric.items()
        }
        for name, by_metric in (ends or {}).items()
    }
    return {"before": before, "after": after, "interval": known}


def printed(before, after, ends=None) -> list[str]:
    console = Console(width=120, record=True, file=None, force_terminal=False, quiet=False)
    with console.capture() as capture:
        console.print(metrics_table(figures(before, after, ends)))
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
    assert any("Nothing was measured" in line for line in printed({}, {}))


def cells(before, after, ends) -> list[tuple[str, str]]:
    """The differences of the table with their colours."""
    found = metrics_table(figures(before, after, ends)).columns[-1].cells
    return [(str(cell), cell.style) for cell in found]


def test_better_is_green_and_worse_is_red() -> None:
    after = {
        "gain": {"a": 2.0},
        "loss": {"a": 0.5},
        "same": {"a": 1.001},
        "chance": {"a": 2.0},
        "few": {"a": 2.0},
    }
    before = {name: {"a": 1.0} for name in after}
    ends = {
        "gain": {"a": (0.9, 1.1)},
        "loss": {"a": (-0.6, -0.4)},
        # Nobody would see it.
        "same": {"a": (0.0005, 0.0015)},
        "chance": {"a": (-0.5, 2.5)},
    }
    assert cells(before, after, ends) == [
        ("+1.00 (0.90 to 1.10)", "green"),
        ("-0.50 (-0.60 to -0.40)", "red"),
        ("+0.00 (0.00 to 0.00)", ""),
        ("+1.00 (-0.50 to 2.50)", ""),
        # Where this one lies is not known.
        ("+1.00", ""),
    ]
    assert "by paired bootstrap" in " ".join(map(str.strip, printed(before, after, ends)))


def test_of_each_set_the_first_figure_alone_is_tested() -> None:
    metrics = {"alignment": 0.9, "ndcg@10": 1.0, "mrr@10": 1.0}
    more = {name: value + 1 for name, value in metrics.items()}
    ends = {"dev": dict.fromkeys(metrics, (0.9, 1.1))}
    assert [colour for _, colour in cells({"dev": metrics}, {"dev": more}, ends)] == [
        "",
        "green",
        "",
    ]


def test_the_colours_are_those_of_the_verdict() -> None:
    # On one of ten sets a model gains by chance in every fifth run.
    names = [f"set{place}" for place in range(10)]
    ends = {name: {"ndcg@10": (-1.0, 1.2)} for name in names} | {"set3": {"ndcg@10": (0.1, 2.1)}}
    before, after = ({name: {"queries": 50, "ndcg@10": at} for name in names} for at in (50, 51))
    known = figures(before, after, ends)
    known["sets"] = {name: {"evaluation": "retrieval_sets", "role": "judged"} for name in names}
    colours = {cell.style for cell in metrics_table(known).columns[-1].cells}
    assert (colours, verdict(known).word) == ({""}, "not significant")
    alone = {part: {"set3": by_set["set3"]} for part, by_set in known.items()}
    colours = {cell.style for cell in metrics_table(alone).columns[-1].cells}
    assert (colours, verdict(alone).word) == ({"green"}, "better")


def test_the_groups_of_queries_stand_beside_their_number() -> None:
    counts = {"queries": 1500, "documents": 20000, "ndcg@10": 1.0}
    known = figures({"dev": counts}, {"dev": counts}, {"dev": {"ndcg@10": (0.0, 0.0)}})
    known["interval"]["dev"]["ndcg@10"]["groups"] = 23
    console = Console(width=120)
    with console.capture() as capture:
        console.print(metrics_table(known))
    assert "1,500 queries in 23 groups, 20,000 documents" in capture.get()


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


def test_a_set_that_was_trained_on_is_not_just_better() -> None:
    figures = {
        "before": {"users": {"queries": 50, "ndcg@10": 60.0}},
        "after": {"users": {"queries": 50, "ndcg@10": 64.0}},
        "interval": {"users": {"ndcg@10": {"low": 3.0, "high": 5.0, "detectable": 1.4}}},
        "sets": {"users": {"evaluation": "retrieval_sets", "role": "judged"}},
    }
    (line,) = compare(figures)
    assert told_interval(line) == "+3.00 to +5.00, better"
    seen = {"overlap": {"users": {"of": "queries", "items": 50, "seen": 1}}}
    (line,) = compare(figures | seen)
    told = "better, but 1 of 50 queries of users is among the training pairs"
    assert told_interval(line).endswith(told)
    (line,) = compare(figures | {"model": {"best_by": "users.mrr@10"}})
    assert told_interval(line).endswith("better, but it chose the checkpoint")
