"""Executors that Spark decommissions: their machines are about to be taken away.

Spark hears of it from the cluster (a pod that is ended, a node of YARN that is drained, a worker
that gets SIGPWR) where ``spark.decommission.enabled`` is true, and gives them no new tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext

LOOK_SECONDS = 2.0


class LeavingExecutors:
    """Tells of executors whose decommissioning has begun, each once.

    Args:
        context: Of the executors.
        tell: Called with a line for people.
    """

    def __init__(self, context: SparkContext, tell: Callable[[str], None]) -> None:
        self._spark: Any = context._jsc.sc()
        enabled = context.getConf().get("spark.decommission.enabled", "false")
        self._is_on = str(enabled).lower() == "true"
        self._tell = tell
        self._known: set[str] = set()
        self._looked = 0.0

    def look(self) -> None:
        """Asks Spark, at most every two seconds; returns nothing, so that a wait goes on."""
        now = time.monotonic()
        if not self._is_on or now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        scheduler, executors = self._spark.taskScheduler(), self._spark.getExecutorIds()
        for place in range(executors.size()):
            executor = executors.apply(place)
            if executor not in self._known and (
                scheduler.getExecutorDecommissionState(executor).isDefined()
            ):
                self._known.add(executor)
                self._tell(f"Spark decommissions executor {executor}")
