"""The metrics lines of a run, and its folder, whenever its driver is killed."""

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from forks import forks
from planned_runs import make_run
from steppers import SPEC

from pipelines.errors import InputError
from pipelines.files.locations import RemotePath
from pipelines.lanes.plan import BatchPlan
from pipelines.models.weights import random_weights
from pipelines.runs.checkpoint import Checkpoint, checkpoint_steps, save_checkpoint
from pipelines.runs.model_choice import WHOLE
from pipelines.runs.opening import (
    check_run_folder,
    open_run_folder,
    resumed_step,
    tell_if_finished,
    trained_identity,
)
from pipelines.runs.step_metrics import MetricsLog
from pipelines.settings import Config
from pipelines.settings.load import parse
from pipelines.settings.objective import objective

LINE = {"loss": 1.0, "examples_per_second": 2.0}
PLAN = BatchPlan(lanes=4, rows=30, granules_per_step=2, seed=1)
MANIFEST = SimpleNamespace(granule=8, digest="0123456789abcdef")
STEP = "checkpoints/step-000000{}/state.json"
FILES = (
    "metrics.jsonl",
    "report.html",
    "start/config.json",
    "start/README.md",
    "model/config.json",
    STEP.format("10"),
)
BEGUN = {"checkpoints", "config.yaml", "environment.json"}
KILLED = 9
CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir")


def test_lines_of_steps_that_are_made_again_are_replaced(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 2}\n{"step": 4}\n{"st')
    with MetricsLog(make_run(9, first_step=3, folder=tmp_path)) as log:
        for step, loss in ((4, 1.0), (6, 1.0), (8, 1.0), (6, 2.0), (8, 2.0), (9, 2.0)):
            log.add(LINE | {"step": step, "loss": loss})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4, 6, 8, 9]
    assert [line["loss"] for line in lines[1:]] == [1.0, 2.0, 2.0, 2.0]


def test_steps_that_are_rounded_otherwise_than_those_before_are_told_of(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 2, "precision": "fp32"}\n{"step": 4, "precision": "fp32"}\n')
    # Each goes on from step 2, which was computed in fp32.
    for precision, told in (("fp32", 0), ("bf16", 1), ("bf16", 2)):
        with MetricsLog(make_run(9, first_step=2, folder=tmp_path)) as log:
            log.add(LINE | {"step": 4, "precision": precision})
            log.add(LINE | {"step": 6, "precision": precision})
        assert len(caplog.messages) == told
    assert "the precision changes from fp32 to bf16 at this step" in caplog.text


def test_a_store_has_the_lines_before_a_checkpoint(tmp_path, caplog):
    folder = RemotePath.parse(f"memory://{tmp_path.name}/run")
    path = folder / "metrics.jsonl"

    def add(log, step):
        log.add(LINE | {"step": step})
        log.step_done(step)

    run = make_run(9, folder=folder, checkpoint_every=3, log_every=1)
    with MetricsLog(run) as log:
        add(log, 1)
        assert not path.exists(), "each request costs"
        for step in (2, 3, 4):
            add(log, step)
        assert len(path.read_text().splitlines()) == 3
        log.checkpoint_saved()
        assert len(path.read_text().splitlines()) == 4
    for first, told in ((4, 0), (6, 1)):
        MetricsLog(make_run(9, first_step=first, folder=folder, log_every=1))
        assert [line.getMessage() for line in caplog.records] == told * [
            "metrics.jsonl lacks steps 5 to 6: the earlier job was killed before it wrote"
            " their lines"
        ]


@pytest.mark.parametrize(
    ("kept", "lines", "log_every", "step"),
    [
        ((0, 20, 40), range(1, 41), 1, 40),
        # The driver was killed beside a worker that had just written the checkpoint.
        ((0, 20, 40), range(1, 37), 1, 20),
        ((0, 20), (), 1, 0),
        # The checkpoint before it has gone, or misses lines too: the log was lost otherwise.
        ((40,), range(1, 37), 1, 40),
        ((0, 20, 40), (), 1, 40),
        # The next line is due after the checkpoint.
        ((0, 20, 40), (16, 32), 16, 40),
        ((0, 20, 40), (16,), 16, 20),
    ],
)
def test_a_resumed_run_repeats_steps_whose_lines_were_never_written(
    tmp_path, caplog, kept, lines, log_every, step
):
    weights = random_weights(SPEC, 3)
    for checkpoint in kept:
        save_checkpoint(tmp_path, Checkpoint(checkpoint, SPEC, weights, {}), 9)
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {line}}}\n' for line in lines))
    assert resumed_step(tmp_path, log_every) == step
    goes_back = step != kept[-1]
    assert len(caplog.messages) == goes_back
    assert (f"goes on from step {step}, not {kept[-1]}" in caplog.text) == goes_back


