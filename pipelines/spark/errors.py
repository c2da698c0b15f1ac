"""One-line errors of Spark and of the file system, and Spark's reasons for lost executors.

A worker's process ends with its executor and leaves no reason. Spark has the exit code (137 after a
kill by the system, mostly for its memory), or the cluster manager's message.
"""

from __future__ import annotations

import errno
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelines.errors import PipelineError, WorkerLostError
from pipelines.files.stores import credentials_remedy, first_line
from pipelines.libraries import is_installed
from pipelines.spark.shell import check_worker

if TYPE_CHECKING:
    from pyspark import SparkContext


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


_MOST_TASKS = 10_000
_FAILED_TASK = re.compile(r"barrier task \w+\(\d+, (\d+)\)|Lost task (\d+)\.\d+ in stage")
"""Finds the partition, here 1, in two messages of Spark.

These are `Stage failed because barrier task ResultTask(3, 1) finished unsuccessfully` and
`Lost task 1.0 in stage 3.0`.
"""
LOOK_SECONDS = 2.0


@contextmanager
def executor_failures(work: str, ending: str = "") -> Iterator[None]:
    """Turn Spark's error of a failed task, or of its own end, into one line.

    A context manager, and a decorator of a function. The line begins with the failed ``work``, and
    ends with ``ending``, the user's remedy.

    Raises:
        PipelineError: A task failed as often as Spark tries, or Spark itself did.
        InputError: No task began, since executors cannot run the Python that the shell names.
    """
    if not is_installed("pyspark"):
        # Some commands do without Spark.
        yield
        return
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
    """Turn file system errors (a full disk, a lost folder) into one line about ``work``.

    A context manager, and a decorator of a function.

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
    """Return a file system error and its remedy in one line; None for other errors."""
    from safetensors import SafetensorError

    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        remedy = _remedy(error.errno) or credentials_remedy(error)
        return f"{error.strerror or first_line(error)}{where}{remedy}"
    if isinstance(error, SafetensorError):
        # safetensors gives the system's error only as a number at the end of its message.
        number = _SYSTEM_ERROR.search(str(error))
        return f"{error}{_remedy(int(number[1]))}" if number else None
    return None


def complete_line(error: BaseException) -> str | None:
    """Return an executor's error in one line; None if it needs its traceback."""
    if isinstance(error, PipelineError):
        return str(error)
    if isinstance(error, OSError) and not (_remedy(error.errno) or credentials_remedy(error)):
        return None  # Such as a broken connection.
    return file_failure(error)


def _remedy(number: int | None) -> str:
    return _REMEDIES.get(number or 0, "")


def spark_cause(error: BaseException | str) -> str:
    """Return the cause of a failed Spark job, in one line.

    It is the error at the end of an executor's Python traceback, or else the message of the
    innermost Java exception: the outer ones name the failed call.
    """
    texts = _texts(error)
    python = (_python_error(text) for text in reversed(texts))
    java = (_first_line(text) for text in reversed(texts[1:]))
    return next(filter(None, (*python, *java, _java_error(texts[0]))), repr(error))


def _texts(error: BaseException | str) -> list[str]:
    """Return the messages of an error and of its causes in Java, outermost first."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    # Spark Connect writes the stack of the server behind the message.
    texts = [str(getattr(error, "desc", None) or error).partition(_SERVER_STACK)[0]]
    java = getattr(error, "java_exception", None)
    with suppress(Py4JError, OSError):  # The JVM may be gone.
        while java is not None:
            texts.append(str(java.getMessage() or ""))
            java = java.getCause()
    return texts


def _python_error(text: str) -> str | None:
    """Return the first line of the error at the end of a Python traceback."""
    _, traceback, rest = text.rpartition("Traceback (most recent call last):")
    if traceback:
        # The frames are indented, the error is not.
        ends = (line for line in rest.splitlines() if line and not line[0].isspace())
        return next(ends, None)
    # The text may be the end of a log, without the head of the traceback.
    ends = (line for line in reversed(text.splitlines()) if _PYTHON_ERROR.match(line))
    return next(ends, None)


def _java_error(text: str) -> str:
    """Return the first line with a Java exception: a text begins with the failed call."""
    named = (line for line in text.splitlines() if _JAVA_ERROR.search(line))
    return next(named, _first_line(text)).removeprefix(": ")


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


class TaskPlace(NamedTuple):
    """A task of a job: its partition in the stage, and its host, mostly as an address."""

    partition: int
    host: str


def java_items(sequence: Any) -> Iterator[Any]:
    """Yield the items of a JVM's sequence."""
    return map(sequence.apply, range(sequence.size()))


