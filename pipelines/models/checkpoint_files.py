"""The weights of a checkpoint folder, in any of the usual files.

Safetensors, in one file or in several with an index, come first. PyTorch's restricted reader, which
makes only tensors, reads pickles (`.bin`), with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
from safetensors import deserialize, safe_open

from pipelines.errors import InputError
from pipelines.files import records
from pipelines.models.architecture import Shapes
from pipelines.models.weights import WEIGHT_FILE, Weights, stored_shapes

logger = logging.getLogger(__name__)

PICKLE_FILE = "pytorch_model.bin"
INDEX = ".index.json"
"""The suffix of the index of a file that is split."""
_BF16 = "BF16"
NOT_WEIGHTS_ALONE = "is damaged, or holds code, which sentence-pipelines never runs"
"""The problem of a pickle that PyTorch's restricted reader refuses."""


def read_checkpoint(folder: Path) -> Weights | None:
    """Return all arrays of a folder by the names in its files; None without a file of weights.

    Arrays of bfloat16, which numpy lacks, become fp32; others keep their type.

    Raises:
        InputError: With the key ``encoder.start``: a part is missing, or PyTorch is not installed
            for a pickle.
    """
    if files := _files(folder, WEIGHT_FILE):
        return _merged(_safetensors(file) for file in files)
    if files := _files(folder, PICKLE_FILE):
        names = ", ".join(file.name for file in files)
        logger.warning(
            "%s has no safetensors, so torch.load(weights_only=True) reads %s", folder, names
        )
        return _merged(_pickle(file) for file in files)
    return None


def checkpoint_shapes(folder: Path) -> Shapes:
    """Return shapes of a folder's arrays by their names in safetensors; pickles are ignored."""
    shapes: Shapes = {}
    for file in _files(folder, WEIGHT_FILE):
        shapes |= stored_shapes(file)
    return shapes


def checkpoint_rows(folder: Path, name: str, number: int) -> list[np.ndarray]:
    """Return row ``number`` of safetensors arrays whose names end in ``name``; skip bfloat16."""
    rows = []
    for file in _files(folder, WEIGHT_FILE):
        with safe_open(str(file), framework="numpy") as opened:
            for key in (key for key in opened.keys() if key.endswith(name)):  # noqa: SIM118
                array = opened.get_slice(key)
                if array.get_dtype() != _BF16 and number < array.get_shape()[0]:
                    rows.append(array[number : number + 1][0])
    return rows


def _files(folder: Path, name: str) -> Sequence[Path]:
    """Return the file of a name, or the files of its index; none without either."""
    if (folder / name).is_file():
        return [folder / name]
    index = folder / f"{name}{INDEX}"
    if not index.is_file():
        return []
    parts = sorted(set(records.read_object(index)["weight_map"].values()))
    for part in parts:
        # An index may name nothing outside of its folder.
        if Path(part).name != part or not (folder / part).is_file():
            raise InputError(
                "encoder.start", f"{folder} has no {part}, which {index.name} names", "Copy it too"
            )
    return [folder / part for part in parts]


def _merged(parts: Iterable[Weights]) -> Weights:
    return {name: value for part in parts for name, value in part.items()}


def _safetensors(file: Path) -> Weights:
    """Return the arrays of a safetensors file."""
    with safe_open(str(file), framework="numpy") as opened:
        names = list(opened.keys())
        halves = {name for name in names if opened.get_slice(name).get_dtype() == _BF16}
        arrays = {name: opened.get_tensor(name) for name in names if name not in halves}
    if halves:
        # The reader for numpy refuses bfloat16; this one gives bytes.
        views: Sequence[tuple[str, Any]] = deserialize(file.read_bytes())  # type: ignore[no-untyped-call]
        arrays |= {name: _widened(view) for name, view in views if name in halves}
    return arrays


def _widened(view: Mapping[str, Any]) -> np.ndarray:
    """Return an array of bfloat16 as fp32, of which it is the upper half."""
    halves = np.frombuffer(view["data"], "<u2").astype("<u4")
    return (halves << 16).view("<f4").reshape(view["shape"])


def _pickle(file: Path) -> Weights:
    """Read a pickled state dict, bfloat16 as fp32; damage or code to run is a ValueError."""
    try:
        import torch
    except ImportError as error:
        raise InputError(
            "encoder.start",
            f"{file} is a pickle, and only PyTorch reads it ({error})",
            'Run `pip install "sentence-pipelines[torch]"`, or name a checkpoint in safetensors',
        ) from None
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        # The library advises to load it without this check, which would run its code.
        raise ValueError(f"{file.name} {NOT_WEIGHTS_ALONE}") from error
    except Exception as error:
        # The library raises nothing narrower: a damaged archive is a RuntimeError or an EOFError.
        first, *_ = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(f"{file.name}: {first}") from error
    if not isinstance(state, dict) or not all(torch.is_tensor(value) for value in state.values()):
        raise ValueError(f"{file.name} is no state dict")
    return {
        name: (value.float() if value.dtype == torch.bfloat16 else value).numpy()
        for name, value in state.items()
    }