def config_of(folder: Path, **run) -> Config:
    resume = run.pop("resume", False)
    return parse({"run": {"folder": str(folder), **run}, "training": {"resume": resume}})


def write_run(folder: Path) -> None:
    """A run of twenty steps, with something of all kinds that a run leaves."""
    open_run_folder(config_of(folder), PLAN, MANIFEST)
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
    open_run_folder(config_of(folder, overwrite=True), replace(PLAN, seed=2), MANIFEST)
    # Before what the process goes on to do, which may change files too.
    os._exit(0)


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def check_killed(folder: Path, tmp_path: Path) -> None:
    """Whoever comes next can go on with the folder, and gets nothing that is half there."""
    resumed = Path(shutil.copytree(folder, tmp_path / "resumed"))
    _, is_run = check_run_folder(config_of(resumed, resume=True))
    # Half a run of one seed must not be gone on with by another seed.
    seed = json.loads((resumed / "checkpoints/plan.json").read_text())["training.seed"]
    config = config_of(resumed, resume=True)
    _, goes_on = open_run_folder(config, replace(PLAN, seed=seed), MANIFEST)
    assert goes_on == bool(checkpoint_steps(resumed))
    assert goes_on <= is_run
    assert not goes_on or seed == 1
    assert not (resumed / "start").exists() or names_in(resumed / "start") == {
        "config.json",
        "README.md",
    }
    shutil.rmtree(resumed)

    open_run_folder(config_of(folder, overwrite=True), replace(PLAN, seed=2), MANIFEST)
    assert names_in(folder) == BEGUN | {"checkpoints/plan.json"}


@pytest.mark.slow
def test_an_overwriting_that_is_killed_at_any_step_locks_nobody_out(tmp_path):
    codes = []
    with forks() as exit_code:
        while not codes or codes[-1] == KILLED:
            folder = tmp_path / f"run-{len(codes)}"
            write_run(folder)
            codes.append(exit_code(overwrite_until, len(codes), folder))
            check_killed(folder, tmp_path)
    assert codes[-1] == 0
    # Each file and folder of the run was about to be deleted once.
    assert len(codes) > len(FILES) + len(BEGUN)


OTHER_EXPERIMENTS = [
    ("objective.temperature", 0.05, 0.1),
    ("encoder.pooling", "mean", "cls"),
    ("training.learning_rate", 5e-05, 1e-3),
    ("training.schedule", "linear", "cosine"),
    ("training.dropout", None, 0.1),
    ("objective.negatives", "granule", "step"),
    ("lanes.seed", 17, 18),
    ("tokens.max_length", Config().tokens.max_length, 128),
]


