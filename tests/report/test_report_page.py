"""The page: whole, self-contained, and of what there is."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from logged_runs import made_samples, write_run
from page_reader import Reader, read

from pipelines.errors import DamagedFileError
from pipelines.files import storage
from pipelines.report.comparison import shown
from pipelines.report.corpus_page import write_corpus_report
from pipelines.report.page_parts import drawn, read_if_there
from pipelines.report.run_charts import training_charts
from pipelines.report.run_page import write_report
from pipelines.runs.job_records import add_restart
from pipelines.runs.run import Restart

# Of the drawing; what pages show is tested as values elsewhere.
pytestmark = pytest.mark.slow

HEADINGS = [
    "Evaluation",
    "A map of held-out pairs",
    "Nearest documents of a few queries",
    "Training",
    "Where the time went",
    "Stages",
    "Corpus",
    "Settings",
    "Environment",
]
HOSTILE = (
    "</title><script>alert('a')</script>\u202egnp.exe \x00<img src=x onerror=b> 👩\u200d👧 يقول"
)


@pytest.fixture(scope="module")
def whole_page(tmp_path_factory) -> Path:
    """The page of a run as it was written."""
    run = write_run(tmp_path_factory.mktemp("whole"))
    page = write_report(run, run.parent / "prepared")
    assert page == run / "report.html"
    return page


@pytest.fixture
def measured(run) -> Path:
    """A run without lines of its training, whose charts take their time."""
    (run / "metrics.jsonl").unlink()
    return run


@pytest.fixture
def logged(run) -> Path:
    """A run without samples, whose charts take their time."""
    (run / "samples.json").unlink()
    return run


def page_of(run: Path) -> Reader:
    return read(write_report(run, run.parent / "prepared"))


def change_lines(run: Path, change: Callable[[dict], dict]) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    text = "".join(json.dumps(change(json.loads(line))) + "\n" for line in lines)
    storage.write_text(run / "metrics.jsonl", text)


def test_shows_everything_there_is(whole_page) -> None:
    page = read(whole_page)
    assert page.headings == HEADINGS
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


def test_what_was_cut_is_told_on_both_pages(measured) -> None:
    prepared = measured.parent / "prepared"
    manifest = {"max_length": 64, "texts": 200, "cut": 3, "tokens": 900, "dropped": 100}
    manifest["prompts"] = {"anchor": "query: "}
    storage.write_json(prepared / "tokens" / "manifest.json", manifest)
    storage.write_json(measured / "tokens.json", manifest)
    told = "texts of up to 64 tokens, 3 of 200 (1.5 %) truncated, 10.0 % of the tokens dropped"
    words = read(write_report(measured, prepared)).words
    assert told in words
    assert "`query: ` (anchor)" in words
    assert told in read(write_corpus_report(prepared)).words
    # The folder has been prepared for another run since.
    other = manifest | {"max_length": 128, "cut": 0, "dropped": 0, "prompts": {}}
    storage.write_json(prepared / "tokens" / "manifest.json", other)
    assert read(write_report(measured, prepared)).words == words


@pytest.mark.slow
def test_staleness_is_shown_where_there_was_any(logged, whole_page) -> None:
    title = "Staleness, updates (mean)"
    assert title not in read(whole_page).words
    staleness = {"staleness_mean": 0.75, "staleness_max": 2}
    change_lines(logged, lambda line: line | staleness)
    figures = storage.read_json(logged / "metrics.json")
    figures["training"] |= staleness
    storage.write_json(logged / "metrics.json", figures)
    words = page_of(logged).words
    assert title in words
    assert "mean staleness" in words


def test_needs_nothing_from_elsewhere(whole_page) -> None:
    page = read(whole_page)
    # Besides itself, it leads to what lies beside it.
    beside = {"./model/", "../prepared/report.html"}
    assert {one for one in page.addresses if not one.startswith("#")} == beside
    text = whole_page.read_text(encoding="utf-8")
    assert "fetch(" not in text
    assert "url(http" not in text
    assert "@import" not in text


def test_charts_of_one_page_do_not_share_ids(whole_page) -> None:
    page = read(whole_page)
    referred = {address[1:] for address in page.addresses if address.startswith("#")}
    assert referred
    assert referred <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


@pytest.mark.slow
def test_the_same_run_gives_the_same_page(run, whole_page) -> None:
    assert write_report(run, run.parent / "prepared").read_bytes() == whole_page.read_bytes()


@pytest.mark.parametrize(
    ("missing", "headings"),
    [
        ("first-run/metrics.json", {"Evaluation"}),
        ("first-run/metrics.jsonl", {"Training", "Where the time went"}),
        ("first-run/samples.json", {HEADINGS[1], HEADINGS[2]}),
        ("prepared/corpus/funnel.json", {"Corpus"}),
        ("first-run/config.yaml", {"Settings"}),
        ("first-run/environment.json", {"Environment"}),
        ("first-run/jobs.json", {"Stages"}),
    ],
)
def test_leaves_out_what_is_missing(run, missing, headings) -> None:
    (run.parent / missing).unlink()
    # Charts take their time.
    (run / "metrics.jsonl").unlink(missing_ok=True)
    page = page_of(run)
    headings = headings | {"Training", "Where the time went"}
    assert page.headings == [name for name in HEADINGS if name not in headings]


def test_a_run_that_has_just_begun(tmp_path) -> None:
    page = read(write_report(tmp_path, tmp_path / "absent"))
    assert page.headings == []
    assert tmp_path.name in page.words


@pytest.mark.slow
def test_few_steps_are_shown_as_they_are(logged, whole_page) -> None:
    assert "smoothed" in read(whole_page).words
    lines = (logged / "metrics.jsonl").read_text().splitlines(keepends=True)
    storage.write_text(logged / "metrics.jsonl", "".join(lines[:2]))
    assert "smoothed" not in page_of(logged).words


@pytest.mark.parametrize(
    ("ends", "verdict"), [(None, ""), ((-2.6, 0.1), "not significant"), ((-2.4, -0.1), "worse")]
)
def test_a_difference_that_may_be_chance_is_not_judged(measured, ends, verdict) -> None:
    figures = storage.read_json(measured / "metrics.json")
    known = None if ends is None else {"low": ends[0], "high": ends[1], "detectable": 1.8}
    figures["interval"] = {} if ends is None else {"retrieval": {"mrr@10": known}}
    storage.write_json(measured / "metrics.json", figures)
    page = write_report(measured, measured.parent / "prepared")
    words = read(page).words
    # At the head and in the table.
    assert words.count("-1.25") == 2
    assert (ends is not None) == any(f", {verdict}" in word for word in words if verdict)
    text = page.read_text(encoding="utf-8")
    # At the head, in the table, and on the track.
    found = re.findall(r'class="(?:number |path )?worse"', text)
    assert len(found) == (3 if verdict == "worse" else 0)


def test_alarms_and_what_was_tested_stand_with_the_verdict(measured) -> None:
    figures = storage.read_json(measured / "metrics.json")
    ends = {"low": -2.6, "high": 0.1, "detectable": 1.8}
    figures["interval"] = {"retrieval": {"mrr@10": ends}}
    figures["sets"] = {"retrieval": {"evaluation": "retrieval", "role": "held_out"}}
    storage.write_json(measured / "metrics.json", figures | {"weight_change": 0.0})
    page = write_report(measured, measured.parent / "prepared").read_text(encoding="utf-8")
    assert "ALARM: The weights did not move" in page
    assert re.search(r'class="verdict not-significant".*Tested: MRR@10 on retrieval', page)


def test_one_line_and_losses_that_are_no_numbers(run) -> None:
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[0]) | {"loss": float("nan")}
    storage.write_text(run / "metrics.jsonl", json.dumps(line) + "\n")
    headings = page_of(run).headings
    assert headings == HEADINGS


def test_a_run_that_was_killed_says_so_and_shows_what_there_is(run) -> None:
    (run / "model").rmdir()
    (run / "metrics.json").unlink()
    (run / "samples.json").unlink()
    with (run / "metrics.jsonl").open("a") as torn:
        torn.write('{"step": 1')
    page = page_of(run)
    assert any("its last logged step is 120." in words for words in page.words)
    assert {"Training", "Where the time went"} <= set(page.headings)


def test_a_run_without_an_evaluation_says_so(logged) -> None:
    storage.write_json(logged / "metrics.json", {"training": {"steps": 3}})
    page = page_of(logged)
    assert any("no evaluation yet" in words for words in page.words)
    assert not any("has not finished" in words for words in page.words)


def test_hostile_texts_stay_texts(run) -> None:
    (run / "metrics.jsonl").unlink()
    samples = made_samples()
    for pair in samples["pairs"]:
        pair["texts"] = [HOSTILE, "long " * 400]
    for query in samples["neighbours"]:
        query["text"] = query["right"] = HOSTILE
        query["after"]["documents"][0]["text"] = HOSTILE
    storage.write_json(run / "samples.json", samples)
    figures = storage.read_json(run / "metrics.json")
    figures["after"][HOSTILE] = {HOSTILE: 3.0, "note": "no number", "nested": {"a": 1}}
    storage.write_json(run / "metrics.json", figures)
    line = {"step": 10, "evaluation": HOSTILE, "$ndcg$": 3.0}
    storage.write_text(run / "evaluations.jsonl", json.dumps(line) + "\n")
    page = page_of(run)
    # The page's own: of the map, and of the pictures.
    assert page.seen.count("script") == 2
    assert "img" not in page.seen
    assert page.words.count(shown(HOSTILE)) >= len(samples["neighbours"])
    raw = (run / "report.html").read_bytes()
    assert b"\x00" not in raw
    assert "\u202e" not in raw.decode()


def test_the_map_shows_each_pair_twice_and_counts_what_is_found(run) -> None:
    (run / "metrics.jsonl").unlink()
    page = page_of(run)
    assert page.seen.count("circle") == 2 * 2 * len(made_samples()["pairs"])
    assert "1 of 6 at rank 1" in page.words
    assert "5 of 6 at rank 1" in page.words
    assert any("6 queries, 5 rank" in words for words in page.words)


def test_a_model_whose_embeddings_are_no_numbers_has_a_page(run) -> None:
    (run / "metrics.jsonl").unlink()
    samples = made_samples()
    for pair in samples["pairs"]:
        pair["after"] = {"rank": None, "places": [[None, None], [None, None]]}
        pair["after"] |= {"cosine": None, "strange_cosine": None}
    storage.write_json(run / "samples.json", samples)
    assert "0 of 6 at rank 1" in page_of(run).words


def test_evaluations_over_the_steps_are_drawn_whatever_they_measure(run) -> None:
    (run / "metrics.jsonl").unlink()
    lines = [
        {"step": step, "evaluation": name, "pairs": 9, "f1": 50.0 + step, "uniformity": -2.0}
        for step in (10, 20, 30)
        for name in ("paraphrases", "held out")
    ]
    lines += [{"step": step, "evaluation": "before and after", "f1": 1.0} for step in (0, 30)]
    text = "".join(json.dumps(line) + "\n" for line in [*lines, {"step": None}, {"evaluation": 3}])
    storage.write_text(run / "evaluations.jsonl", text)
    page = page_of(run)
    titles = [words for words in page.words if words.endswith("over the steps")]
    assert titles == [
        "paraphrases over the steps",
        "paraphrases, Uniformity over the steps",
        "held out over the steps",
        "held out, Uniformity over the steps",
    ]
    assert {"F1", "Uniformity"} <= set(page.words)


def test_workers_that_did_not_measure_their_time_are_told_of(logged) -> None:
    change_lines(logged, lambda line: line | {"workers": []})
    page = page_of(logged)
    assert "Where the time went" in page.headings
    assert any("shows no times" in words for words in page.words)
    assert "communication" not in page.words


def test_time_that_is_not_told_apart_is_shown_as_one(logged) -> None:
    parts = {"data": 0.1, "arithmetic_and_communication": 1.75, "other": 0.15}
    worker = {"examples": 640, "tokens": 9000, "seconds": 2.0, **parts}
    change_lines(logged, lambda line: line | {"workers": [{"rank": 0, **worker}]})
    page = page_of(logged)
    assert "arithmetic and communication" in page.words
    assert "87.5 %" in page.words


def test_lost_workers_are_told_of(measured) -> None:
    lost = {"made": 1234, "time": "2026-11-20T03:04:05+00:00", "engine": "torch", "lane": 7}
    lost |= {"rank": 1, "host": "<node-3>", "cause": "the worker's process died\nTraceback"}
    add_restart(measured, Restart(step=1200, workers=3, **lost))
    page = page_of(measured)
    assert "Lost workers" in page.headings
    for words in (
        "2026-11-20T03:04:05+00:00",
        "engine torch, rank 1, host <node-3>, lane 7",
        "the worker's process died",
        "1,234",
        "step 1,200",
        "3 workers",
    ):
        assert words in page.words


def test_a_gradient_norm_that_not_all_lines_have_is_no_curve():
    lines = [
        {"step": step, "loss": 1.0, "learning_rate": 0.1, "examples_per_second": 1.0}
        for step in range(3)
    ]
    with_norms = [line | {"gradient_norm": 2.0} for line in lines]
    title = "Gradient norm, before clipping"
    assert title in [chart.title for chart in training_charts(with_norms)]
    assert title not in [chart.title for chart in training_charts([*with_norms, *lines])]


def test_each_source_has_a_curve_of_its_loss():
    lines = [
        {
            "step": step,
            "loss": 1.0,
            "learning_rate": 0.1,
            "examples_per_second": 1.0,
            "sources": {"often": {"loss": 2.0, "steps": 3}}
            | ({"seldom": {"loss": 0.5, "steps": 1}} if step % 2 else {}),
        }
        for step in range(8)
    ]
    titles = [chart.title for chart in training_charts(lines)]
    assert [title for title in titles if title.startswith("Loss of ")] == [
        "Loss of often",
        "Loss of seldom",
    ]


def altered(value: object) -> list[object]:
    """What a record may hold in another place, or another kind of."""
    if isinstance(value, dict):
        return ["text", [1], {key: [value[key]] for key in value}, dict.fromkeys(value, "?")]
    return ["text", {"a": 1}, [1, 2], [[one] for one in value], [{} for _ in value]]  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["metrics.json", "samples.json", "tokens.json", "environment.json", "jobs.json"]
)
def test_a_record_that_was_altered_is_drawn_or_named(run, name) -> None:
    record = json.loads((run / name).read_text()) if (run / name).is_file() else {"a": 1}
    before = (run / "report.html").exists()
    # Charts of other records take most of the time, and have no part in it.
    others = () if name == "metrics.json" else {"metrics.jsonl", "samples.json"} - {name}
    for other in others:
        (run / other).unlink()
    for value in altered(record):
        (run / name).write_text(json.dumps(value))
        try:
            drawn(lambda: write_report(run, run.parent / "prepared", run / "page.html"))
        except DamagedFileError as error:
            assert str(error).startswith(f"{run / name} is damaged (")
            assert "\n" not in str(error)
    assert (run / "report.html").exists() == before


def test_of_several_records_that_were_altered_one_is_named(run) -> None:
    for name in ("samples.json", "jobs.json", "metrics.json"):
        (run / name).write_text('["text"]')
    with pytest.raises(DamagedFileError, match=r"^\S+\.json is damaged \("):
        drawn(lambda: write_report(run, run.parent / "prepared", run / "page.html"))
    assert not (run / "page.html").exists()


def test_lines_and_a_funnel_that_were_altered_are_drawn_or_named(run) -> None:
    (run / "samples.json").unlink()
    for path, text in [
        (run / "metrics.jsonl", '{"step": "x"}\n{"step": [1]}\n'),
        (run / "evaluations.jsonl", '{"step": 1, "metrics": 3}\n[1]\n'),
        (run.parent / "prepared" / "corpus" / "funnel.json", '[{"name": 1}]'),
        (run.parent / "prepared" / "corpus" / "funnel.json", '{"rows": {}}'),
    ]:
        kept = path.read_bytes() if path.is_file() else b""
        path.write_text(text)
        try:
            drawn(lambda: write_report(run, run.parent / "prepared", run / "page.html"))
        except DamagedFileError as error:
            assert str(error).startswith(f"{path} is damaged (")
        path.write_bytes(kept)
        # Charts take their time.
        for drawn_of in ("metrics.jsonl", "samples.json"):
            (run / drawn_of).unlink(missing_ok=True)


def test_settings_of_a_run_that_are_none_name_their_file(run) -> None:
    (run / "config.yaml").write_text("training: {engine: abacus}\n")
    with pytest.raises(DamagedFileError, match=rf"^{run}/config\.yaml is damaged \(.*abacus"):
        drawn(lambda: write_report(run, run.parent / "prepared"))


def test_a_fault_that_no_record_has_is_not_laid_at_ones_door(run) -> None:
    def broken() -> None:
        read_if_there(run / "metrics.json", lambda path: None)
        raise KeyError("nothing of the records")

    with pytest.raises(KeyError, match="nothing of the records"):
        drawn(broken)


def test_the_contents_lead_to_each_section_that_there_is(run, whole_page) -> None:
    def sections(page: Path) -> tuple[list[str], list[str]]:
        text = page.read_text(encoding="utf-8")
        nav = text[text.index("<nav") : text.index("</nav>")]
        return re.findall(r'href="#(\w+)"', nav), re.findall(r'<section id="(\w+)"', text)

    named, there = sections(whole_page)
    assert named == there
    assert len(named) == 9
    (run / "samples.json").unlink()
    (run / "metrics.jsonl").unlink()
    named, there = sections(write_report(run, run.parent / "prepared"))
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
    words = page_of(run).words
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
