"""CPU time of a Spark job over all its processes, which must be on this machine."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import psutil

from pipelines.errors import InputError
from pipelines.settings import Config
from pipelines.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLE_SECONDS = 0.25


def local_session(config: Config, *, trains: bool = True) -> SparkSession:
    """A session whose executors are on this machine.

    Args:
        trains: See :func:`~pipelines.spark.session.spark_session`.

    Raises:
        InputError: They are not.
    """
    session = spark_session(config, trains=trains)
    master = session.sparkContext.master or ""
    if not master.startswith("local"):
        raise InputError(
            "spark.master",
            f"the CPU time of executors of {master} cannot be seen from here",
            "Leave it out for a local cluster",
        )
    return session


class CpuMeter:
    """Counts the CPU time of this process and of all that descend from it.

    Spark's Python workers are children of a daemon that ignores how they end, so the system adds
    their time to nobody's. Therefore the processes are looked at time and again, and what was
    last seen of one that ended is kept: of such a process the last :data:`SAMPLE_SECONDS` may be
    missing. Under spark-submit the driver's JVM is the parent of this process, and counted too.
    """

    def __init__(self) -> None:
        root = psutil.Process()
        submitted = "PYSPARK_GATEWAY_PORT" in os.environ
        self._root = root.parent() or root if submitted else root
        self._seen: dict[tuple[int, float], float] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="cpu-meter", daemon=True)

    def __enter__(self) -> CpuMeter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=60)

    def seconds(self) -> float:
        """User and system time so far of all processes that were seen."""
        with self._lock:
            for process in [self._root, *self._root.children(recursive=True)]:
                try:
                    times = process.cpu_times()
                except psutil.NoSuchProcess:
                    continue
                self._seen[process.pid, process.create_time()] = times.user + times.system
            return sum(self._seen.values())

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            self.seconds()
