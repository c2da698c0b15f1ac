"""Bounds of benchmarks: the file, what is beyond a bound, and how it is told."""

import json
import shlex

import pytest

from pipelines import cli
from pipelines.errors import InputError, PipelineError
from pipelines.provenance import given_on_command_line
from pipelines_bench import BENCHMARKS
from pipelines_bench.bounds import command
from pipelines_bench.bounds.command import Workplace, hold, printed_figures, repeating
from pipelines_bench.bounds.entries import COMPARE, OWN, Bound, Run, read_bounds
from pipelines_bench.bounds.judging import judged
from pipelines_bench.bounds.yardstick import yardstick

FILE = """
settings: [lanes.granule=8]
runs:
  - name: step
    benchmark: train
    options: {steps: 5}
    settings: [training.threads=1]
    bounds:
      - {name: torch, figure: rates.torch, over: rates.other, kind: ratio, at_least: 2, seen: "2.4"}
      - {name: bf16, figure: bf16, kind: ratio, at_least: 3, optional: true, seen: "3.5"}
  - name: search
    benchmark: duplicates
    bounds:
      - {name: jobs, figure: counts.0.jobs, kind: count, exactly: 7, seen: "7"}
      - {name: memory, figure: memory, kind: memory, at_most: 900, seen: "700"}
      - {name: speed, figure: seconds, over: yardstick, kind: ratio, at_most: 1.5, seen: "1"}
"""
GOOD = {
    "train": {"rates": {"torch": 5.0, "other": 2}, "bf16": None},
    "duplicates": {"counts": [{"jobs": 7}], "memory": 899.5, "seconds": 3},
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(FILE, encoding="utf-8")
    return path


@pytest.fixture
def measured(monkeypatch):
    """Benchmarks that return what is here, by name; an error is raised."""
    found = dict(GOOD)

    def figures(self, run):
        if isinstance(found[run.benchmark], Exception):
            raise found[run.benchmark]
        return found[run.benchmark]

    monkeypatch.setattr(Workplace, "figures", figures)
    monkeypatch.setattr(command, "yardstick", lambda: 2.0)
    return found


def held(file):
    """Exit code of the command."""
    return cli.main(["benchmark", "bounds", "--data", str(file)])


def broken_lines(captured):
    return [line for line in captured.out.splitlines() if "to repeat it:" in line]


def test_bounds_that_are_held_are_a_success(file, measured, capsys):
    assert held(file) == 0
    captured = capsys.readouterr()
    assert broken_lines(captured) == []
    assert "not measured here" in captured.out
    assert '"jobs": {"figure": 7.0, "held": true}' in captured.out


@pytest.mark.parametrize(
    ("name", "benchmark", "figures", "said"),
    [
        ("torch", "train", {"rates": {"torch": 3.9, "other": 2}}, "1.95 is not at least 2"),
        ("jobs", "duplicates", {"counts": [{"jobs": 8}]}, "8 is not exactly 7"),
        ("memory", "duplicates", {"memory": 900.5}, "900.5 is not at most 900"),
        ("speed", "duplicates", {"seconds": 3.2}, "1.6 is not at most 1.5"),
        ("speed", "duplicates", {"seconds": None}, "the benchmark could not measure it"),
        ("jobs", "duplicates", {"counts": []}, "the benchmark gives no counts.0.jobs"),
        ("torch", "train", {"rates": {"torch": 1, "other": 0}}, "nan is not at least 2"),
    ],
)
def test_each_bound_that_is_broken_has_a_line(
    name, benchmark, figures, said, file, measured, capsys
):
    measured[benchmark] = GOOD[benchmark] | figures
    assert held(file) == 1
    captured = capsys.readouterr()
    run = {"train": "step", "duplicates": "search"}[benchmark]
    again = f"sentence-pipelines benchmark bounds --data {file} --cases {run}"
    assert broken_lines(captured) == [f"{name}: {said}; to repeat it: {again}"]
    # The last line but for where Spark has its log, if there was a session before.
    assert f"error: beyond its bound: {name}" in captured.err.splitlines()


def test_a_benchmark_that_fails_breaks_its_bounds_and_no_others(file, measured, capsys):
    measured["train"] = PipelineError("it ended with code 1")
    assert held(file) == 1
    lines = broken_lines(capsys.readouterr())
    assert [line.split(":")[0] for line in lines] == ["torch", "bf16"]
    assert "it was not measured (it ended with code 1)" in lines[0]


def test_the_command_that_repeats_a_run_can_be_run_as_it_stands(file, measured, capsys):
    given = ["benchmark", "bounds", f"--data={file}", "--set", "corpus.inputs=a b", "--cases=step"]
    with given_on_command_line(given):
        program, *again = shlex.split(repeating(read_bounds(file).runs[1]))
    assert program == "sentence-pipelines"
    assert cli.main(again) == 0
    assert [*json.loads(capsys.readouterr().out.splitlines()[-1])["seconds"]] == ["search"]
    # From Python, no command was given.
    assert repeating(read_bounds().runs[0]).endswith("benchmark bounds --cases counts")


def test_some_of_the_runs_can_be_chosen(file, measured):
    bounds = read_bounds(file)
    assert [run.name for run in bounds.chosen("search")] == ["search"]
    assert bounds.chosen(None) == bounds.runs
    for names in ("nobody", ","):
        with pytest.raises(InputError, match=r"there is no run .* Choose from step, search"):
            bounds.chosen(names)
    verdicts, seconds = hold(bounds.chosen("step"), lambda run: GOOD[run.benchmark])
    assert [one.bound.name for one in verdicts] == ["torch", "bf16"]
    assert [*seconds] == ["step"]


BOUND = {"name": "a", "figure": "b", "kind": "count", "exactly": 1, "seen": "1"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"exactly": None}, "it has 0 limits"),
        ({"at_most": 3}, "it has 2 limits"),
        ({"kind": "ratio"}, "a ratio cannot be bounded by exactly"),
        ({"kind": "seconds"}, "'ratio', 'count' or 'memory'"),
        ({"over": "c"}, "what is over something is a ratio"),
        ({"seen": None}, "valid string"),
        ({"wrong": 1}, "Extra inputs"),
    ],
)
def test_only_bounds_that_hold_on_every_machine_can_be_written(changed, message):
    with pytest.raises(ValueError, match=message):
        Bound.model_validate(BOUND | changed)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("runs: []", r"own.yaml, runs: .*at least 1"),
        (FILE.replace("name: speed", "name: torch"), "two bounds are called torch"),
        (FILE.replace("name: search", "name: step"), "two runs are called step"),
        (FILE.replace("benchmark: train", "benchmark: bounds"), "there is no benchmark `bounds`"),
        ("runs: [", "cannot be read"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(text, message, tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_bounds(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        read_bounds(tmp_path / "none.yaml")


def test_a_run_is_the_command_of_its_benchmark(tmp_path):
    run = Run(
        name="a",
        benchmark="embed",
        options={"data": "{prepared}/pairs", "sentences": 9},
        settings=("training.threads=2",),
        bounds=(Bound.model_validate(BOUND),),
    )
    place = Workplace(tmp_path, tmp_path, ("corpus.inputs=[{folder}/a]",))
    given = place.command(run)[3:]
    prepared = tmp_path / "prepared"
    assert given[:4] == ["benchmark", "embed", f"--data={prepared}/pairs", "--sentences=9"]
    assert [one for one in given if "=" in one][2:] == [
        f"prepared.folder={prepared}",
        f"corpus.inputs=[{tmp_path}/a]",
        "training.threads=2",
    ]


def test_the_figures_are_the_last_object_that_is_printed():
    log = 'starting\n{"a": 1}\n{"a": [1, null]}reading 3 files\n{ no JSON\nend'
    assert printed_figures(log) == {"a": [1, None]}
    with pytest.raises(PipelineError, match="printed no figures"):
        printed_figures("starting\n")


FAILING = """
runs:
  - name: nothing
    benchmark: compare
    options: {cases: nothing}
    bounds: [{name: first, figure: a, kind: count, exactly: 1, seen: "1"}]
"""
MEASURED = """
  - name: tokens
    benchmark: tokenise
    options: {data: TEXTS}
    # Its tasks run in the driver: executors would be started for nothing.
    settings:
      - spark.master=local[1]
      # As in conftest.py: compilation costs more than it gives.
      - spark.sql.codegen.wholeStage=false
      - spark.sql.codegen.factoryMode=NO_CODEGEN
    bounds:
      - {name: wrong, figure: differing_sentences, kind: count, exactly: 1, seen: "0"}
      - {name: right, figure: sentences, kind: ratio, at_least: 1, seen: "100"}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "held"),
    [
        ("", {"first": False}),
        pytest.param(
            MEASURED,
            {"first": False, "wrong": False, "right": True},
            marks=pytest.mark.matrix,
        ),
    ],
    ids=["failing", "measured"],
)
def test_a_broken_bound_fails_the_command_and_the_others_are_judged(more, held, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("A text.\nAnother one, a little longer.\n" * 50)
    own, output = tmp_path / "own.yaml", tmp_path / "output"
    own.write_text(FAILING + more.replace("TEXTS", str(tmp_path)), encoding="utf-8")
    given = ["benchmark", "bounds", "--data", str(own), "--output", str(output)]
    assert cli.main(given) == 1
    told = capsys.readouterr()
    figures = json.loads(told.out.splitlines()[-1])
    assert {name: one["held"] for name, one in figures["bounds"].items()} == held
    failed, *wrong = broken_lines(told)
    assert "it ended with code 2: --cases: there is no strategy `nothing`" in failed
    assert [line.partition("; to repeat it: sentence-pipelines")[0] for line in wrong] == [
        "wrong: 0 is not exactly 1" for name in held if name == "wrong"
    ]
    broken = [name for name, is_held in held.items() if not is_held]
    assert f"error: beyond its bound: {'; '.join(broken)}" in told.err.splitlines()
    logs = {"nothing.log", "tokens.log"} if more else {"nothing.log"}
    assert {file.name for file in output.iterdir()} == logs


def test_the_bounds_of_this_package_are_of_its_benchmarks():
    runs = read_bounds().runs
    assert {run.benchmark for run in runs} <= {*BENCHMARKS, COMPARE} - {OWN}


def test_the_yardstick_is_the_same_work_each_time():
    first, second = yardstick(), yardstick()
    assert first > 0
    assert 0.2 < first / second < 5


def test_a_figure_is_judged_by_its_ratio_to_the_yardstick(file):
    search = read_bounds(file).runs[1]
    speed = judged(search, GOOD["duplicates"], 1.5)[-1]
    assert (speed.figure, speed.is_broken) == (2.0, True)
