"""Several runs on one page: what they share, in what they differ, and what is refused."""

import html
import json
import re
import shutil
from pathlib import Path

import pytest
from logged_runs import write_run
from page_reader import read

from pipelines.cli import main
from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.jobs.report import report
from pipelines.report.pages import write_page
from pipelines.report.runs_page import (
    MOST_RUNS,
    differences,
    figure_groups,
    read_runs,
    run_names,
    write_comparison,
)
from pipelines.settings.load import dump, load, parse

# Of the drawing; what pages show is tested as values elsewhere.
pytestmark = pytest.mark.slow

HEADINGS = ["Runs", "Figures", "Curves", "Settings", "Time", "Environment"]


@pytest.fixture
def runs(tmp_path, monkeypatch) -> tuple[Path, Path]:
    """Two runs; the second one has another rate, host and half as many lines."""
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first, second = write_run(tmp_path / "one"), write_run(tmp_path / "two")
    same = ["training.engine=tensorflowonspark", "training.workers=2"]
    storage.write_text(
        second / "config.yaml", dump(load(None, [*same, "training.learning_rate=3e-4"]))
    )
    storage.write_json(second / "environment.json", {"python": "3.12.1", "host <b>": "a & b"})
    figures = storage.read_json(second / "metrics.json")
    figures["after"]["retrieval"]["mrr@10"] = 43.0
    storage.write_json(second / "metrics.json", figures)
    lines = (second / "metrics.jsonl").read_text().splitlines(keepends=True)
    storage.write_text(second / "metrics.jsonl", "".join(lines[:6]))
    return first, second


@pytest.fixture
def measured(runs) -> tuple[Path, Path]:
    """The same without lines of their training, whose charts take their time."""
    for run in runs:
        (run / "metrics.jsonl").unlink()
    return runs


def readings(page: Path, title: str) -> dict:
    found = re.search(rf'aria-label="{title}" data-values="([^"]*)"', page.read_text("utf-8"))
    return json.loads(html.unescape(found[1]))


def edit(path: Path, **changed) -> None:
    storage.write_json(path, storage.read_json(path) | changed)


def test_shows_what_runs_share_and_only_what_differs(runs, tmp_path, capsys):
    assert main(["report", *map(str, runs)]) == 0
    target = tmp_path / "comparison.html"
    assert capsys.readouterr().out.split() == ["report", str(target)]
    page = read(target)
    assert page.headings == HEADINGS
    for words in ("2 runs compared", "one/first-run", "two/first-run", "1h 02m", "node-1"):
        assert words in page.words
    for words in ("-1.25", "+3.00", "38.75", "43.00", "python", "3.11.7", "3.12.1"):
        assert words in page.words
    assert "rate" not in page.words
    keys = page.words[page.words.index("Settings", page.words.index("Curves")) :]
    assert keys[keys.index("training.") + 1] == "learning_rate"
    assert {"5e-05", "0.0003"} <= set(keys)
    assert keys.count("training.") == 1
    assert "host <b>" not in page.words
    # Both curves, each over its own steps.
    loss = readings(target, "Loss")["series"]
    assert [(one["label"], max(one["places"])) for one in loss] == [
        ("one/first-run", 120),
        ("two/first-run", 60),
    ]
    assert len({one["colour"] for one in loss}) == 2


@pytest.mark.slow
def test_needs_nothing_from_elsewhere_and_leads_to_the_reports(runs, tmp_path):
    report(load(None, [f"run.folder={runs[0]}"]))
    page = read(write_comparison(runs, tmp_path / "pages" / "both.html"))
    beside = [one for one in page.addresses if not one.startswith("#")]
    assert beside == ["../one/first-run/report.html"]
    inside = {one[1:] for one in page.addresses if one.startswith("#")}
    assert inside <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert "img" not in page.seen


@pytest.mark.slow
def test_a_page_of_one_run_is_its_report(measured, tmp_path, capsys):
    assert main(["report", "one/first-run"]) == 0
    assert capsys.readouterr().out.split()[1] == str(measured[0] / "report.html")
    page = read(measured[0] / "report.html")
    # Its own preparation is found by the run, and not by the settings.
    assert "Corpus" in page.headings
    assert main(["report", "one/first-run", "--output", "pages/one.html"]) == 0
    beside = [one for one in read(tmp_path / "pages/one.html").addresses if one[0] != "#"]
    assert beside == ["../one/first-run/model/", "../one/prepared/report.html"]


