"""Stages that are not run again, and lanes that come out the same byte for byte."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from corpus_factory import small_config, write_docstrings
from embedding_fixtures import small_model

import pipelines
from pipelines.jobs.prepare import STAGES
from pipelines.settings.load import dump

__all__ = ["small_model"]

JOBS = Path(__file__).resolve().parents[2] / "jobs"
# As in conftest.py: compilation costs more than it gives.
BRIEF = {
    "master": "local[1]",
    "sql.codegen.wholeStage": "false",
    "sql.codegen.factoryMode": "NO_CODEGEN",
}


def digests(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "stage.json"
    }


def stages(folder):
    return {
        stage["stage"]: stage["kept"] for stage in json.loads((folder / "stages.json").read_text())
    }


@pytest.fixture
def folder(prepared, tmp_path):
    """A copy of what is prepared from the small corpus, as it was left."""
    return Path(shutil.copytree(prepared, tmp_path / "prepared"))


@pytest.fixture
def config(prepared, folder):
    """What the copy was prepared by: the texts beside what it is a copy of."""
    return small_config(prepared).changed("prepared", folder=str(folder))


def inputs_of(config):
    """What the stages are made from beside those before them."""
    return {stage.name: stage.inputs(config) for stage in STAGES if stage.is_asked(config)}


@pytest.mark.parametrize(
    ("section", "settings", "stage"),
    [
        ("corpus", {"min_characters": 20}, "corpus"),
        ("tokens", {"max_length": 24}, "tokens"),
        ("lanes", {"seed": 5}, "lanes"),
        ("training", {"granules_per_step": 1}, "lanes"),
        ("training", {"seed": 5}, None),
    ],
)
def test_a_setting_counts_for_the_stage_that_reads_it(tmp_path, section, settings, stage):
    config = small_config(tmp_path / "prepared")
    (tmp_path / "docstrings.jsonl").write_text('{"text": "A text."}')
    known, changed = inputs_of(config), inputs_of(config.changed(section, **settings))
    assert [name for name in known if known[name] != changed[name]] == [stage] * bool(stage)


def test_only_what_changed_is_run_again(folder, config, small_model, caplog):
    manifest = pipelines.prepare(config)
    assert stages(folder) == {"corpus": True, "tokens": True, "lanes": True}
    before = digests(folder / "lanes")
    tokens = digests(folder / "tokens")
    taught = config.changed("teacher", model=str(small_model))
    assert "teacher.model" not in caplog.text
    assert pipelines.prepare(taught).teacher.width == 32
    told = "teacher.model is set, but objective.name=in_batch_negatives uses no teacher"
    assert caplog.text.count(told) == 1
    assert stages(folder) == {"corpus": True, "tokens": True, "teacher": False, "lanes": False}
    # What the teacher is asked does not depend on the tokens.
    pipelines.prepare(taught.changed("tokens", max_length=24))
    assert stages(folder) == {"corpus": True, "tokens": False, "teacher": True, "lanes": False}
    assert digests(folder / "lanes") != before
    assert pipelines.prepare(config.changed("prepared", reuse=False)) == manifest
    assert stages(folder) == {"corpus": False, "tokens": False, "lanes": False}
    assert digests(folder / "lanes") == before
    assert digests(folder / "tokens") == tokens
    assert (folder / "report.html").is_file()


def test_a_job_that_was_killed_is_finished_by_the_next(prepared, tmp_path):
    write_docstrings(tmp_path / "docstrings.jsonl")
    folder = tmp_path / "prepared"
    config = small_config(folder)
    # What is killed needs no cluster, whose executors would be more to start.
    (tmp_path / "job.yaml").write_text(dump(config.changed("spark", **BRIEF)))
    command = [sys.executable, str(JOBS / "prepare.py"), "--config", str(tmp_path / "job.yaml")]
    # What is killed leaves its temporary files.
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    places = {"TMPDIR": str(temporary), "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={temporary}"}
    job = subprocess.Popen(command, start_new_session=True, env=os.environ | places)
    try:
        deadline = time.monotonic() + 240
        while not list(folder.glob(".tokens.*.part")):
            assert job.poll() is None and time.monotonic() < deadline, "no tokens were begun"
            time.sleep(0.02)
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait(timeout=60)
    assert not (folder / "lanes").exists()
    pipelines.prepare(config)
    assert stages(folder) == {"corpus": True, "tokens": False, "lanes": False}
    assert digests(folder / "lanes") == digests(prepared / "lanes")
    assert not list(folder.glob(".*"))
