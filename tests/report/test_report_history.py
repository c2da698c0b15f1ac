"""What the page of a run says of how it came about, and where it leads to."""

import re

from page_reader import read

from pipelines.report.run_page import write_report


def test_the_contents_lead_to_each_section_that_there_is(run) -> None:
    def sections() -> tuple[list[str], list[str]]:
        text = write_report(run, run.parent / "prepared").read_text(encoding="utf-8")
        nav = text[text.index("<nav") : text.index("</nav>")]
        return re.findall(r'href="#(\w+)"', nav), re.findall(r'<section id="(\w+)"', text)

    named, there = sections()
    assert named == there
    assert len(named) == 9
    (run / "samples.json").unlink()
    (run / "metrics.jsonl").unlink()
    named, there = sections()
    assert named == there
    assert "map" not in named


def test_links_lead_on_when_all_is_moved(run) -> None:
    (run / "metrics.jsonl").unlink()
    page = write_report(run, run.parent / "prepared")
    moved = run.parent.parent / f"{run.parent.name} moved"
    run.parent.rename(moved)
    page = moved / page.relative_to(run.parent)
    links = [one for one in read(page).addresses if not one.startswith("#")]
    assert [(page.parent / one).resolve() for one in links] == [
        moved / "first-run" / "model",
        moved / "prepared" / "report.html",
    ]


def test_the_stages_say_what_they_took_and_the_commands_where_they_ran(run) -> None:
    (run / "metrics.jsonl").unlink()
    words = read(write_report(run, run.parent / "prepared")).words
    for told in (
        "prepare: corpus",
        "kept",
        "1m 10s",
        "train (2 times, 1 without an end, not counted)",
        "1h 05m",
        "train: 2026-11-23 20:47 UTC, has not ended",
        "train: 2026-11-23 20:50 UTC, 1h 02m; evaluate: 2026-11-23 21:55 UTC, 1m 35s",
        "host node-1",
        "host node-1, commit 16f5033c4333-dirty",
        "sentence-pipelines run --config '<job>.yaml'",
        "Called from Python.",
    ):
        assert told in words
