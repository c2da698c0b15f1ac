"""The outcome of a job in a file, for schedulers without the exit code of a job on a cluster.

    {"exit_code": 3, "error": "promotion.tolerance: ...", "results": {}}

A job writes it at its own end; a killed job leaves none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pipelines.errors import InputError, PipelineError
from pipelines.files import storage
from pipelines.files.locations import Location, location
from pipelines.settings.base import NotLocalError, stored_path
from pipelines.settings.spark import DEFAULT_STORES, StorageSettings

Results = Mapping[str, Any]
"""Figures, versions and names, as JSON values."""

KEY = "--outcome"

logger = logging.getLogger(__name__)


@contextmanager
def noted(
    path: str | None, stores: StorageSettings = DEFAULT_STORES
) -> Iterator[Callable[[Results], None]]:
    """Write the outcome of the block; the yielded function takes its results.

    Without a path it writes nothing. It makes missing folders on the way to the file.

    Raises:
        InputError: A write before the block fails.
    """
    if path is None:
        yield lambda _results: None
        return
    try:
        file, results = location(stored_path(path), stores), dict[str, Any]()
    except NotLocalError as error:
        raise InputError(KEY, error.problem, error.remedy) from None
    _clear(file)
    try:
        yield results.update
    except Exception as error:
        _note_failure(file, error)
        raise
    storage.write_json(file, {"exit_code": 0, "error": None, "results": results})


def _clear(file: Location) -> None:
    """Remove the outcome of an earlier job, and try to write a new one."""
    if file.exists() and not _is_outcome(file):
        raise InputError(
            KEY, f"{file} is no outcome of a job, and the job would replace it", "Name another file"
        )
    # A trial write: otherwise hours of work might end without an outcome.
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        storage.write_json(file, None)
        file.unlink()
    except OSError as error:
        problem = f"{file} cannot be written ({error.strerror or error})"
        raise InputError(
            KEY, problem, "Name a file in a folder that the driver can write"
        ) from None


def _is_outcome(file: Location) -> bool:
    """Tell whether a file is an outcome, or empty: schedulers make their file, as by `mktemp`."""
    try:
        if file.is_file() and not file.stat().st_size:
            return True
        known = storage.read_json(file)
    except (OSError, ValueError):
        return False
    return known is None or (isinstance(known, dict) and {"exit_code", "results"} <= known.keys())


def _note_failure(file: Location, error: Exception) -> None:
    from pipelines.settings.redaction import without_password

    code = error.exit_code if isinstance(error, PipelineError) else 1
    message = without_password(str(error) or repr(error))
    try:
        storage.write_json(file, {"exit_code": code, "error": message, "results": {}})
    except OSError as failure:
        # Another error would hide that of the job.
        logger.warning("the outcome of the job cannot be written to %s: %s", file, failure)
