"""Why Spark says that executors have ended: the exit code, or what the cluster's manager tells.

A worker's process ends with its executor, and nothing of it is left that could say why: 137 is a
process that the system killed, mostly for its memory. Runs on the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelines.errors import WorkerLostError

if TYPE_CHECKING:
    from pyspark import SparkContext


class Ended(NamedTuple):
    """An executor that Spark has removed.

    Attributes:
        host: Name or address of its host, as Spark knows it.
        reason: In a line.
    """

    host: str
    reason: str


def ended_executors(context: SparkContext) -> dict[str, Ended]:
    """The executors that have ended in this session, by their ids."""
    executors: Any = context._jsc.sc().statusStore().executorList(False)
    found = {}
    for place in range(executors.size()):
        one = executors.apply(place)
        if not one.isActive() and one.removeReason().isDefined():
            host = str(one.hostPort()).rpartition(":")[0]
            reason = str(one.removeReason().get()).strip().partition("\n")[0]
            found[str(one.id())] = Ended(host, reason)
    return found


@contextmanager
def reasons_of_losses(
    context: SparkContext, address_of: Callable[[int], str | None]
) -> Iterator[None]:
    """Has the error of a lost worker tell why its executor has ended, if it has.

    Args:
        address_of: The address of a worker's host.

    Raises:
        WorkerLostError: That of the block, whose cause ends with the reason.
    """
    before = ended_executors(context)
    try:
        yield
    except WorkerLostError as lost:
        since = [one for id, one in _ended_by_now(context).items() if id not in before]
        hosts = {lost.host} if lost.rank is None else {lost.host, address_of(lost.rank)}
        reasons = {one.reason for one in since if one.host in hosts}
        if len(reasons) != 1:
            raise  # Nothing is known, or it is not known which one was the worker's.
        raise lost.since(f"its executor has ended: {reasons.pop()}") from None


def _ended_by_now(context: SparkContext) -> dict[str, Ended]:
    """See :func:`ended_executors`; none if Spark itself has ended."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        return ended_executors(context)
    except (Py4JError, OSError):
        return {}
