"""When the workers made their steps: Elephas tells the losses of epochs alone."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from pipelines.quiet import quiet_import
from pipelines_bench.peers.lines import StepLines

with quiet_import():
    from tensorflow import keras

_BEGAN, _STEPS = "began-{}", "steps-{}.jsonl"


class StepTimes(keras.callbacks.Callback):  # type: ignore[misc] # TensorFlow has no types
    """Writes the steps of a worker to a file of its own. Runs on an executor.

    Args:
        folder: For the files of all workers.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def on_train_begin(self, logs: Any = None) -> None:
        """The first step of an epoch begins."""
        began = self._folder / _BEGAN.format(_partition())
        if not began.exists():
            began.write_text(str(time.monotonic()))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Has the mean loss begin anew: Keras tells that of an epoch so far."""
        self.model.reset_metrics()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """A step is done."""
        line = {"at": time.monotonic(), "loss": float((logs or {})["loss"])}
        with (self._folder / _STEPS.format(_partition())).open("a") as file:
            file.write(f"{json.dumps(line)}\n")


def _partition() -> int:
    context = TaskContext.get()
    assert context is not None, "runs in a Spark task"
    return context.partitionId()


def write_lines(lines: StepLines, folder: Path, steps: int, ended: float) -> None:
    """Writes a line for each step, which is done when the last worker has made it.

    Args:
        lines: Of the run.
        folder: Of :class:`StepTimes`.
        steps: How many lines there are to be.
        ended: When the weights of the last step were averaged: it is done then.
    """
    lines.begin(min(float(one.read_text()) for one in folder.glob(_BEGAN.format("*"))))
    workers = [
        [json.loads(line) for line in one.read_text().splitlines()]
        for one in folder.glob(_STEPS.format("*"))
    ]
    made = [
        (max(one["at"] for one in step), statistics.fmean(one["loss"] for one in step))
        for step in zip(*workers, strict=True)
    ]
    made[-1] = (ended, made[-1][1])
    for number, (at, loss) in enumerate(made[:steps], 1):
        lines.add(number, loss, at)
