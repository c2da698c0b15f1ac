"""Imports without the greetings of libraries, and without modules that they need not import."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def quiet_import() -> Iterator[None]:
    """Silence warnings, and what native code writes to standard error, while a block imports.

    TensorFlow's native libraries write before any setting of theirs is read. Exceptions of the
    import are raised.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
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
    """Hide a module from what a block imports, unless it is imported already.

    For libraries that import it if it is there, for features that are not used here. Libraries that
    cannot go on without it import `stand_in`.
    """
    if module in sys.modules:
        yield
        return
    # None is Python's own mark of what must not be imported.
    sys.modules[module] = stand_in  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]
