"""Workers that exchange gradients, in processes of their own, watched by the driver's monitor."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.engines.base import monitor_for
from pipelines.errors import WorkerLostError
from pipelines.runs.run import TrainingRun, WorkerTask
from pipelines.runs.step_metrics import StepMetrics
from pipelines_bench.gpu.checks import Finding, Place, needing
from pipelines_bench.gpu.rank_ways import ALONE, SEVERAL, Way
from pipelines_bench.gpu.runs import CURVE, close, random_run

MODULE = "pipelines_bench.gpu.torch_ranks"
END_SECONDS = 20.0


def of_task(place: Place, name: str) -> Finding:
    """A worker that is forked as in a task of Spark, and joins a group: NCCL's on a GPU."""
    return _trained(place, "task", ALONE[name], workers=1)


def several_ranks(place: Place, name: str) -> Finding:
    """Several workers on one device, in a group of NCCL's on a GPU."""
    return _trained(place, "group", SEVERAL[name], workers=SEVERAL[name].workers)


def _trained(place: Place, group: str, way: Way, *, workers: int) -> Finding:
    if way.library is not None:
        with needing(way.library):
            import_module(way.library)
    objective = way.settings.get("objective", {})
    run = random_run(_new_folder(place.folder), workers=workers, **way.settings)
    expected = _losses_of_one(place.folder, tuple(sorted(objective.items())))
    found = _losses(run, group, way.stepper, workers)
    apart = close(f"{workers} ranks, {way.stepper}", found, expected, CURVE)
    return Finding(f"{len(found)} steps of {workers} ranks, losses at most {apart:.1e} apart")


@cache
def _losses_of_one(parent: Path, objective: tuple[tuple[str, Any], ...]) -> np.ndarray:
    """The losses of one process on the CPU, which are the same for all ways with an objective."""
    from pipelines_bench.gpu.torch_curves import losses_here

    return losses_here(random_run(_new_folder(parent), objective=dict(objective)), "cpu")


def _new_folder(parent: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix="ranks-", dir=parent))


def _losses(run: TrainingRun, group: str, stepper: str, workers: int) -> np.ndarray:
    """The losses of a run by so many workers."""
    metrics = StepMetrics(run, workers, lambda one: None)
    monitor = monitor_for("gpu-check", run, metrics, "127.0.0.1", workers=workers)
    with ExitStack() as stack, monitor:
        processes: list[subprocess.Popen[bytes]] = []
        stack.callback(_end, processes)
        for rank in range(workers):
            task = WorkerTask(
                run=run, rank=rank, workers=workers, monitor=monitor.address, token=monitor.token
            )
            process = subprocess.Popen(
                [sys.executable, "-m", MODULE, group, stepper, str(run.run_folder)],
                stdin=subprocess.PIPE,
            )
            processes.append(process)
            assert process.stdin is not None
            with process.stdin as pipe:
                pickle.dump(task, pipe)
        outcome = monitor.wait(lambda: _lost(processes))
    return np.array(outcome.losses)


def _lost(processes: Sequence[subprocess.Popen[bytes]]) -> WorkerLostError | None:
    """The error, if a worker has died before it could tell why."""
    for rank, process in enumerate(processes):
        if process.poll() not in (None, 0):
            time.sleep(1.0)  # The monitor may be told yet.
            cause = f"the worker's process died (exit code {process.returncode})"
            return WorkerLostError("gpu-check", cause, began=False, rank=rank, host="here", lane=0)
    return None


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
