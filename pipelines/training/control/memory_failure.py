"""Errors of a worker that found no more memory, in one line."""

from __future__ import annotations

import re

from pipelines.files.stores import first_line

_TYPES = {"MemoryError", "OutOfMemoryError", "ResourceExhaustedError"}
"""Of Python, PyTorch, TensorFlow; by name, since no framework is imported for the sake of it."""
_WORDS = re.compile(
    r"out of memory|allocate memory|bad_alloc|ALLOC_FAILED"
    # What oneDNN, which makes PyTorch's and TensorFlow's matrix products on a CPU, says of it.
    r"|could not create a primitive",
    re.IGNORECASE,
)
_REMEDY = (
    "set training.tokens_per_micro_batch or training.activation_checkpointing, lower lanes.granule"
    " or tokens.max_length, or give executors more"
)


def memory_failure(error: BaseException) -> str | None:
    """That there was no memory, and the remedy, in one line; None for other errors.

    The frameworks have no common type for it: PyTorch raises a plain `RuntimeError` on a CPU.
    """
    is_known = type(error).__name__ in _TYPES
    if not is_known and not (isinstance(error, RuntimeError) and _WORDS.search(str(error))):
        return None
    said = first_line(error) or type(error).__name__
    return f"there is no memory left ({said}); {_REMEDY}"
