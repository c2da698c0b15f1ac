"""The driver's view of dllib: the progress of its steps, and where its workers are.

Spark gives up a silent executor after `spark.network.timeout`, two minutes, and looks once a
minute. A session fixes both at its start, and may be the user's. The heartbeats of executors, in
every session, tell the driver of silence much earlier. Runs on the driver.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipelines.errors import EngineError, WorkerLostError
from pipelines.lanes.plan import first_lane
from pipelines.settings import TrainingSettings
from pipelines.spark.errors import name_of, spark_cause

if TYPE_CHECKING:
    from pyspark import SparkContext


CHECK_SECONDS = 1.0
SILENCE_SECONDS = 40.0
"""Four heartbeats: more than the monitor's deadline for a Python process, since a JVM may stop for
a garbage collection."""
_INTERVAL = "spark.executor.heartbeatInterval"
_SPARK_INTERVAL = "10s"
_INTERVALS = 2.5
"""After a network outage of ten seconds, heartbeats come two intervals and more apart."""


class Heartbeats:
    """Finds executors with tasks and a silence of more than `most_seconds`.

    The listener is the class `Heartbeats` of :mod:`pipelines.engines.bigdl.jvm`.
    """

    def __init__(self, listener: Any, most_seconds: float) -> None:
        self._listener = listener
        self._most_seconds = most_seconds
        self._looked = self._since = time.monotonic()

    def silent(self) -> Mapping[str, float]:
        """Return the silences over the limit, by host and port of the executor."""
        now = time.monotonic()
        if now - self._looked > 2 * CHECK_SECONDS:
            # A suspended process hears nothing, so the executors get a new deadline.
            self._since = now
        self._looked = now
        return too_long(self._listener.silences(), now - self._since, self._most_seconds)


def too_long(lines: str, awake: float, most_seconds: float) -> Mapping[str, float]:
    """Return the silences over `most_seconds`, by host and port, from the lines of `Heartbeats`.

    The driver has listened for `awake` seconds, the upper limit of every silence.
    """
    rows = (line.split() for line in lines.splitlines())
    silences = {executor: min(float(seconds), awake) for executor, seconds in rows}
    return {executor: silence for executor, silence in silences.items() if silence > most_seconds}


@contextmanager
def listening(context: SparkContext, classes: Any) -> Iterator[Heartbeats]:
    """Listen to the executors inside the block.

    `classes` is the package of :mod:`pipelines.engines.bigdl.jvm`.
    """
    spark: Any = context._jsc.sc()
    interval = spark.conf().getTimeAsMs(_INTERVAL, _SPARK_INTERVAL) / 1000
    listener = classes.Heartbeats()
    spark.addSparkListener(listener)
    try:
        yield Heartbeats(listener, max(SILENCE_SECONDS, _INTERVALS * interval))
    finally:
        spark.removeSparkListener(listener)


# dllib's name of the RDD with each worker's copy of the model.
_MODELS = "Thread Model RDD"
# Spark's words in the error of a stage; and the message of the class `AdamW` in `jvm` for a
# repeated task of a worker on another executor, before Spark reports the loss.
_EXECUTOR_LOST = "ExecutorLostFailure"
_STATE_LOST = re.compile(r"worker (\d+) was lost: its part of the optimiser")
# dllib's messages for such a task, which finds no parameters on its executor.
_PARAMETERS_LOST = re.compile(
    "initialize AllReduceParameter first|AllReduceParameter is not initialized"
)


@dataclass(frozen=True)
class StepTimes:
    """dllib's report of a step.

    Attributes:
        steps: Completed in this part, with this one.
        seconds: At the end of the step, since the part's optimiser was made.
        computing: Seconds of forward and backward passes, the mean over the workers.
    """

    steps: int
    loss: float
    seconds: float
    computing: float


def parse_progress(lines: str) -> list[StepTimes]:
    """Read the report of the class `Progress` of :mod:`pipelines.engines.bigdl.jvm`."""
    rows = (line.split() for line in lines.splitlines())
    return [StepTimes(int(steps), *map(float, rest)) for steps, *rest in rows]


@dataclass
class WorkerLocations:
    """The executor of each worker, and whether it is still there.

    Attributes:
        classes: The package of :mod:`pipelines.engines.bigdl.jvm`.
        names: Returns the lines of the class `GranulesReader` so far.
        known: Host and port of each worker's executor; empty before the workers have begun.
    """

    context: SparkContext
    classes: Any
    training: TrainingSettings
    heartbeats: Heartbeats
    names: Callable[[], Iterable[str]]
    known: Sequence[str] = field(default=())
    _checked: float = 0.0

    def find(self) -> None:
        """Ask Spark for the places of the workers, which have begun."""
        locations = self.classes.Runs.locations(self.context._jsc, _MODELS, self.training.workers)
        self.known = locations.split("\n")[: self.training.workers]

    def check(self) -> None:
        """Check, at most once a second, for lost executors of workers.

        Raises:
            WorkerLostError: An executor is silent or gone.
        """
        now = time.monotonic()
        if now - self._checked < CHECK_SECONDS:
            return
        self._checked = now
        if self.known and not all(self.known):
            self.find()
        for executor, seconds in self.heartbeats.silent().items():
            raise self._lost(executor, f"nothing was heard of it for {seconds:.0f} s")
        running = self.context._jsc.sc().getExecutorMemoryStatus().keys().mkString(" ").split()
        for executor in self.known:
            if executor and executor not in running:
                raise self._lost(executor, "its executor is gone")

    def _lost(self, executor: str, cause: str) -> WorkerLostError:
        """Return the error for a lost executor, without a worker if none has begun."""
        where: dict[str, Any] = {"host": self._name(executor.rpartition(":")[0])}
        if executor in self.known:
            where = self.place(self.known.index(executor))
        return WorkerLostError("bigdl", cause, began=bool(self.known), **where)

    def _name(self, address: str) -> str:
        """Return a host's own name if known, or else the driver's name for it."""
        names = dict(line.split(" ", 1) for line in self.names())
        return names.get(address) or (name_of(address) if address else "")

    def place(self, rank: int) -> dict[str, Any]:
        """Return rank, host and lane of a worker, for errors."""
        address = self.known[rank].rpartition(":")[0] if rank < len(self.known) else ""
        lane = first_lane(rank, self.training.workers, self.training.granules_per_step)
        return {"rank": rank, "host": self._name(address) or None, "lane": lane}

    def error(self, error: Exception) -> EngineError:
        """Return the engine's error for that of a Spark job."""
        text = str(error)
        # An error from reading lanes names its worker itself.
        if reported := re.search(r"engine bigdl, rank (\d+), host (\S+), lane (\d+): (.*)", text):
            rank, host, lane, cause = reported.groups()
            return EngineError("bigdl", cause, rank=int(rank), host=host, lane=int(lane))
        cause = f"the Spark job failed ({spark_cause(error)})"
        # Task numbers are the ranks of the workers.
        place: dict[str, Any] = {}
        if lost := re.search(r"Lost task (\d+)\.\d+ in stage \S+ \(TID \d+\) \((\S+) exec", text):
            place = self.place(int(lost[1])) | {"host": self._name(lost[2])}
        if gone := _STATE_LOST.search(text):
            cause = f"its executor is gone: {cause}"
            return WorkerLostError("bigdl", cause, began=True, **self.place(int(gone[1])))
        if lost and _PARAMETERS_LOST.search(text):
            cause = f"its executor is gone: {cause}"
            return WorkerLostError("bigdl", cause, began=True, **self.place(int(lost[1])))
        if _EXECUTOR_LOST in text:
            return WorkerLostError("bigdl", cause, began=bool(self.known), **place)
        return EngineError("bigdl", cause, **place)