def test_a_page_of_the_user_in_a_folder_that_is_no_runs_stays(tmp_path):
    page = tmp_path / "report.html"
    page.write_text("<html>mine</html>")
    with pytest.raises(InputError, match=r"^run\.folder: .*report\.html, which `report` did not"):
        write_page(parse({"run": {"folder": str(tmp_path)}}), (), None)
    assert page.read_text() == "<html>mine</html>"


@pytest.mark.slow
@pytest.mark.usefixtures("measured")
def test_a_page_takes_the_place_of_a_page_alone(tmp_path, capsys):
    mine = tmp_path / "comparison.html"
    mine.write_text("<html>mine</html>")
    both = ["report", "one/first-run", "two/first-run"]
    assert main(both) == main([*both, "--output", str(mine)]) == 2
    assert capsys.readouterr().err.count("comparison.html, which `report` did not write.") == 2
    assert mine.read_text() == "<html>mine</html>"
    mine.unlink()
    assert main(both) == main(both) == 0


def test_the_preparation_of_a_run_of_an_earlier_release_is_what_its_settings_name(runs):
    (runs[0] / "jobs.json").unlink()
    (runs[0] / "metrics.jsonl").unlink()
    settings = load(None, ["prepared.folder=two/prepared"])
    storage.write_text(runs[0] / "config.yaml", dump(settings))
    page = read(report(load(None, []), [str(runs[0])]))
    assert "../../two/prepared/report.html" in page.addresses


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["one/first-run", "absent"], "RUN: there is no folder {}/absent. Name the folder"),
        (["absent"], "RUN: there is no folder {}/absent. Name the folder"),
        (["one/first-run", "one"], "RUN: {}/one holds no run. Name the folder of a training"),
        (["one"], "RUN: {}/one holds no run. Name the folder of a training"),
        (["one/first-run", "one/../one/first-run/"], "RUN: {}/one/../one/first-run is named twice"),
        (["one/first-run", "s3://me:sesame@bucket/a"], "RUN: `s3://bucket/a` holds credentials"),
        (["one/first-run"] * (MOST_RUNS + 1), "RUN: one chart cannot show 13 runs"),
        (["one/first-run", "two/first-run", "--output", "one"], "--output: {}/one is a folder"),
        (["one/first-run", "--output", ""], "--output: '' names no file or folder"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(runs, tmp_path, capsys, given, told):
    assert main(["report", *given]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {told.format(tmp_path)}")
    assert error.count("\n") == 1
    assert not (tmp_path / "comparison.html").exists()


def test_runs_that_share_nothing_are_drawn(runs, tmp_path):
    edit(runs[1] / "metrics.json", before={}, after={"dev": {"pairs": 7, "spearman": 80.0}})
    groups = figure_groups(read_runs(runs))
    told = [(group.first.evaluation, [run for run, _ in group.lines]) for group in groups]
    assert told == [("retrieval", [0]), ("dev", [1])]
    assert read(write_comparison(runs, tmp_path / "page.html")).headings == HEADINGS


def test_figures_of_other_data_are_said_to_be_so(measured, tmp_path):
    for run, digest in zip(measured, ("a1", "b2"), strict=True):
        edit(run / "metrics.json", measured={"model": "m", "sets": {"retrieval": digest}})
    figures = storage.read_json(measured[1] / "metrics.json")
    figures["after"]["retrieval"]["queries"] = figures["before"]["retrieval"]["queries"] = 6
    storage.write_json(measured[1] / "metrics.json", figures)
    (group,) = figure_groups(read_runs(measured))
    assert group.is_of_other_data
    assert group.basis == ""
    assert [figure.basis for _, figure in group.lines] == [
        "5 queries, 9 documents",
        "6 queries, 9 documents",
    ]
    words = read(write_comparison(measured, tmp_path / "page.html")).words
    assert any("measured on different data" in said for said in words)
    edit(measured[1] / "metrics.json", measured={"sets": {"retrieval": "a1"}})
    assert not figure_groups(read_runs(measured))[0].is_of_other_data


def test_runs_that_have_just_begun_have_a_page(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        storage.write_text(folder / "config.yaml", dump(load(None, [])))
        storage.write_json(folder / "environment.json", {})
    page = read(write_comparison(folders, tmp_path / "page.html"))
    assert page.headings == ["Runs", "Settings"]
    assert "not finished, step 0" in page.words
    assert "All settings are the same." in page.words
    assert any("no evaluation yet" in said for said in page.words)


def test_a_run_without_an_evaluation_is_named_beside_others(measured, tmp_path):
    page = read(write_comparison(measured, tmp_path / "page.html"))
    assert not any("no evaluation yet" in said for said in page.words)
    (measured[1] / "metrics.json").unlink()
    words = " ".join(read(write_comparison(measured, tmp_path / "page.html")).words)
    assert f"{measured[1].name} has no evaluation yet. Run evaluate on it." in words.replace(
        "`", ""
    )


def test_the_time_of_a_resumed_run_is_that_of_all_its_tries(runs, tmp_path):
    lines = [json.loads(line) for line in (runs[1] / "metrics.jsonl").read_text().splitlines()]
    for line, seconds in zip(lines, (1.0, 3.0, 1.5, 2.0, 4.0, 1.0), strict=True):
        line["seconds"] = seconds
    text = "".join(json.dumps(line) + "\n" for line in lines)
    storage.write_text(runs[1] / "metrics.jsonl", text)
    page = write_comparison(runs, tmp_path / "page.html")
    told = readings(page, "Loss by training time")
    assert told["axis"] == "seconds of training"
    assert told["series"][1]["places"] == [1, 3, 4.5, 5, 7, 8]


def test_a_run_that_is_many_times_as_long_does_not_hide_another(runs, tmp_path):
    lines = [json.loads(line) for line in (runs[0] / "metrics.jsonl").read_text().splitlines()]
    text = "".join(json.dumps(line | {"step": 50 * line["step"]}) + "\n" for line in lines)
    storage.write_text(runs[0] / "metrics.jsonl", text)
    page = write_comparison(runs, tmp_path / "page.html")
    assert readings(page, "Loss")["axis"] == "step"
    told = readings(page, "Loss by share of the steps")
    assert told["axis"] == readings(page, "Learning rate")["axis"] == "% of the steps"
    assert [one["places"][-1] for one in told["series"]] == [100, 100]


def test_as_many_runs_as_there_may_be_look_different(runs, tmp_path):
    # Curves of them would take a while, and are drawn in the same way.
    (runs[1] / "metrics.jsonl").unlink()
    folders = [shutil.copytree(runs[1], tmp_path / f"run-{n}") for n in range(MOST_RUNS)]
    text = write_comparison(folders, tmp_path / "page.html").read_text("utf-8")
    keys = re.findall(r'class="line" style="border-top: 3px (\w+ var\(--[\w-]+\))"', text)
    assert len(set(keys)) == MOST_RUNS


def test_texts_of_runs_stay_texts(runs, tmp_path):
    hostile = "<script>alert('a')</script>\u202e \x00"
    figures = storage.read_json(runs[0] / "metrics.json")
    figures["after"][hostile] = {hostile: 3.0}
    storage.write_json(runs[0] / "metrics.json", figures)
    edit(runs[0] / "environment.json", python=hostile)
    line = {"evaluation": hostile, "$ndcg$": 3.0}
    text = "".join(json.dumps(line | {"step": step}) + "\n" for step in (1, 2, 3))
    storage.write_text(runs[0] / "evaluations.jsonl", text)
    named = runs[0].rename(tmp_path / "<img src=x>")
    page = write_comparison([named, runs[1]], tmp_path / "page.html")
    told = read(page)
    assert told.seen.count("script") == 1
    assert "img" not in told.seen
    assert "\u202e" not in page.read_text("utf-8")


def test_runs_are_told_apart_by_the_ends_of_their_paths():
    assert run_names(["/a/b/first", "/a/b/second"]) == ["first", "second"]
    assert run_names(["/a/b/run/", "/a/c/run"]) == ["b/run", "c/run"]
    long = ["/" + "x" * 60 + "-1", "/" + "x" * 60 + "-2"]
    assert run_names(long) == ["x" * 14 + "…" + "x" * 12 + f"-{n}" for n in (1, 2)]
    # Where that leaves out in what they differ, they are as long as they are.
    alike = [f"/{'x' * 30}{n}{'x' * 30}" for n in (1, 2)]
    assert run_names(alike) == [path[1:] for path in alike]


def test_differences_are_told_as_settings_files_have_them():
    runs = [
        {"a": 1, "b": None, "c": [1, True], "d": 0.1, "f": "x"},
        {"a": 1, "b": 2, "c": [1, False], "d": 0.1, "e": 3, "f": "y"},
        {"a": 1, "b": None, "c": [1, True], "d": 0.1, "f": "z"},
    ]
    rows = {row.key: row for row in differences(runs, without=["f"])}
    assert {key: row.values for key, row in rows.items()} == {
        "b": ("null", "2", "null"),
        "c": ("[1, true]", "[1, false]", "[1, true]"),
        "e": ("–", "3", "–"),  # noqa: RUF001 - what is shown
    }
