"""Packages that the check needs, and the folder that brings those that a machine has not."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[3]
CARRIED = ROOT / "build" / f"gpu-packages-{sys.version_info.major}.{sys.version_info.minor}"
"""Filled for a release of Python by ``make gpu-packages``, and ignored by git."""

NEEDED = (
    "numpy",
    "pyarrow",
    "pydantic",
    "safetensors",
    "tenacity",
    "tokenizers",
    "torch",
    "typing_extensions",
    "xxhash",
    "yaml",
    "zstandard",
)
"""Modules that what is checked imports. Further ones add checks: transformers, TensorFlow,
sentence_transformers with datasets."""


def add_carried(folder: Path = CARRIED) -> None:
    """Has this process, and those that it starts, find this package and what was carried along.

    Where nothing is missing, nothing is taken of what was carried.
    """
    carried = [str(folder)] if missing_packages() and folder.is_dir() else []
    sys.path[:0] = carried
    told = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [path for path in (*carried, str(ROOT), str(ROOT / "bench"), *told) if path]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))


def missing_packages() -> list[str]:
    """Names of the modules that are not there."""
    return [name for name in NEEDED if find_spec(name) is None]
