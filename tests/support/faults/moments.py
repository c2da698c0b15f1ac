"""The moments of a training, as they are seen from outside of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from host_cluster import HostCluster

from faults.processes import python_workers
from pipelines.runs.checkpoint import newest_whole_checkpoint

STEPPING = 20
LOOK_SECONDS, RARE_LOOK_SECONDS = 0.002, 0.1
EVALUATION = "evaluation"


@dataclass(frozen=True)
class Watched:
    """A training that goes on.

    Attributes:
        cluster: Where.
        run: Its folder.
        log: What it says.
        steps: How many it is to make.
    """

    cluster: HostCluster
    run: Path
    log: Path
    steps: int

    def logged(self) -> int:
        """Steps whose losses the driver has written."""
        metrics = self.run / "metrics.jsonl"
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0

    def is_writing(self, step: int | None = None) -> bool:
        """Whether a checkpoint is not whole yet: that before a step, or any but the first."""
        part = ".step-" if step is None else f".step-{step:08d}"
        folder = self.run / "checkpoints"
        names = [one.name for one in folder.iterdir()] if folder.is_dir() else []
        return any(name.startswith(part) for name in names)

    def said(self, words: str) -> bool:
        return self.log.exists() and words in self.log.read_text(errors="replace")


def _starting(watched: Watched) -> bool:
    return all(python_workers(host) for host in watched.cluster.hosts[1:])


def _first_step(watched: Watched) -> bool:
    return watched.logged() >= 1


def _in_a_step(watched: Watched) -> bool:
    # The lines of steps come before their checkpoint: a worker that stops in between leaves none.
    logged = watched.logged()
    return logged >= 2 * STEPPING or (
        logged >= STEPPING and bool(newest_whole_checkpoint(watched.run))
    )


def _writing(watched: Watched) -> bool:
    return watched.logged() >= STEPPING and watched.is_writing()


def _last_step(watched: Watched) -> bool:
    # Written before the last step; see `every` in `faults.job`.
    checkpoints = watched.run / "checkpoints"
    return any(checkpoints.glob(f"*step-{watched.steps - 1:08d}*"))


def _evaluating(watched: Watched) -> bool:
    return watched.said("evaluating")


def _exporting(watched: Watched) -> bool:
    return watched.said("writing the model")


MOMENTS: dict[str, Callable[[Watched], bool]] = {
    "starting": _starting,
    "first step": _first_step,
    "in a step": _in_a_step,
    "checkpoint": _writing,
    "last step": _last_step,
    "export": _exporting,
    EVALUATION: _evaluating,
}
"""In the order in which a job comes to them. Some last a moment."""
LATE = ("last step", "export", EVALUATION)


def wait_for(moment: str, watched: Watched, is_over: Callable[[], bool], seconds: float) -> bool:
    """Waits until a training comes to a moment.

    Args:
        is_over: Whether the training has ended.

    Returns:
        Whether it did, before it ended and before the time was up.
    """
    holds, deadline = MOMENTS[moment], time.monotonic() + seconds
    # A look through the processes of all hosts is not cheap, and workers take seconds to start.
    pause = RARE_LOOK_SECONDS if moment == "starting" else LOOK_SECONDS
    while time.monotonic() < deadline:
        if holds(watched):
            return True
        if is_over():
            return False
        time.sleep(pause)
    return False
