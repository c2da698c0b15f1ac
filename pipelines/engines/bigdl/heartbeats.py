"""Executors of which the driver hears nothing, long before Spark gives them up.

Spark itself takes `spark.network.timeout`, two minutes, and as much as another minute until it
looks. Both are fixed when a session starts, which may not be ours; the heartbeats that executors
send to the driver are there in every session. Runs on the driver.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext

CHECK_SECONDS = 1.0
SILENCE_SECONDS = 40.0
"""Four heartbeats: more than the monitor gives a Python process, since a JVM may stop to collect
its garbage."""
_INTERVAL = "spark.executor.heartbeatInterval"
_SPARK_INTERVAL = "10s"
_INTERVALS = 2.5
"""After a network that was away for ten seconds heartbeats are two intervals and more apart."""


class Heartbeats:
    """Says which executors are silent.

    Args:
        listener: The class `Heartbeats` of :mod:`pipelines.jvm`.
        most_seconds: The longest that an executor with tasks to run may be silent.
    """

    def __init__(self, listener: Any, most_seconds: float) -> None:
        self._listener = listener
        self._most_seconds = most_seconds
        self._looked = self._since = time.monotonic()

    def silent(self) -> Mapping[str, float]:
        """How long executors are silent that are for too long; by host and port of each."""
        now = time.monotonic()
        if now - self._looked > 2 * CHECK_SECONDS:
            # This process may have been suspended, and could hear nothing.
            self._since = now
        self._looked = now
        return too_long(self._listener.silences(), now - self._since, self._most_seconds)


def too_long(lines: str, awake: float, most_seconds: float) -> Mapping[str, float]:
    """The silences that are too long, by host and port of the executor.

    Args:
        lines: Of the class `Heartbeats` of :mod:`pipelines.jvm`.
        awake: For so many seconds the driver would have heard anything.
        most_seconds: The longest that is not too long.
    """
    rows = (line.split() for line in lines.splitlines())
    seconds = {executor: min(float(told), awake) for executor, told in rows}
    return {executor: told for executor, told in seconds.items() if told > most_seconds}


@contextmanager
def listening(context: SparkContext, classes: Any) -> Iterator[Heartbeats]:
    """Listens to the executors inside the block.

    Args:
        classes: The package of :mod:`pipelines.jvm`.
    """
    spark: Any = context._jsc.sc()
    interval = spark.conf().getTimeAsMs(_INTERVAL, _SPARK_INTERVAL) / 1000
    listener = classes.Heartbeats()
    spark.addSparkListener(listener)
    try:
        yield Heartbeats(listener, max(SILENCE_SECONDS, _INTERVALS * interval))
    finally:
        spark.removeSparkListener(listener)
