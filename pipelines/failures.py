"""What Spark raises, in one line: what Python said on an executor, or Java, without stacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipelines.errors import PipelineError


@contextmanager
def executor_failures(work: str, ending: str = "") -> Iterator[None]:
    """Turns what Spark raises for a failed task, or when it has ended, into one line.

    A context manager, and a decorator of a function.

    Args:
        work: What failed, the beginning of the line.
        ending: Of the line: what the user can do about it.

    Raises:
        PipelineError: A task failed as often as Spark tries, or Spark itself did.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException, PythonException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        said = _said(error)
        told = f"in Spark: {_first(said)}"
        if isinstance(error, PythonException) or "stage failure" in said:
            told = f"on an executor: {_python_error(said)}"
        raise PipelineError(f"{work} failed {told}{ending}") from error


def _said(error: Any) -> str:
    java = getattr(error, "java_exception", None)
    if java is not None:
        return str(java.getMessage())
    return str(getattr(error, "desc", None) or error)


def _python_error(said: str) -> str:
    """The last line of the executor's traceback, or what Spark says."""
    lines = [line.strip() for line in said.strip().splitlines()]
    before_java = lines[: next((n for n, line in enumerate(lines) if line == ""), len(lines))]
    return next((line for line in reversed(before_java) if line), "Spark gives no reason")


def _first(said: str) -> str:
    return next((line.strip() for line in said.splitlines() if line.strip()), "it gives no reason")
