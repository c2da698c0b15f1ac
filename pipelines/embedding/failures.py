"""A failure on an executor in one line: what Python said there, without Java's stack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipelines.errors import PipelineError


@contextmanager
def executor_failures(work: str, ending: str = "") -> Iterator[None]:
    """Turns what Spark raises for a failed task into a PipelineError of one line.

    Args:
        work: What failed, the beginning of the line.
        ending: Of the line: what the user can do about it.

    Raises:
        PipelineError: A task failed as often as Spark tries.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PythonException

    try:
        yield
    except (Py4JJavaError, PythonException) as error:
        raise PipelineError(
            f"{work} failed on an executor: {python_error(error)}{ending}"
        ) from error


def python_error(error: Any) -> str:
    """The last line of the executor's traceback, or what Spark says.

    Args:
        error: A Py4JJavaError, as jobs of RDDs raise, or a PythonException, as those of frames do.
    """
    java = getattr(error, "java_exception", None)
    said = error.desc if java is None else java.getMessage()
    lines = [line.strip() for line in str(said).strip().splitlines()]
    before_java = lines[: next((n for n, line in enumerate(lines) if line == ""), len(lines))]
    return next((line for line in reversed(before_java) if line), "Spark gives no reason")
