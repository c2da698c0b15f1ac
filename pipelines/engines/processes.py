"""Processes that end with the one that started them. Runs on an executor."""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
import socket
from collections.abc import Callable
from contextlib import suppress

from pipelines.runs.run import WorkerTask
from pipelines.training.control.reporter import ABORTED, report_lost

PR_SET_PDEATHSIG = 1  # of prctl(2), Linux


def end_with_parent() -> None:
    """Ends this process with its parent, even where it is stopped and takes no other signal."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run_in_child(
    task: WorkerTask,
    work: Callable[[WorkerTask], object],
    listener: socket.socket | None = None,
) -> None:
    """Runs a worker in a child process, and waits for its end. Runs in a Spark task.

    Errors are reported to the monitor and not raised: Spark would start a failed task again.

    Args:
        work: What the child does with it.
        listener: Is the child's alone: when it has died, nothing listens there.
    """
    # fork, since a Python worker of Spark has no main module that a new interpreter could
    # load; this one computes nothing.
    child = multiprocessing.get_context("fork").Process(target=_work, args=(work, task))
    child.start()
    if listener is not None:
        listener.close()
    # The deadlines are the monitor's: it ends the child, and the child ends with this worker.
    child.join()
    if child.exitcode not in (0, ABORTED):
        # Counts only if the child did not report its own error.
        with suppress(OSError):
            report_lost(task, f"the worker's process died (exit code {child.exitcode})")


def _work(work: Callable[[WorkerTask], object], task: WorkerTask) -> None:
    end_with_parent()
    work(task)
