"""What the DAGs make of the ids of their runs and of overrides; needs no Airflow."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT / "jobs" / "dags" / "sentence_encoder"


class FailError(Exception):
    """Stands for Airflow's."""


@pytest.fixture
def deployment(monkeypatch) -> ModuleType:
    """The module, with what it imports of Airflow stood in for."""
    versions = ModuleType("sentence_encoder.airflow_versions")
    variable = {"runs": "/runs", "config": "job.yaml"}
    vars(versions).update(
        AirflowFailException=FailError,
        AirflowSkipException=FailError,
        json_variable=lambda _name: variable,
    )
    monkeypatch.setitem(sys.modules, "sentence_encoder", ModuleType("sentence_encoder"))
    monkeypatch.setitem(sys.modules, versions.__name__, versions)
    spec = importlib.util.spec_from_file_location("deployment", SHARED / "deployment.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


IDS = (
    *("a+b", "a:b", "a-b", "a-b.outcomes", "a b", "a/b", "a//b"),
    *("..", ".", "...", "../..", "", "-"),
    *("manual__2026-01-01T00:00:00+00:00", "manual__2026-01-01T00:00:00-00:00"),
    *("ä", "ö", "x" * 250, "x" * 249 + "y"),
)


def test_each_run_has_a_folder_of_its_own_below_that_of_its_dag(deployment):
    names = {run_id: deployment.run_name(run_id) for run_id in IDS}
    assert len(set(names.values())) == len(IDS)
    # Where the outcomes of the run `a-b` are.
    assert "a-b.outcomes" not in names.values()
    for name in names.values():
        assert re.fullmatch(r"[A-Za-z0-9._-]{1,240}", name)
        assert name.strip(".")
    assert names["a-b"] == "a-b"
    ti = SimpleNamespace(dag_id="dag", run_id="..")
    folder = Path(deployment.run_folder(ti, {"run": None}))
    assert folder.resolve().parent == Path("/runs/dag")


@pytest.mark.parametrize(
    "override",
    [
        *("run={overwrite: true}", "run=", "run.folder=/x", "run.overwrite=true"),
        *("training.resume=false", "training={resume: false}", " run={overwrite: true}"),
        *("run ={overwrite: true}", "\trun.overwrite=true", "nothing", "=x"),
    ],
)
def test_a_run_sets_nothing_that_decides_what_becomes_of_its_folder(deployment, override):
    assert not re.match(deployment.OVERRIDE, override)
    ti = SimpleNamespace(dag_id="dag", run_id="a", task_id="train", try_number=1)
    params = {"config": None, "run": None, "force": False, "overrides": [override]}
    with pytest.raises(FailError, match="overrides"):
        deployment.job_arguments(ti, params)


def test_a_run_sets_all_else(deployment):
    overrides = ["training.max_steps=5", "runs.x=1", "corpus={format: jsonl}", "a.b=c=d"]
    assert all(re.match(deployment.OVERRIDE, one) for one in overrides)
    ti = SimpleNamespace(dag_id="dag", run_id="a", task_id="train", try_number=1)
    params = {"config": None, "run": None, "force": False, "overrides": overrides}
    arguments = deployment.job_arguments(ti, params)
    assert "run.folder=/runs/dag/a" in arguments
    assert [one for one in arguments if one in overrides] == overrides
