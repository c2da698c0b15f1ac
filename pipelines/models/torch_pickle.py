"""Weights that PyTorch has pickled, read without running what a pickle may hold."""

from __future__ import annotations

from pathlib import Path
from pickle import UnpicklingError

import numpy as np
import torch

NOT_WEIGHTS_ALONE = "is damaged, or asks for code to be run, which is never done"
"""What is said of a pickle that the restricted reader refuses."""


def read_pickle(file: Path) -> dict[str, np.ndarray]:
    """The tensors of a state dict; bfloat16 as fp32.

    Raises:
        ValueError: It is damaged, holds something else than tensors, or asks for code to be run.
    """
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