def task_places(context: SparkContext, group: str) -> list[TaskPlace]:
    """Return the tasks of a group's newest job; none if Spark has ended or forgotten it."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    with suppress(Py4JError, OSError):
        tracker, store = context.statusTracker(), _status_store(context)
        jobs = sorted(tracker.getJobIdsForGroup(group))
        job = tracker.getJobInfo(jobs[-1]) if jobs else None
        stages = job.stageIds if job else ()
        attempts = [(stage, store.lastStageAttempt(stage).attemptId()) for stage in stages]
        return [
            TaskPlace(task.index(), str(task.host()))
            for stage, attempt in attempts
            for task in java_items(store.taskList(stage, attempt, _MOST_TASKS))
        ]
    return []


def failed_partition(message: str) -> int | None:
    """Return the number of the task in the message of a failed job, if there is one.

    In a barrier stage Spark ends the other tasks too, and they also count as failed.
    """
    found = _FAILED_TASK.search(message)
    return int(found[1] or found[2]) if found else None


def host_of_task(context: SparkContext, group: str, partition: int | None) -> str | None:
    """Return the host name of a job's task, if known."""
    hosts = [task.host for task in task_places(context, group) if task.partition == partition]
    return name_of(hosts[-1]) if hosts else None


def name_of(host: str) -> str:
    """Return the name of a host by its address, if the driver can look it up."""
    try:
        return socket.gethostbyaddr(host)[0]
    except OSError:
        return host


def _status_store(context: SparkContext) -> Any:
    return context._jsc.sc().statusStore()


class Ended(NamedTuple):
    """An executor removed by Spark."""

    host: str
    reason: str


def ended_executors(context: SparkContext) -> dict[str, Ended]:
    """Return the ended executors of this session, by id."""
    found = {}
    for executor in java_items(_status_store(context).executorList(False)):
        if not executor.isActive() and executor.removeReason().isDefined():
            host = str(executor.hostPort()).rpartition(":")[0]
            reason = str(executor.removeReason().get()).strip().partition("\n")[0]
            found[str(executor.id())] = Ended(host, reason)
    return found


@contextmanager
def reasons_of_losses(
    context: SparkContext, address_of: Callable[[int], str | None]
) -> Iterator[None]:
    """Add the end of its executor, if any, to the error of a lost worker.

    Raises:
        WorkerLostError: The block's error; its cause ends with the reason.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    before = ended_executors(context)
    try:
        yield
    except WorkerLostError as lost:
        after: dict[str, Ended] = {}
        with suppress(Py4JError, OSError):  # Spark itself may have ended.
            after = ended_executors(context)
        ended = [executor for id, executor in after.items() if id not in before]
        hosts = {lost.host} if lost.rank is None else {lost.host, address_of(lost.rank)}
        reasons = {executor.reason for executor in ended if executor.host in hosts}
        if len(reasons) != 1:
            raise  # No executor ended, or several did and the worker's is unknown.
        raise lost.since(f"its executor has ended: {reasons.pop()}") from None


class LeavingExecutors:
    """Reports executors in decommissioning, each once.

    With ``spark.decommission.enabled``, Spark hears of it from the cluster (the end of a pod, the
    draining of a node of YARN, SIGPWR to a worker), and gives them no new tasks.
    """

    def __init__(self, context: SparkContext, tell: Callable[[str], None]) -> None:
        self._spark: Any = context._jsc.sc()
        enabled = context.getConf().get("spark.decommission.enabled", "false")
        self._is_on = str(enabled).lower() == "true"
        self._tell = tell
        self._known: set[str] = set()
        self._looked = 0.0

    def look(self) -> None:
        """Ask Spark, at most every two seconds; return None, so that a wait goes on."""
        now = time.monotonic()
        if not self._is_on or now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        state = self._spark.taskScheduler().getExecutorDecommissionState
        for executor in java_items(self._spark.getExecutorIds()):
            if executor not in self._known and state(executor).isDefined():
                self._known.add(executor)
                self._tell(f"Spark decommissions executor {executor}")
