"""The metrics lines of a run."""

import json

from runs import make_run

from pipelines.training.runlog import RunLog

LINE = {"loss": 1.0, "examples_per_second": 2.0}


def test_lines_of_steps_that_are_made_again_are_replaced(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 2}\n{"step": 4}\n{"st')
    with RunLog(make_run(9, first_step=3, folder=tmp_path)) as log:
        for step, loss in ((4, 1.0), (6, 1.0), (8, 1.0), (6, 2.0), (8, 2.0), (9, 2.0)):
            log.add(LINE | {"step": step, "loss": loss})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4, 6, 8, 9]
    assert [line["loss"] for line in lines[1:]] == [1.0, 2.0, 2.0, 2.0]
