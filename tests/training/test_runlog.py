"""The metrics lines of a run, and its folder, whenever its driver is killed."""

import json
import multiprocessing
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from planned_runs import make_run

from pipelines.config import parse
from pipelines.errors import InputError
from pipelines.lanes.plan import BatchPlan
from pipelines.settings import Config
from pipelines.training.checkpoint import checkpoint_steps
from pipelines.training.runlog import RunLog, can_resume, check_run_folder, open_run_folder

LINE = {"loss": 1.0, "examples_per_second": 2.0}
PLAN = BatchPlan(lanes=4, rows=30, granules_per_step=2, seed=1)
MANIFEST = SimpleNamespace(granule=8, lanes=4, rows=30, tokens=100, vocabulary=50)
STEP = "checkpoints/step-000000{}/state.json"
FILES = ("metrics.jsonl", "report.html", "start/a", "start/b", "model/a", STEP.format("10"))
BEGUN = {"checkpoints", "config.yaml", "environment.json"}
KILLED = 9
CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir")


def test_lines_of_steps_that_are_made_again_are_replaced(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 2}\n{"step": 4}\n{"st')
    with RunLog(make_run(9, first_step=3, folder=tmp_path)) as log:
        for step, loss in ((4, 1.0), (6, 1.0), (8, 1.0), (6, 2.0), (8, 2.0), (9, 2.0)):
            log.add(LINE | {"step": step, "loss": loss})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4, 6, 8, 9]
    assert [line["loss"] for line in lines[1:]] == [1.0, 2.0, 2.0, 2.0]


def config_of(folder: Path, **run) -> Config:
    resume = run.pop("resume", False)
    return parse({"run": {"folder": str(folder), **run}, "training": {"resume": resume}})


def write_run(folder: Path) -> None:
    """A run of twenty steps, with something of all kinds that a run leaves."""
    open_run_folder(config_of(folder), PLAN, MANIFEST, 20)
    for name in (*FILES, STEP.format("20")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def overwrite_until(change: int, folder: Path) -> None:
    """Overwrites a run, and dies before a change in the file system; runs in a process."""
    left = change

    def count(event: str, _: tuple) -> None:
        nonlocal left
        left -= event in CHANGES
        if left < 0:
            os._exit(KILLED)

    sys.addaudithook(count)
    open_run_folder(config_of(folder, overwrite=True), replace(PLAN, seed=2), MANIFEST, 20)
    # Before the interpreter goes, which changes files too.
    os._exit(0)


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def check_killed(folder: Path, tmp_path: Path) -> None:
    """Whoever comes next can go on with the folder, and gets nothing that is half there."""
    resumed = Path(shutil.copytree(folder, tmp_path / "resumed"))
    _, is_run = check_run_folder(config_of(resumed, resume=True))
    # Half a run of one seed must not be gone on with by another seed.
    seed = json.loads((resumed / "checkpoints/plan.json").read_text())["training.seed"]
    open_run_folder(config_of(resumed, resume=True), replace(PLAN, seed=seed), MANIFEST, 20)
    assert can_resume(resumed) <= is_run
    assert not can_resume(resumed) or seed == 1
    assert not (resumed / "start").exists() or names_in(resumed / "start") == {"a", "b"}
    shutil.rmtree(resumed)

    open_run_folder(config_of(folder, overwrite=True), replace(PLAN, seed=2), MANIFEST, 20)
    assert names_in(folder) == BEGUN | {"checkpoints/plan.json"}


def test_an_overwriting_that_is_killed_at_any_step_locks_nobody_out(tmp_path):
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["pytest", "pipelines.training.runlog"])
    codes = []
    while not codes or codes[-1] == KILLED:
        folder = tmp_path / f"run-{len(codes)}"
        write_run(folder)
        process = processes.Process(target=overwrite_until, args=(len(codes), folder))
        process.start()
        process.join(60)
        codes.append(process.exitcode)
        check_killed(folder, tmp_path)
    assert codes[-1] == 0
    # Each file and folder of the run was about to be deleted once.
    assert len(codes) > len(FILES) + len(BEGUN)


def test_checkpoints_without_what_makes_a_run_are_nobodys_to_delete(tmp_path):
    write_run(tmp_path / "run")
    for name in ("metrics.jsonl", "report.html", "environment.json"):
        (tmp_path / "run" / name).unlink()
    for name in ("start", "model"):
        shutil.rmtree(tmp_path / "run" / name)
    with pytest.raises(InputError, match=r"^run\.folder: .* holds other files"):
        open_run_folder(config_of(tmp_path / "run", overwrite=True), PLAN, MANIFEST, 20)
    assert checkpoint_steps(tmp_path / "run") == [10, 20]
