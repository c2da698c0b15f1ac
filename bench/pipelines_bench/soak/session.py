"""Many trainings in one Spark session, as a notebook makes them, and what is left after each."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pipelines
from pipelines.settings import Config
from pipelines.settings.load import load
from pipelines.spark.session import spark_session, stopped_at_the_end
from pipelines_bench.soak.cases import case_settings
from pipelines_bench.soak.record import RUNS, Record
from pipelines_bench.soak.watching import LEFT_OVER, SESSION, Watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS_OF_A_RUN = 6
EXECUTORS = 3
"""Two workers, and the parameter server of asynchronous TensorFlowOnSpark."""
_SHARED_MEMORY = Path("/dev/shm")
# Executors hear of what is no longer needed, and processes of a run that is over have ended.
_SETTLE_SECONDS = 2.0


def main() -> None:
    """Makes the runs: settings, how many, cases with commas, and the file of the record."""
    settings, runs, cases, path = sys.argv[1:]
    config = load(settings)
    with stopped_at_the_end():
        session = spark_session(config, executors=EXECUTORS, conf=_class_paths())
        train_often(session, config, int(runs), cases.split(","), Path(path))


def train_often(
    session: SparkSession, config: Config, runs: int, cases: list[str], path: Path
) -> Record:
    """Trains, and counts after each run.

    Args:
        session: With executors enough for every case.
        config: Of :func:`pipelines_bench.soak.cases.small_settings`.
        runs: How many.
        cases: Which ones, by turns.
        path: Where the record is kept; it is written after each run.
    """
    watch, record, began = Watch(os.getpid()), Record(RUNS + "s", RUNS), time.monotonic()
    for number in range(1, runs + 1):
        name = cases[(number - 1) % len(cases)]
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            pipelines.train(case_settings(config, name, Path(folder) / "run", STEPS_OF_A_RUN))
        gc.collect()
        # Spark forgets what nobody refers to when Java's garbage is collected.
        session.sparkContext._jvm.System.gc()  # type: ignore[union-attr]
        time.sleep(_SETTLE_SECONDS)
        sample = {**watch.sample(with_heap=True), SESSION: _left_over(session, watch)}
        record.add(number, time.monotonic() - began, sample)
        record.write(path)
    return record


def _class_paths() -> Any:
    """What a session needs for BigDL, where that is installed."""
    if find_spec("bigdl") is None:
        return dict
    from pipelines.engines.bigdl.jars import class_paths

    return class_paths


def _left_over(session: SparkSession, watch: Watch) -> Mapping[str, float]:
    """What a run may leave beside what its processes hold."""
    import psutil

    listening = 0
    for process in watch.processes():
        with suppress(psutil.Error):
            listening += sum(
                one.status == psutil.CONN_LISTEN for one in process.net_connections("inet")
            )
    java: Any = session.sparkContext._jsc.sc()
    temporary = Path(tempfile.gettempdir())
    counts = (
        listening,
        sum(1 for _ in temporary.rglob("*")),
        sum(1 for _ in _SHARED_MEMORY.iterdir()),
        java.getPersistentRDDs().size(),
        sum(
            status.blocks().size()
            for status in list(java.env().blockManager().master().getStorageStatus())
        ),
    )
    return dict(zip(LEFT_OVER, counts, strict=True))


if __name__ == "__main__":
    main()
