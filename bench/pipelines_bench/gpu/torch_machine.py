"""What PyTorch tells of the machine, and how a process is moved between its devices."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pipelines.models.frameworks.torch import configure_threads
from pipelines.models.inference.processor import CPU_INFORMATION
from pipelines.training.devices import CUDA_DEVICES
from pipelines.variables import variable_set

_NVIDIA_SECONDS = 30


def begin() -> None:
    """Gives PyTorch what a worker gives it: for so small encoders threads wait for one another."""
    configure_threads(1)


def is_there() -> bool:
    """Whether PyTorch can compute on a GPU here."""
    return bool(torch.cuda.is_available())


def described(device: str) -> dict[str, str]:
    """Names of what the figures depend on."""
    both = {
        "CPU": f"{_processor()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "Python": platform.python_version(),
    }
    if device == "cpu":
        return both
    gpu = {"GPU": torch.cuda.get_device_name(device), "driver": _driver()}
    return {**gpu, "CUDA": str(torch.version.cuda), **both}


@contextmanager
def workers_on(device: str) -> Iterator[None]:
    """While a worker in this process finds that it was given a device.

    PyTorch has looked at the variable before, so all that changes is what the worker takes.
    """
    with variable_set(CUDA_DEVICES, "" if device == "cpu" else os.environ[CUDA_DEVICES]):
        yield


def wait_for(device: str) -> None:
    """Returns when a device has done what was queued."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def _driver() -> str:
    if shutil.which("nvidia-smi") is None:
        return "unknown"
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_NVIDIA_SECONDS, check=False
    )
    return done.stdout.split("\n")[0].strip() or "unknown"


def _processor() -> str:
    if CPU_INFORMATION.exists():
        for line in CPU_INFORMATION.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
