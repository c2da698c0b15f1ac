"""Imports without the greetings of libraries, and without optional modules."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def quiet_import() -> Iterator[None]:
    """Silence warnings, and native code's standard error, while a block imports.

    TensorFlow's native libraries write before any setting of theirs is read. Exceptions of the
    import are raised.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    # By descriptor: native code does not write through `sys.stderr`.
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def import_without(module: str, stand_in: ModuleType | None = None) -> Iterator[None]:
    """Hide a module from the imports of a block, unless it is imported already.

    For libraries with optional imports, for features without use here. Libraries in need of the
    module import `stand_in`.
    """
    if module in sys.modules:
        yield
        return
    # In `sys.modules`, None makes Python refuse the import of a module.
    sys.modules[module] = stand_in  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]