@pytest.mark.parametrize(("key", "begun", "asked"), OTHER_EXPERIMENTS)
def test_another_experiment_is_refused_with_key_and_values(tmp_path, key, begun, asked):
    write_run(tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    section, _, name = key.partition(".")
    other = config_of(tmp_path / "run", resume=True)
    changed = getattr(other, section).model_copy(update={name: asked})
    message = rf"^{key}: the run was begun with {begun}, not {asked}\. Change it back, or start "
    with pytest.raises(InputError, match=message):
        check_run_folder(other.model_copy(update={section: changed}))
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before
    check_run_folder(other)


def test_a_run_whose_loss_is_called_otherwise_now_goes_on(tmp_path):
    write_run(tmp_path / "run")
    path = tmp_path / "run" / "checkpoints" / "plan.json"
    begun = json.loads(path.read_text()) | {"objective.name": "twins"}
    path.write_text(json.dumps(begun))
    config = config_of(tmp_path / "run", resume=True)
    check_run_folder(config.model_copy(update={"objective": objective("simcse")}))
    with pytest.raises(InputError, match=r"^objective\.name: the run was begun with simcse, not"):
        check_run_folder(config)


def test_a_run_from_before_a_setting_goes_on_without_it(tmp_path):
    write_run(tmp_path / "run")
    path = tmp_path / "run" / "checkpoints" / "plan.json"
    begun, digest = json.loads(path.read_text()), trained_identity(tmp_path / "run")
    for width, same in ((None, True), (64, False)):
        path.write_text(json.dumps(begun | {"encoder.output_width": width}))
        assert (trained_identity(tmp_path / "run") == digest) is same
    earlier = {key: begun[key] for key in begun if key != "encoder.output_width"}
    path.write_text(json.dumps(earlier))
    assert trained_identity(tmp_path / "run") == digest
    config = config_of(tmp_path / "run", resume=True)
    check_run_folder(config)
    with pytest.raises(InputError, match=r"^encoder\.output_width: .* begun with None, not 64\."):
        check_run_folder(config.changed("encoder", output_width=64))


def test_checkpoints_without_what_makes_a_run_are_nobodys_to_delete(tmp_path):
    write_run(tmp_path / "run")
    for name in ("metrics.jsonl", "report.html", "environment.json"):
        (tmp_path / "run" / name).unlink()
    for name in ("start", "model"):
        shutil.rmtree(tmp_path / "run" / name)
    with pytest.raises(InputError, match=r"^run\.folder: .* holds other files"):
        open_run_folder(config_of(tmp_path / "run", overwrite=True), PLAN, MANIFEST)
    assert checkpoint_steps(tmp_path / "run") == [10, 20]


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_could_not_start_is_begun_anew(tmp_path, resume):
    folder = tmp_path / "run"
    open_run_folder(config_of(folder), PLAN, MANIFEST)
    for name in (STEP.format("00"), "start/config.json", "metrics.jsonl"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    assert checkpoint_steps(folder) == [0]
    # Other lanes, and nothing that has been learnt from the first.
    open_run_folder(config_of(folder, resume=resume), replace(PLAN, seed=2), MANIFEST)
    assert names_in(folder) == BEGUN | {"checkpoints/plan.json"}


@pytest.mark.parametrize("left", ["metrics.jsonl", STEP.format("10")])
def test_a_run_that_has_made_a_step_is_kept(tmp_path, left):
    folder = tmp_path / "run"
    open_run_folder(config_of(folder), PLAN, MANIFEST)
    (folder / left).parent.mkdir(parents=True, exist_ok=True)
    (folder / left).write_text("{}\n")
    with pytest.raises(InputError, match=r"^run\.folder: .* holds a run already"):
        open_run_folder(config_of(folder), PLAN, MANIFEST)


@pytest.mark.parametrize("content", ["", '{"half', "[]"])
def test_a_torn_plan_is_told_in_one_line(tmp_path, content):
    folder = tmp_path / "run"
    write_run(folder)
    (folder / "checkpoints" / "plan.json").write_text(content)
    with pytest.raises(
        InputError, match=r"^training\.resume: .*plan\.json .*\. Restore the file, or start anew"
    ):
        check_run_folder(config_of(folder, resume=True))


def test_a_run_of_another_release_is_refused_before_anything_is_prepared(tmp_path):
    write_run(tmp_path / "run")
    path = tmp_path / "run" / "checkpoints" / "plan.json"
    begun = json.loads(path.read_text())
    del begun["format"]
    path.write_text(json.dumps(begun))
    with pytest.raises(InputError, match=r"^training\.resume: .* was begun by another release"):
        check_run_folder(config_of(tmp_path / "run", resume=True))


@pytest.mark.parametrize(
    ("share", "told"),
    [
        (0.0, ["the run has made its 4 steps already. Raise training.max_steps"]),
        # More steps would change nothing: the start's weights are the model.
        (WHOLE, ["the run is finished: its model keeps the start weights"]),
    ],
)
def test_a_finished_run_is_told_of_with_what_would_have_it_go_on(caplog, share, told):
    caplog.set_level("INFO")
    tell_if_finished(make_run(4, first_step=3), share)
    tell_if_finished(make_run(4, first_step=4), share)
    assert [line.removesuffix(" or training.epochs for more") for line in caplog.messages] == told


@pytest.mark.parametrize("start", ["model", "best/model", "."])
def test_a_start_that_would_be_replaced_is_refused(tmp_path, start):
    run, link = tmp_path / "run", tmp_path / "link"
    (run / "base").mkdir(parents=True)
    (run / "environment.json").write_text('{"sentence-pipelines": "1"}')
    link.symlink_to(run / start)
    for given in (run / start, link):
        tree = {"run": {"folder": str(run), "overwrite": True}, "encoder": {"start": str(given)}}
        with pytest.raises(InputError, match=r"^run\.folder: .*run holds the input .*\. Name"):
            check_run_folder(parse(tree))
    for other in ("random", "default", str(tmp_path / "base"), str(run / "base")):
        check_run_folder(parse({"run": {"folder": str(run)}, "encoder": {"start": other}}))
