"""torchrun in a process of a Spark task, without new interpreters. Runs on executors."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

from pipelines.engines.processes import end_with_parent
from pipelines.engines.torchrun_store import meet_at
from pipelines.runs.run import WorkerTask
from pipelines.spark.errors import spark_cause
from pipelines.training.collectives.interfaces import prefer_interface_to
from pipelines.training.collectives.process_group import (
    ProcessGroupCollectives,
    means_peer_lost,
    process_group_cleanup,
)
from pipelines.training.control.reporter import ABORTED, report_lost
from pipelines.training.devices import CUDA_DEVICES
from pipelines.training.worker import run_worker
from pipelines.variables import variable_set


def run_torchrun(
    arguments: Sequence[str], stepper: str, listener: socket.socket | None, task: WorkerTask
) -> None:
    """Runs a worker under torchrun's agent, until both have ended.

    The worker is forked, where torchrun starts an interpreter that imports PyTorch once more.

    Args:
        arguments: Of torchrun, but for the script.
        stepper: A name of ``pipelines.catalog.STEPPERS``.
        listener: Where the store of all agents is to listen, on the host of the first worker.
        task: Of the worker.
    """
    # The library looks for GPUs while it is configured. It asks CUDA, unless it is told to ask
    # NVIDIA's management library, which then finds that none is visible. After CUDA was asked no
    # process that is forked from this one could use a GPU.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    with variable_set(CUDA_DEVICES, ""):
        config, *_ = config_from_args(parse_args([*arguments, "no script"]))
    config.start_method = "fork"
    meet_at(listener, config)
    try:
        elastic_launch(config, _run_worker)(stepper, task)
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        if failure.exitcode == ABORTED:
            return  # By the driver, which knows why.
        # Counts only if the worker did not report its own error.
        with suppress(OSError):
            report_lost(task, _cause(failure))
    except Exception as error:
        # The agent's own: a port that is taken, agents that did not find one another in time.
        with suppress(OSError):
            report_lost(task, spark_cause(error))
        raise


def _cause(failure: ProcessFailure) -> str:
    """Why a worker has ended, in a line."""
    told: Any = failure.message
    if isinstance(told, dict):
        return str(told["message"])
    return f"the worker's process died (exit code {failure.exitcode})"


def _run_worker(stepper: str, task: WorkerTask) -> None:
    """The worker, from its first to its last moment; ends with the agent."""
    end_with_parent()
    # The agent's handlers, which a fork inherits, raise errors of the worker's own.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    with process_group_cleanup():
        join = partial(_join_group, task)
        run_worker(task, join, stepper=stepper, means_peer_lost=means_peer_lost)


def _join_group(task: WorkerTask) -> ProcessGroupCollectives:
    prefer_interface_to(task.monitor)
    return ProcessGroupCollectives(task.run.config.training)
