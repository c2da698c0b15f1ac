"""Errors of Spark and of the file system in one line, without stacks."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pipelines.errors import PipelineError
from pipelines.files.stores import credentials_remedy, first_line
from pipelines.spark.shell import check_worker

_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")
_PYTHON_ERROR = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception): ")
_JAVA_ERROR = re.compile(r"\w(?:Error|Exception)\b")
_SERVER_STACK = "\n\nJVM stacktrace:"
_ROOM = "; make room on the disk, and run it again"
_RIGHT = "; let this user write there"
_REMEDIES = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EACCES: _RIGHT,
    errno.EPERM: _RIGHT,
    errno.EROFS: _RIGHT,
}


@contextmanager
def executor_failures(work: str, ending: str = "") -> Iterator[None]:
    """Turns what Spark raises for a failed task, or when it has ended, into one line.

    A context manager, and a decorator of a function.

    Args:
        work: What failed, the beginning of the line.
        ending: Of the line: what the user can do about it.

    Raises:
        PipelineError: A task failed as often as Spark tries, or Spark itself did.
        InputError: No task began, since executors cannot run the Python that the shell names.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException, PythonException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        in_task = isinstance(error, PythonException) or "stage failure" in str(error)
        where = "on an executor" if in_task else "in Spark"
        cause = spark_cause(error)
        check_worker(cause)
        raise PipelineError(f"{work} failed {where}: {cause}{ending}") from error


@contextmanager
def file_failures(work: str) -> Iterator[None]:
    """Turns errors of the file system into one line: a full disk, a folder that is gone.

    A context manager, and a decorator of a function.

    Args:
        work: What failed, the beginning of the line.

    Raises:
        PipelineError: A file could not be read or written.
    """
    try:
        yield
    except Exception as error:
        problem = file_failure(error)
        if problem is None:
            raise
        raise PipelineError(f"{work} failed: {problem}") from error


def file_failure(error: BaseException) -> str | None:
    """An error of the file system and its remedy in one line; None for other errors."""
    from safetensors import SafetensorError

    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        remedy = _remedy(error.errno) or credentials_remedy(error)
        return f"{error.strerror or first_line(error)}{where}{remedy}"
    if isinstance(error, SafetensorError):
        # It carries an error of the system only as the number at the end of its message.
        number = _SYSTEM_ERROR.search(str(error))
        return f"{error}{_remedy(int(number[1]))}" if number else None
    return None


def complete_line(error: BaseException) -> str | None:
    """The line that is enough to report an executor's error; None if it needs its traceback."""
    if isinstance(error, PipelineError):
        return str(error)
    if isinstance(error, OSError) and not (_remedy(error.errno) or credentials_remedy(error)):
        return None  # Such as a connection that broke.
    return file_failure(error)


def _remedy(number: int | None) -> str:
    return _REMEDIES.get(number or 0, "")


def spark_cause(error: BaseException | str) -> str:
    """The cause of a failed Spark job, in one line.

    That is the error at the end of the Python traceback of an executor. Where there is none, it is
    the message of the innermost Java exception: the outer ones name the call that has failed.
    """
    texts = _texts(error)
    python = (_python_error(text) for text in reversed(texts))
    java = (_first_line(text) for text in reversed(texts[1:]))
    return next(filter(None, (*python, *java, _java_error(texts[0]))), repr(error))


def _texts(error: BaseException | str) -> list[str]:
    """The message of an error, and then those of its causes in Java, the outermost first."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    # Spark Connect writes the stack of the server behind the message.
    texts = [str(getattr(error, "desc", None) or error).partition(_SERVER_STACK)[0]]
    java = getattr(error, "java_exception", None)
    with suppress(Py4JError, OSError):  # The JVM, which is asked, may be gone.
        while java is not None:
            texts.append(str(java.getMessage() or ""))
            java = java.getCause()
    return texts


def _python_error(text: str) -> str | None:
    """The error at the end of a Python traceback, without further lines of its message."""
    _, traceback, rest = text.rpartition("Traceback (most recent call last):")
    if traceback:
        # What is indented are the frames.
        ends = (line for line in rest.splitlines() if line and not line[0].isspace())
        return next(ends, None)
    # Of a log of which only the end is known.
    ends = (line for line in reversed(text.splitlines()) if _PYTHON_ERROR.match(line))
    return next(ends, None)


def _java_error(text: str) -> str:
    """The first line that names a Java exception, since a text begins with the call that failed."""
    named = (line for line in text.splitlines() if _JAVA_ERROR.search(line))
    return next(named, _first_line(text)).removeprefix(": ")


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
