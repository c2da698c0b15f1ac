"""Workers of one process in a ring."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from free_addresses import free_addresses

from pipelines.training.collectives.ring import Ring
from pipelines.training.control.authenticated_server import TOKEN_BYTES, make_identity

TOKEN = "t" * TOKEN_BYTES
START_SECONDS = 10.0
WAIT_SECONDS = 10.0


def in_ring(
    workers: int,
    act: Callable[[Ring], Any],
    wait_seconds: float = WAIT_SECONDS,
    before: Callable[[Ring], object] = lambda ring: None,
    *,
    encrypted: bool = False,
) -> list[Any]:
    """What each worker's act gives, by rank."""
    identities = [make_identity() if encrypted else None for _ in range(workers)]
    known = [one and one.fingerprint for one in identities]
    with (
        free_addresses(workers) as addresses,
        ExitStack() as stack,
        ThreadPoolExecutor(workers) as threads,
    ):
        rings = [
            stack.enter_context(
                Ring(rank, addresses, TOKEN, identities[rank], known[(rank + 1) % workers])
            )
            for rank in range(workers)
        ]

        def work(ring: Ring) -> Any:
            before(ring)
            ring.join(START_SECONDS, wait_seconds)
            return act(ring)

        return list(threads.map(work, rings))
