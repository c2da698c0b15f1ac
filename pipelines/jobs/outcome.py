"""The outcome of a job in a file, for schedulers that do not see how a job on a cluster ended.

    {"exit_code": 3, "error": "promotion.tolerance: ...", "results": {}}

It is written when the job ends by itself; a killed job leaves none.
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
    """Write the outcome of the block, whose results the yielded function takes.

    Without a path nothing is written. Folders on the way to the file are made.

    Raises:
        InputError: The file cannot be written, which is tried before the block begins.
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
    """Remove the outcome of an earlier job, and make sure that a new one can be written."""
    if file.exists() and not _is_outcome(file):
        raise InputError(
            KEY, f"{file} is no outcome of a job, and would be replaced", "name another file"
        )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        storage.write_json(file, None)
        file.unlink()
    except OSError as error:
        problem = f"{file} cannot be written ({error.strerror or error})"
        raise InputError(
            KEY, problem, "name a file in a folder that the driver can write"
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
    said = without_password(str(error) or repr(error))
    try:
        storage.write_json(file, {"exit_code": code, "error": said, "results": {}})
    except OSError as failure:
        # The error of the job is what has to be seen.
        logger.warning("what came of the job cannot be written to %s: %s", file, failure)
