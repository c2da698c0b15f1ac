"""That an executor has ended, as it is told of its worker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pipelines.errors import WorkerLostError
from pipelines.spark.errors import ended_executors, reasons_of_losses

SECONDS = 120
HERE = "127.0.0.1"


@contextmanager
def executor_lost(context) -> Iterator[None]:
    """Checks that the exit code of the executor which a block kills is told of its worker alone."""
    before = ended_executors(context)
    named = r"^engine torch, rank 1, host node7, lane 2: the worker's process died \(.*code 137\)$"
    with (
        pytest.raises(WorkerLostError, match=named) as caught,
        reasons_of_losses(context, lambda rank: {1: HERE}[rank]),
    ):
        with (
            pytest.raises(WorkerLostError, match=r"process died$"),
            reasons_of_losses(context, lambda rank: "10.9.9.9"),
        ):
            yield
            deadline = time.monotonic() + SECONDS
            while ended_executors(context).keys() == before.keys():
                assert time.monotonic() < deadline
                time.sleep(0.1)
            raise lost_on("another")
        raise lost_on("node7")
    assert (caught.value.began, caught.value.rank, caught.value.lane) == (True, 1, 2)


def lost_on(host: str) -> WorkerLostError:
    cause = "the worker's process died"
    return WorkerLostError("torch", cause, began=True, rank=1, host=host, lane=2)
