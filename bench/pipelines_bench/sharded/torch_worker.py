"""The workers: ``python -m``, with their tasks on its input; each writes what it held to a file.

Started by :mod:`pipelines_bench.sharded.command`.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from pipelines.catalog import ARCHITECTURES, STEPPERS
from pipelines.lanes.files import Granule, Side
from pipelines.runs.checkpoint import load_checkpoint, save_checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.training.collectives.process_group import (
    ProcessGroupCollectives,
    exit_without_finalization,
    process_group_cleanup,
)
from pipelines.training.steppers.base import StepWork

RATE = 1e-4
_EVERY_SECONDS = 0.05
_FIELD = re.compile(r"^(VmHWM|VmRSS|RssAnon):\s+(\d+) kB$", re.MULTILINE)


def memory() -> dict[str, int]:
    """Bytes of this process, by the names of ``/proc/self/status``."""
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    return {name: int(kilobytes) * 1024 for name, kilobytes in _FIELD.findall(text)}


class Watch:
    """Notes the most private memory of this process, which the system does not keep.

    Attributes:
        most: Bytes, since the last :meth:`begin`.
    """

    def __init__(self) -> None:
        self.most = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def begin(self) -> int:
        """Begins anew; returns the most so far."""
        most, self.most = max(self.most, memory()["RssAnon"]), 0
        return most

    def _watch(self) -> None:
        while True:
            self.most = max(self.most, memory()["RssAnon"])
            time.sleep(_EVERY_SECONDS)


def main() -> None:
    """Imports the libraries, which takes seconds, and has each worker in a process forked from it.

    Raises:
        SystemExit: A worker has failed.
    """
    stepper, pairs, tokens, writes, *outs = sys.argv[1:]
    tasks: list[WorkerTask] = pickle.load(sys.stdin.buffer)
    STEPPERS.load(stepper)
    ARCHITECTURES.load("hf").form("torch")
    # Now, so that nobody else takes it while libraries are imported.
    with socket.create_server(("127.0.0.1", 0)) as free:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    workers = []
    for task, out in zip(tasks, outs, strict=True):
        if not (process := os.fork()):
            _work(task, stepper, int(pairs), int(tokens), Path(out), writes=writes == "True")
        workers.append(process)
    while workers:
        process, status = os.wait()
        workers.remove(process)
        if status:
            raise SystemExit(f"a worker has ended with {os.waitstatus_to_exitcode(status)}")


def _work(
    task: WorkerTask, stepper: str, pairs: int, tokens: int, out: Path, *, writes: bool
) -> NoReturn:
    """Trains, and writes a checkpoint if asked to."""
    os.environ |= {"RANK": str(task.rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(task.workers)}
    with process_group_cleanup():
        found = _train(task, stepper, pairs, tokens, writes=writes)
    out.write_text(json.dumps(found), encoding="utf-8")
    exit_without_finalization()


def _train(
    task: WorkerTask, stepper: str, pairs: int, tokens: int, *, writes: bool
) -> dict[str, Any]:
    run = task.run
    factory = STEPPERS.load(stepper)
    factory.prepare_process(run.config.training)
    collectives = ProcessGroupCollectives(run.config.training)
    found: dict[str, Any] = {"libraries": memory()["VmRSS"], "losses": [], "seconds": []}
    watch, began = Watch(), time.monotonic()
    checkpoint = load_checkpoint(run.run_folder, run.first_step, lazily=True)
    made = factory(task, checkpoint, collectives)
    found["load"] = {"seconds": time.monotonic() - began, "anonymous": watch.begin()}
    for index in range(run.first_step, run.last_step):
        began = time.monotonic()
        work = StepWork(index, 0, [_granule(index * task.workers + task.rank, run, pairs, tokens)])
        found["losses"].append(made.step(work, RATE))
        found["seconds"].append(time.monotonic() - began)
        print(f"rank {task.rank} step {index} {found['seconds'][-1]:.1f} s", flush=True)
    found["steps"] = {"anonymous": watch.begin()}
    if writes:
        began = time.monotonic()
        state = made.checkpoint(run.last_step)
        if task.rank == 0:
            save_checkpoint(run.run_folder, state, 9)
        else:
            state.pass_through()
        found["save"] = {"seconds": time.monotonic() - began, "anonymous": watch.begin()}
    return found | {"peak": memory()["VmHWM"]}


def _granule(number: int, run: Any, pairs: int, tokens: int) -> Granule:
    """Of random texts, all as long."""
    generator = np.random.default_rng(number)

    def side() -> Side:
        ids = generator.integers(1, run.manifest.vocabulary, (pairs, tokens), np.int32)
        return Side(ids, np.full(pairs, tokens, np.int32))

    return Granule(number=number, groups=np.arange(pairs), anchor=side(), positive=side())


if __name__ == "__main__":
    main()
