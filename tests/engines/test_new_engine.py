"""A new engine is a file and a line of the registry: all else follows."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from engine_cases import engine_cases, resumed
from fork_engine import ENTRY
from reference import engines_page

from pipelines.catalog import ENGINES, STEPPERS
from pipelines.cli import main
from pipelines.engines.base import check_conf, check_fit, load_engine
from pipelines.engines.overview import all_rules
from pipelines.errors import EngineUnavailable, InputError
from pipelines.runs.checkpoint import checkpoint_steps
from pipelines.settings import Config


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """The line of the registry; numpy is registered as a framework beside it."""
    monkeypatch.setitem(ENGINES.entries, "test", ENTRY)
    monkeypatch.setitem(STEPPERS.entries, "numpy", "numpy_stepper:NumpyStepper")


def test_it_is_a_case_of_the_contract_suite():
    (one,) = (one for one in engine_cases() if one.name == "test")
    assert one.make().name == "test"


def test_it_trains_and_resumes(make_run):
    run = make_run(6, workers=1, framework="numpy", checkpoint_every=4)
    lines = []
    outcome = load_engine("test").train(None, run, lines.append)
    assert [line["loss"] for line in lines] == list(outcome.losses)
    assert checkpoint_steps(run.run_folder) == [0, 4, 6]
    again = load_engine("test").train(None, resumed(run, 4), lines.append)
    np.testing.assert_allclose(again.losses, outcome.losses[4:], rtol=1e-4)


def test_settings_that_it_does_not_know_are_refused(make_run):
    check_fit(load_engine("test"), make_run(1, framework="numpy").config)
    with pytest.raises(InputError, match=r"^training\.framework: engine test has no"):
        check_fit(load_engine("test"), Config())


def test_its_conf_rules_are_checked():
    (rule,) = all_rules("test")
    with pytest.raises(EngineUnavailable, match=f"^{rule.key}: engine test "):
        check_conf({rule.key: "true"}, "test", [rule])


def test_the_overview_and_the_page_have_it(capsys):
    assert main(["engines"]) == 0
    assert "the tests" in capsys.readouterr().out
    assert main(["engines", "test"]) == 0
    details = capsys.readouterr().out
    assert all(text in details for text in ("A test engine.", "A curve.", "Tested."))
    page = engines_page()
    assert "| `test` | sync | numpy | lanes, memory | none |  | no |" in page
    assert "| `test` sync | A curve. | Tested. | A test engine. |" in page
    (rule,) = (line for line in page.splitlines() if line.startswith("| `spark.speculation` |"))
    assert "`test`" in rule


def test_a_missing_library_is_told_with_its_install_command(monkeypatch):
    monkeypatch.setitem(ENGINES.entries, "test", "no_such_library:ForkEngine")
    with pytest.raises(EngineUnavailable, match=r"pip install \"sentence-pipelines\[test\]\""):
        load_engine("test")
    with pytest.raises(InputError, match=r"^training\.engine: there is no engine `none`"):
        load_engine("none")


def test_the_catalog_imports_no_engine():
    code = "import sys, pipelines.catalog; print(*(m for m in sys.modules if m.startswith('pipe')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"pipelines", "pipelines.catalog", "pipelines.errors"}
