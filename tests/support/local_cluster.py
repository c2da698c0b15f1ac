"""How many executors the cluster of the tests has, and what sessions beside it are set to."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pipelines.spark.session import executor_count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEADLINE_SECONDS = 120
BRIEF = {
    "sql.shuffle.partitions": "2",
    "sql.codegen.wholeStage": "false",
    "sql.codegen.factoryMode": "NO_CODEGEN",
    "ui.enabled": "false",
}
"""Settings of a session of few rows: as in conftest.py, compilation costs more than it gives."""


def have_executors(session: SparkSession, wanted: int) -> None:
    """Ends executors of a local cluster, or starts some, and waits until there are so many.

    Args:
        session: Of a cluster that was started with at least so many.
        wanted: At least 1.
    """
    there = executor_count(session)
    if there == wanted:
        return
    context = session.sparkContext
    java = context._jsc.sc()
    registered = java.getExecutorIds()
    for place in range(wanted, there):
        java.killExecutor(registered.apply(place))
    # Of those that are killed too, lest the cluster replace them.
    java.requestTotalExecutors(wanted, 0, context._jvm.PythonUtils.toScalaMap({}))
    deadline = time.monotonic() + DEADLINE_SECONDS
    while executor_count(session) != wanted:
        assert time.monotonic() < deadline, f"{executor_count(session)} executors, not {wanted}"
        time.sleep(0.1)
