"""The families of engines that are soaked, and the small training that each of them makes."""

from __future__ import annotations

import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.errors import InputError
from pipelines.settings import Config
from pipelines.settings.load import parse

CASES: Mapping[str, Mapping[str, Any]] = {
    "local-torch": {"engine": "local", "framework": "torch"},
    "local-torch-bf16": {"engine": "local", "framework": "torch", "precision": "bf16"},
    "local-tensorflow": {"engine": "local", "framework": "tensorflow"},
    "torch": {"engine": "torch", "framework": "torch"},
    "deepspeed": {"engine": "deepspeed", "framework": "torch", "sharding": "gradients"},
    "megatron": {"engine": "megatron", "framework": "torch"},
    "mesh": {"engine": "mesh", "framework": "tensorflow"},
    "horovod-torch": {"engine": "horovod", "framework": "torch"},
    "horovod-tensorflow": {"engine": "horovod", "framework": "tensorflow"},
    "tensorflowonspark": {"engine": "tensorflowonspark"},
    "tensorflowonspark-async": {"engine": "tensorflowonspark", "mode": "async"},
    "elephas": {"engine": "elephas"},
    "elephas-async": {"engine": "elephas", "mode": "async"},
    "bigdl-orca": {"engine": "bigdl", "framework": "torch"},
    "bigdl-dllib": {"engine": "bigdl", "framework": "bigdl"},
}
"""By name, what differs of the section `training`."""

_EPOCHS = 1_000_000
# As much of the heap as Java takes is in memory at once, so that what grows beside can be seen.
_TOUCHED = "-XX:+AlwaysPreTouch"


def named_cases(names: str | None) -> list[str]:
    """The cases of a list with commas; all of them by default.

    Raises:
        InputError: There is no such case.
    """
    if names is None:
        return [*CASES]
    found = [name.strip() for name in names.split(",")]
    for name in found:
        if name not in CASES:
            raise InputError("--cases", f"there is no `{name}`", f"Choose from {', '.join(CASES)}")
    return found


def small_settings(config: Config, folder: Path) -> Config:
    """A very small encoder, on lanes that are prepared in a folder."""
    tree = config.model_dump(mode="json")
    tree["prepared"] |= {"folder": str(folder)}
    if config.corpus.format == "docstrings" and not config.corpus.inputs:
        # Those of Python itself are enough, and soon prepared.
        tree["corpus"] |= {"inputs": [sysconfig.get_path("stdlib")]}
    tree["tokens"] |= {"max_length": 32, "vocabulary": "train", "vocabulary_size": 2000}
    tree["lanes"] |= {"count": 4, "granule": 8}
    tree["encoder"] |= {"start": "random", "layers": 1, "hidden": 32, "heads": 2}
    for key in ("driver.extraJavaOptions", "executor.extraJavaOptions"):
        tree["spark"][key] = f"{tree['spark'].get(key, '')} {_TOUCHED}".strip()
    return parse(tree)


def case_settings(config: Config, name: str, run: Path, steps: int) -> Config:
    """The training of a case.

    Args:
        config: Of :func:`small_settings`.
        name: Of the case.
        run: The folder of the run.
        steps: How many are made; there are twenty checkpoints, and the newest are kept.
    """
    tree = config.model_dump(mode="json")
    tree["run"] |= {"folder": str(run), "overwrite": True}
    tree["training"] |= {
        "workers": 2,
        "granules_per_step": 2,
        "max_steps": steps,
        "epochs": _EPOCHS,
        "log_every": max(1, steps // 200),
        "checkpoint_every": max(1, steps // 20),
        # Kernels of bf16 are compiled for each shape, which takes longer than to use them here.
        "precision": "fp32",
        "restarts": 0,
        # A machine that is busy is slow, which is no growth.
        "start_seconds": 600,
        "stall_seconds": 600,
    }
    return parse({**tree, "training": tree["training"] | CASES[name]})
