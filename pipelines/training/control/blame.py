"""Which worker a run ends with: the one that is gone, and not one that tells of it.

When a process dies or a host is cut off, the collective operations of the others break, mostly
before the driver knows why: a host that is cut off closes no connection, it only falls silent. So
the error of a worker that says that another one is gone is no verdict. It ends the run, but the
driver first waits until it knows who was silent.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pipelines.training.control.monitored import MonitoredWorker, has_unread, is_lost

GRACE_SECONDS = 2.0
"""A peer's death breaks the collective operations of the others within moments."""
QUIET_SECONDS = 10.0
"""Five heartbeats. Once another worker has lost the connection to it, who is as silent is gone."""


@dataclass(frozen=True)
class Verdict:
    """What ends a run.

    Attributes:
        worker: The one at fault.
        cause: What happened to it.
        is_gone: Whether a process or the network is gone, and nothing in the run went wrong.
    """

    worker: MonitoredWorker
    cause: str
    is_gone: bool


def find_verdict(workers: Collection[MonitoredWorker], now: float) -> Verdict | None:
    """The cause of the first failure, once it is known.

    Args:
        workers: All that have connected; one has failed at least, or is gone.
        now: The time.

    Returns:
        None as long as the wait goes on, at most ``GRACE_SECONDS + QUIET_SECONDS``.
    """
    ended = [worker for worker in workers if is_lost(worker)]
    since = min(worker.ended for worker in ended)
    if now - since < GRACE_SECONDS:
        return None
    # A dead process comes before one that could still report an error.
    first = min(ended, key=lambda one: (not one.is_gone, one.peer_lost, one.rank))
    if first.is_gone:
        return Verdict(first, first.failure or first.broken or "the worker's process died", True)
    assert first.failure is not None, "it is not gone, so it has failed"
    if not first.peer_lost:
        return Verdict(first, first.failure, False)
    return _silent_peer(workers, first, since, now)


def _silent_peer(
    workers: Collection[MonitoredWorker], first: MonitoredWorker, since: float, now: float
) -> Verdict | None:
    """Who was silent when the connections to it broke.

    Args:
        first: Tells that a peer is gone.
        since: When the first worker did.
    """
    others = [one for one in workers if not (is_lost(one) or one.done)]
    if now - since < GRACE_SECONDS + QUIET_SECONDS and any(
        has_unread(one.connection) for one in others
    ):
        # What has arrived may be another worker's own error, which comes before the network.
        return None
    unheard = [
        one
        for one in others
        if one.last_message < since + GRACE_SECONDS and not has_unread(one.connection)
    ]
    if not unheard:
        # All are there, so that the network between them broke.
        return Verdict(first, first.failure or "", True)
    peer = min(unheard, key=lambda one: one.last_message)
    quiet = now - peer.last_message
    if quiet < QUIET_SECONDS:
        return None
    return Verdict(peer, f"nothing was heard of it for {quiet:.0f} s", True)
