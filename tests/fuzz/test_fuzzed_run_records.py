"""The records of a run folder, a prepared folder and a table of vectors, whatever they hold."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutations import damaged_file, fuzzed, read_or_refused
from planned_runs import make_run

from pipelines.corpus.unit_rows import add_deleted_keys, deleted_keys
from pipelines.files.prepared_folder import PreparedFolder, TeacherFolder
from pipelines.files.run_folder import RunFolder
from pipelines.lanes.files import TeacherVectors
from pipelines.report.comparison import read_lines
from pipelines.runs.attempts import begin_attempt, read_attempts
from pipelines.runs.job_records import (
    Start,
    add_evaluations,
    add_restart,
    begin_job,
    end_job,
    expected_seconds,
    go_on,
    keep_preparation,
    keep_seconds,
    last_step_of,
    read_evaluations,
    read_jobs,
    read_restarts,
)
from pipelines.runs.model_choice import read_best
from pipelines.runs.run import Restart
from pipelines.runs.step_metrics import (
    MetricsLog,
    model_step,
    read_metrics_lines,
    seconds_to,
    update_run_metrics,
)
from pipelines.settings import Config
from pipelines.settings.load import parse
from pipelines.vectors.changes import ChangeLog, log_file, logs_after, write_log
from pipelines.vectors.table_job import MANIFEST_FILE

LINE = {"step": 1, "loss": 1.5, "seconds": 2.0, "precision": "fp32", "examples_per_second": 3.0}


def config_of(folder: Path) -> Config:
    return parse({"prepared": {"folder": str(folder)}, "run": {"folder": str(folder)}})


def write_all(folder: Path) -> Path:
    """One folder that is both, with every file that is read again."""
    run, config = make_run(3, folder=folder), config_of(folder)
    for number in (0, 1):
        go_on(folder, config, number, 3 + number)
        add_restart(folder, Restart(step=number, workers=2, cause="died", rank=number, host="a"))
        begin_attempt(folder, None)
    stages = [{"stage": "corpus", "seconds": 1.5, "kept": False}]
    PreparedFolder(folder).stages.write_text(json.dumps(stages))
    start = Start()
    begin_job(folder, "train", start)
    end_job(folder, start)
    keep_preparation(folder, folder)
    with MetricsLog(replace(run, last_step=9)) as log:
        for step in (1, 2):
            log.add(LINE | {"step": step})
    add_evaluations(folder, 1, {"retrieval": {"ndcg@10": 0.5}})
    update_run_metrics(folder, {"model": {"step": 2}, "after": {"retrieval": {"ndcg@10": 0.5}}})
    keep_seconds(config, {"evaluating": 2.5})
    add_deleted_keys(PreparedFolder(folder), "key", ["a", "b"])
    (folder / "best").mkdir()
    best = {"step": 1, "metric": "retrieval.ndcg@10", "value": 0.5}
    (folder / "best" / "best.json").write_text(json.dumps(best))
    TeacherVectors(width=4, precision="fp16", source="x").save(TeacherFolder(folder))
    lineage = {"version": 1, "table": "x", "changes_since": 0, "made": "y"}
    (folder / MANIFEST_FILE).write_text(json.dumps(lineage))
    log = ChangeLog(1, 0, log_file(folder, 1), "aa", "x")
    changes = pa.record_batch({"key": ["a", "b"], "change": ["upsert", "delete"]})
    write_log(log, pa.string(), [changes])
    return folder


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("records"))


READERS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], object]]] = {
    "history": (lambda folder: RunFolder(folder).history, last_step_of),
    "restarts": (lambda folder: RunFolder(folder).restarts, read_restarts),
    "attempts": (
        lambda folder: sorted(RunFolder(folder).attempts.iterdir())[-1],
        read_attempts,
    ),
    "jobs": (lambda folder: RunFolder(folder).jobs, read_jobs),
    "stages": (
        lambda folder: PreparedFolder(folder).stages,
        lambda folder: keep_preparation(folder, folder),
    ),
    "metrics lines": (
        lambda folder: RunFolder(folder).step_metrics,
        lambda folder: (list(read_metrics_lines(folder)), seconds_to(folder, 2)),
    ),
    "lines of a run that goes on": (
        lambda folder: RunFolder(folder).step_metrics,
        lambda folder: MetricsLog(make_run(9, first_step=1, folder=folder)),
    ),
    "lines of a report": (
        lambda folder: RunFolder(folder).step_metrics,
        lambda folder: read_lines(RunFolder(folder).step_metrics),
    ),
    "evaluations": (lambda folder: RunFolder(folder).evaluations, read_evaluations),
    "metrics": (lambda folder: RunFolder(folder).metrics, model_step),
    "metrics that others are added to": (
        lambda folder: RunFolder(folder).metrics,
        lambda folder: update_run_metrics(folder, {"after": {}}),
    ),
    "best": (
        lambda folder: RunFolder(folder).best / "best.json",
        lambda folder: read_best(folder, "retrieval.ndcg@10"),
    ),
    "seconds": (
        lambda folder: PreparedFolder(folder).run_seconds,
        lambda folder: expected_seconds(config_of(folder)),
    ),
    "deleted keys": (
        lambda folder: PreparedFolder(folder).deleted_keys,
        lambda folder: deleted_keys(PreparedFolder(folder), "key"),
    ),
    "teacher": (
        lambda folder: TeacherFolder(folder).manifest,
        lambda folder: TeacherVectors.load(TeacherFolder(folder)),
    ),
    "lineage of a table": (
        lambda folder: folder / MANIFEST_FILE,
        lambda folder: logs_after(folder, 0),
    ),
    "log of changes": (
        lambda folder: log_file(folder, 1),
        lambda folder: logs_after(folder, 0),
    ),
}


@pytest.mark.parametrize("name", READERS)
@fuzzed
@given(data=st.data())
def test_a_damaged_record_is_refused_by_its_name(written, name, data):
    place, read = READERS[name]
    path = place(written)
    whole = path.read_bytes()
    path.write_bytes(data.draw(damaged_file(path)))
    try:
        read_or_refused(lambda: read(written), path.name, "corpus.key_column")
    finally:
        path.write_bytes(whole)


def test_what_is_whole_is_read(written):
    for place, read in READERS.values():
        whole = place(written).read_bytes()
        assert read(written) is not False
        place(written).write_bytes(whole)
    assert last_step_of(written) == 4
    assert [one.rank for one in read_restarts(written)] == [0, 1]
    assert model_step(written) == 2
    assert read_attempts(written).basis == 2
    assert [line["step"] for line in read_evaluations(written)] == [1]
    assert expected_seconds(config_of(written)) == {"evaluating": 2.5}
    assert len(deleted_keys(PreparedFolder(written), "key")) == 2
    np.testing.assert_equal(TeacherVectors.load(TeacherFolder(written)).width, 4)
