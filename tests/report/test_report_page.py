"""The page: whole, self-contained, and of what there is."""

import json
from html.parser import HTMLParser

import pytest

from pipelines import storage
from pipelines.config import dump, load
from pipelines.corpus.funnel import level_lines
from pipelines.report.page import write_report

VOID = {"meta", "br", "img", "input", "link", "hr"}


class Reader(HTMLParser):
    """Collects text, headings and addresses, and checks that elements nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.headings: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "action"):
                self.addresses.append(value)
            if name == "id":
                self.ids.append(value)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings.append(data.strip())
        self.words.append(data.strip())


def read(path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    assert reader.open == []
    return reader


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "first-run"
    folder.mkdir()
    storage.write_text(folder / "config.yaml", dump(load(None, ["training.workers=2"])))
    storage.write_json(folder / "environment.json", {"python": "3.11.7", "host <b>": "a & b"})
    lines = [
        {
            "step": 10 * (place + 1),
            "epoch": 0,
            "loss": 2.0 / (place + 1),
            "learning_rate": 1e-5,
            "examples_per_second": 50.0 + place,
            "tokens_per_second": 1500.0,
            "padding": 0.1,
            "data_wait": 0.02,
            "seconds": float(place),
            "staleness_mean": 0.0,
            "staleness_max": 0,
        }
        for place in range(12)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    storage.write_text(folder / "metrics.jsonl", text)
    figures = {
        "before": {"retrieval": {"queries": 5, "documents": 9, "mrr@10": 40.0}},
        "after": {"retrieval": {"queries": 5, "documents": 9, "mrr@10": 38.75}},
        "training": {
            "steps": 120,
            "examples": 15360,
            "seconds": 3725.0,
            "examples_per_second": 55.5,
            "final_loss": 0.16667,
        },
    }
    storage.write_json(folder / "metrics.json", figures)
    funnel = level_lines("rows", ("read", 1200), {"<too short>": 200}, {"for pairs": 1000})
    path = tmp_path / "prepared" / "corpus" / "funnel.json"
    storage.write_json(path, [line.as_json() for line in funnel])
    return folder


def test_shows_everything_there_is(run) -> None:
    path = write_report(run, run.parent / "prepared")
    assert path == run / "report.html"
    page = read(path)
    assert page.headings == ["Evaluation", "Training", "Corpus", "Settings", "Environment"]
    for words in (
        "first-run",
        "Trained by tensorflowonspark (sync, tensorflow) on 2 workers",
        "15,360",
        "1h 02m",
        "MRR@10",
        "38.75",
        "-1.25",
        "5 queries, 9 documents",
        "dropped: <too short>",
        "16.7 %",
        "128 examples (2 granules of 64)",
        "host <b>",
        "a & b",
    ):
        assert words in page.words


def test_staleness_is_shown_where_there_was_any(run) -> None:
    title = "Staleness, updates (mean)"
    assert title not in read(write_report(run, run.parent / "prepared")).words
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    aged = [line | {"staleness_mean": 0.75, "staleness_max": 2} for line in lines]
    text = "".join(json.dumps(line) + "\n" for line in aged)
    storage.write_text(run / "metrics.jsonl", text)
    figures = storage.read_json(run / "metrics.json")
    figures["training"] |= {"staleness_mean": 0.75, "staleness_max": 2}
    storage.write_json(run / "metrics.json", figures)
    words = read(write_report(run, run.parent / "prepared")).words
    assert title in words
    assert "mean staleness" in words


def test_needs_nothing_from_elsewhere(run) -> None:
    page = read(write_report(run, run.parent / "prepared"))
    assert all(address.startswith("#") for address in page.addresses)
    text = (run / "report.html").read_text(encoding="utf-8")
    assert "<script" not in text
    assert "url(http" not in text
    assert "@import" not in text


def test_charts_of_one_page_do_not_share_ids(run) -> None:
    page = read(write_report(run, run.parent / "prepared"))
    referred = {address[1:] for address in page.addresses}
    assert referred
    assert referred <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


def test_the_same_run_gives_the_same_page(run) -> None:
    first = write_report(run, run.parent / "prepared").read_bytes()
    assert write_report(run, run.parent / "prepared").read_bytes() == first


@pytest.mark.parametrize(
    ("missing", "heading"),
    [
        ("first-run/metrics.json", "Evaluation"),
        ("first-run/metrics.jsonl", "Training"),
        ("prepared/corpus/funnel.json", "Corpus"),
        ("first-run/config.yaml", "Settings"),
        ("first-run/environment.json", "Environment"),
    ],
)
def test_leaves_out_what_is_missing(run, missing, heading) -> None:
    (run.parent / missing).unlink()
    page = read(write_report(run, run.parent / "prepared"))
    assert heading not in page.headings
    assert len(page.headings) == 4


def test_a_run_that_has_just_begun(tmp_path) -> None:
    page = read(write_report(tmp_path, tmp_path / "absent"))
    assert page.headings == []
    assert tmp_path.name in page.words


def test_one_line_and_losses_that_are_no_numbers(run) -> None:
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[0]) | {"loss": float("nan")}
    storage.write_text(run / "metrics.jsonl", json.dumps(line) + "\n")
    assert "Training" in read(write_report(run, run.parent / "prepared")).headings
