"""Workers that exchange gradients, in processes of their own, watched by the driver's monitor."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from pipelines.benchmarks.gpu.checks import Finding, Place
from pipelines.benchmarks.gpu.runs import CURVE, close, random_run
from pipelines.engines.base import monitor_for
from pipelines.errors import WorkerLostError
from pipelines.runs.run import TrainingRun, WorkerTask
from pipelines.runs.step_metrics import StepMetrics

MODULE = "pipelines.benchmarks.gpu.torch_ranks"
END_SECONDS = 20.0
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "torch": ("torch", {}),
    "torch, negatives of the step": ("torch", {"negatives": "step"}),
    "torch-fsdp": ("torch-fsdp", {}),
}
"""A stepper, and settings of the objective."""


def under_torchrun(place: Place) -> Finding:
    """A worker that is forked under torchrun's agent, and joins a group: NCCL's on a GPU."""
    return _trained(place, "agent", "torch", {}, workers=1)


def sharded_under_torchrun(place: Place) -> Finding:
    """The same with FSDP, of one part."""
    return _trained(place, "agent", "torch-fsdp", {}, workers=1)


def two_ranks(place: Place, way: str) -> Finding:
    """Two workers on one device, which NCCL refuses: their group is Gloo's."""
    stepper, objective = WAYS[way]
    return _trained(place, "gloo", stepper, objective, workers=2)


def _trained(
    place: Place, group: str, stepper: str, objective: dict[str, Any], *, workers: int
) -> Finding:
    from pipelines.benchmarks.gpu.torch_curves import losses_here

    folder = place.folder / f"{group}-{stepper}-{len(objective)}-{workers}"
    run = random_run(folder, workers=workers, objective=objective)
    expected = losses_here(run, "cpu")
    found = _losses(run, group, stepper, workers)
    apart = close(f"{workers} ranks, {stepper}", found, expected, CURVE)
    return Finding(f"{len(found)} steps of {workers} ranks, losses at most {apart:.1e} apart")


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
