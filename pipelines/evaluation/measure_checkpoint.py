"""Measures one checkpoint: ``python -m pipelines.evaluation.measure_checkpoint``, job as JSON.

A process of its own, without Spark and with as little of the CPU as the system can give it while
others want it; its last line on standard output is the figures as JSON. It ends with its driver,
and at its deadline.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from pipelines.evaluation.snapshot import measure
from pipelines.files.locations import location
from pipelines.models.folder import write_encoder
from pipelines.models.inference.embedder import load_embedder
from pipelines.runs.checkpoint import load_checkpoint, write_files
from pipelines.settings import StorageSettings

NICENESS = 19
STATE = "state"
"""Where the state that was measured is left, in the folder for files on the way."""
PARENT_CHECK_SECONDS = 1.0


def main() -> None:
    """Measures what standard input says: a JSON object.

    Its keys are ``run_folder``, ``step``, ``tokenizer`` and ``snapshots``; ``storage``, how stores
    are reached; ``folder``, an empty one for files on the way; ``keep``, whether the state is left
    there, in ``STATE``; ``driver``, the id of the process that asks; and ``seconds``, after which
    the driver no longer waits for the answer.
    """
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    # Output of libraries must not mix with the answer, so it goes to the log.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.nice(NICENESS)
    job = json.load(sys.stdin)
    folder = Path(job["folder"])
    _end_with(job["driver"], job["seconds"], folder)
    stores = StorageSettings(**job["storage"])
    # Loaded before all else, since the training may delete the checkpoint soon.
    checkpoint = load_checkpoint(location(job["run_folder"], stores), job["step"])
    model = folder / "model"
    write_encoder(
        model, checkpoint.spec, checkpoint.encoder_weights, location(job["tokenizer"], stores), ""
    )
    if job["keep"]:
        state = replace(checkpoint, weights=checkpoint.averages, moments={})
        (folder / STATE).mkdir()
        write_files(folder / STATE, state)
        del state
    del checkpoint
    snapshots = location(job["snapshots"], stores)
    figures = measure(snapshots, lambda: load_embedder(model, precision="fp32"))
    answer.write(json.dumps(figures) + "\n")
    answer.flush()


def _end_with(driver: int, seconds: float, folder: Path) -> None:
    """Has this process end when its driver is gone, or after so many seconds.

    A scheduler that kills a job tries again, and two would measure beside one another otherwise.

    Args:
        driver: Id of the parent process.
        seconds: From now on.
        folder: Removed then, since the driver may not be there to do it.
    """
    deadline = time.monotonic() + seconds

    def watch() -> None:
        while os.getppid() == driver and time.monotonic() < deadline:
            time.sleep(min(PARENT_CHECK_SECONDS, seconds))
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, name="driver-watch", daemon=True).start()


if __name__ == "__main__":
    main()
