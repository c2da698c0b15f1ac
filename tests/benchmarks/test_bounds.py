"""Bounds of benchmarks: how their file is read and figures are judged, and the command."""

import json

import pytest

from pipelines.benchmarks import BENCHMARKS, bounds
from pipelines.benchmarks.bounds import judge, read_bounds
from pipelines.cli import main
from pipelines.errors import PipelineError

FILE = """
train:
  bounds:
    - {figure: ratio, at_least: 2}
    - {figure: rows.1.bytes, at_most: 100}
    - {figure: differing, equals: 0}
"""


def verdicts(**figures):
    (one,) = read_bounds(FILE).values()
    return [each.is_broken for each in judge("train", one.bounds, figures)]


def test_figures_are_judged_by_their_bounds():
    assert verdicts(ratio=2, rows=[{}, {"bytes": 100}], differing=0) == [False] * 3
    assert verdicts(ratio=1.99, rows=[{}, {"bytes": 101}], differing=1) == [True] * 3


def test_what_a_machine_cannot_measure_breaks_nothing():
    assert verdicts(ratio=None, rows=[{}, {"bytes": None}], differing=0) == [False] * 3


@pytest.mark.parametrize("figures", [{}, {"ratio": 2, "rows": []}, {"ratio": 2, "rows": 1}])
def test_a_figure_that_is_not_there_is_an_error(figures):
    with pytest.raises(PipelineError, match="it has no figure"):
        verdicts(**figures)


@pytest.mark.parametrize(
    "bound", ["{figure: a}", "{figure: a, at_least: 1, at_most: 2}", "{figure: a, around: 1}"]
)
def test_a_bound_is_of_one_kind(bound):
    with pytest.raises(ValueError, match=r"at_least|around"):
        read_bounds(f"train: {{bounds: [{bound}]}}")


def test_bounds_are_of_benchmarks_that_there_are():
    assert {*bounds._chosen(None)} < {*BENCHMARKS}


def test_benchmarks_without_bounds_are_refused(capsys):
    assert main(["benchmark", "bounds", "--cases", "soak"]) == 2
    assert "--cases: `soak` has no bounds" in capsys.readouterr().err


@pytest.mark.slow
def test_a_broken_bound_fails_the_command_and_the_others_are_judged(tmp_path, monkeypatch, capsys):
    (tmp_path / "texts.txt").write_text("A text.\nAnother one, a little longer.\n" * 50)
    options = ["--cases", "nothing"]
    known = {
        # The benchmark fails: it knows no such case.
        "strategies": {"options": options, "bounds": [{"figure": "a", "at_least": 1}]},
        "tokenise": {
            "options": ["--set", "prepared.folder={folder}/prepared"],
            "bounds": [
                {"figure": "differing_sentences", "equals": 1},
                {"figure": "sentences", "at_least": 1},
            ],
        },
    }
    monkeypatch.setattr(bounds, "_chosen", lambda _: read_bounds(json.dumps(known)))
    assert main(["benchmark", "bounds", "--data", str(tmp_path)]) == 1
    told = capsys.readouterr()
    figures = json.loads(told.out.splitlines()[-1])
    assert [one["figure"] for one in figures["bounds"]] == ["differing_sentences", "sentences"]
    assert (
        "strategies failed: it ended with code 2: --cases: there is no strategy `nothing`"
        in told.err
    )
    assert "tokenise differing_sentences is 0, exactly 1 (again: sentence-pipelines" in told.err
