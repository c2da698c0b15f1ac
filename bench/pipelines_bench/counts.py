"""Counts instead of timing: Spark jobs, imports and memory of a driver, bytes, compilations.

A few made-up pairs, the same on every machine, are prepared, trained on and embedded in this
process, as a notebook or a job of one's own would do it. Then one step of each framework is taken
apart: what a worker of two hands over to be averaged, and how often TensorFlow compiles. None of
this depends on how fast the machine is, nor on what else it does.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table

import pipelines
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.lanes.files import LaneManifest
from pipelines.progress import next_part
from pipelines.progress.screen import Screen
from pipelines.settings import Config
from pipelines.spark.session import stopped_at_the_end
from pipelines.tokens.start import default_start
from pipelines.training.collectives.base import Collectives
from pipelines_bench.cpu import local_session
from pipelines_bench.startup import prepare_config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAIRS = 600
WORDS_OF_A_TEXT = 12
STEPS = 3
HEAVY = (
    *("tensorflow", "torch", "keras", "tf_keras", "bigdl", "horovod", "elephas", "deepspeed"),
    "megatron",
    *("tensorflowonspark", "transformers", "sentence_transformers", "mlflow", "tensorboardX"),
    *("openvino", "onnxruntime", "sklearn"),
)
"""Libraries that take seconds and hundreds of megabytes, and are for executors."""
_SYLLABLES = ("ba", "den", "fir", "go", "hul", "kas", "lem", "mo", "nir", "pa", "ros", "tiv")
_SEED = 17
_LEARNING_RATE = 2e-5


def measure(config: Config, data: str | None) -> dict[str, Any]:
    """Counts, and prints a table.

    Args:
        config: Its encoder is the one whose step is counted; corpus and training are replaced.
        data: Nothing; all is of made-up pairs.

    Returns:
        ``jobs``, ``shuffles`` and ``reads``, each with ``prepare`` and ``embed``: Spark's jobs, its
        stages that wrote a shuffle, and those that read files; ``driver_imports``: names of
        :data:`HEAVY` that preparing, training and embedding have loaded in the driver, and
        ``driver_heavy_imports``, their number; ``driver_megabytes``: the most that its Python and
        its Java held; ``step_bytes``: what a worker of PyTorch hands over in a step;
        ``tensorflow_compilations``: of several steps with texts of other lengths.
    """
    del data
    with tempfile.TemporaryDirectory(prefix="sentence-pipelines-counts-") as name:
        config = _small(config, Path(name))
        figures = _driver_figures(config, Path(name))
        next_part("steps of PyTorch and TensorFlow")
        figures |= step_figures(config)
    _print(figures)
    return figures


def made_up_pairs(number: int) -> list[tuple[str, str]]:
    """Pairs of texts in no language, each unlike all others; the same each time."""
    chance = random.Random(_SEED)

    def text() -> str:
        words = ("".join(chance.choices(_SYLLABLES, k=3)) for _ in range(WORDS_OF_A_TEXT))
        return " ".join(words)

    return [(text(), text()) for _ in range(number)]


def _small(config: Config, folder: Path) -> Config:
    """The settings of a few pairs, of two steps by the engine `torch`, and of their embedding."""
    pairs = made_up_pairs(PAIRS)
    config = prepare_config(config, pairs, folder / "corpus")
    texts = folder / "texts.parquet"
    pq.write_table(pa.table({"text": [left for left, _ in pairs]}), texts)
    training = {
        "engine": "torch",
        "framework": "torch",
        "workers": 2,
        "threads": 1,
        "granules_per_step": 2,
        "max_steps": STEPS,
        "precision": "fp32",
    }
    embedding = {
        "model": str(default_start()),
        "inputs": (str(texts),),
        "format": "parquet",
        "text_column": "text",
        "output": str(folder / "vectors"),
    }
    changes: dict[str, dict[str, Any]] = {
        # As the default has it, unlike the benchmark whose settings these are.
        "corpus": {"near_duplicates": 0.8},
        "training": training,
        "embedding": embedding,
        "run": {"folder": str(folder / "run")},
    }
    return config.model_copy(
        update={
            section: getattr(config, section).model_copy(update=values)
            for section, values in changes.items()
        }
    )


def _driver_figures(config: Config, folder: Path) -> dict[str, Any]:
    """What the driver's Spark did, and what the driver has loaded and held."""
    counts: dict[str, dict[str, int]] = {"jobs": {}, "shuffles": {}, "reads": {}}
    with stopped_at_the_end():
        session = local_session(config)
        for stage, work in (("prepare", pipelines.prepare), ("embed", pipelines.embed)):
            before = _spark_counts(session)
            work(config)
            after = _spark_counts(session)
            for kind, found in counts.items():
                found[stage] = after[kind] - before[kind]
        pipelines.train(config)
        megabytes = _most_megabytes()
    loaded = sorted(name for name in HEAVY if name in sys.modules)
    return {
        **counts,
        "driver_imports": loaded,
        "driver_heavy_imports": len(loaded),
        "driver_megabytes": round(megabytes, 1),
    }


def _spark_counts(session: SparkSession) -> dict[str, int]:
    """What Spark has done so far."""
    context: Any = session.sparkContext
    spark, gateway = context._jsc.sc(), context._gateway
    # What has ended is told to the store by another thread.
    spark.listenerBus().waitUntilEmpty()
    store = spark.statusStore()
    none = gateway.jvm.java.util.ArrayList()
    numbers = gateway.new_array(gateway.jvm.double, 0)
    found = store.stageList(none, False, False, numbers, none)
    stages = [found.apply(place) for place in range(found.size())]
    return {
        "jobs": store.jobsList(None).size(),
        "shuffles": sum(stage.shuffleWriteRecords() > 0 for stage in stages),
        "reads": sum(stage.inputRecords() > 0 for stage in stages),
    }


def _most_megabytes() -> float:
    """The most that this process and its Java have held of memory, each at its own time."""
    java = [one.pid for one in psutil.Process().children() if one.name() == "java"]
    return sum(_peak_kilobytes(pid) for pid in (os.getpid(), *java)) / 1e3


def _peak_kilobytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


class MirroredPair(Collectives):
    """The collectives of a worker of two, the other one of which does the very same.

    Attributes:
        sent: Bytes that were handed over to be gathered, and to be averaged.
    """

    rank = 0
    workers = 2

    def __init__(self) -> None:
        self.sent = {"gathered": 0, "averaged": 0}

    def all_reduce_mean(self, tensors: Sequence[Any]) -> list[Any]:
        """The tensors themselves, which are their mean."""
        self.sent["averaged"] += sum(tensor.nbytes for tensor in tensors)
        return list(tensors)

    def all_gather(self, tensor: Any) -> Any:
        """The array, twice."""
        self.sent["gathered"] += tensor.nbytes
        return np.concatenate([tensor, tensor])

    def reduce_scatter(self, tensor: Any) -> Any:
        """The first half of twice the tensor."""
        return 2 * tensor[: len(tensor) // 2]


def step_figures(config: Config) -> dict[str, Any]:
    """Bytes of a step of PyTorch's, and compilations of some of TensorFlow's.

    Args:
        config: Of lanes that are prepared.
    """
    pair = MirroredPair()
    _make_steps(config, "torch", 1, pair)
    sent = sum(pair.sent.values())
    _make_steps(config, "tensorflow", STEPS)
    return {"step_bytes": sent, "tensorflow_compilations": _compilations()}


def _make_steps(
    config: Config, framework: str, steps: int, collectives: MirroredPair | None = None
) -> None:
    # Imported late, with all that trains.
    from pipelines.training.steppers.base import lane_feed
    from pipelines_bench.trainers import new_stepper, only_worker

    training = config.training.model_copy(update={"framework": framework})
    config = config.model_copy(update={"training": training})
    lanes = PreparedFolder.of(config).lanes.path
    manifest = LaneManifest.load(lanes)
    stepper = new_stepper(config, manifest, lanes, collectives)
    if collectives is not None:
        # What workers agree on before their first step is no part of it.
        collectives.sent = dict.fromkeys(collectives.sent, 0)
    task = only_worker(config, manifest, lanes)
    for work in islice(lane_feed(task), steps):
        stepper.step(work, _LEARNING_RATE)


def _compilations() -> int:
    """How often functions of TensorFlow were traced in this process."""
    import tensorflow as tf

    kind = type(tf.function(lambda: None))
    found = [one for one in gc.get_objects() if type(one) is kind]
    return sum(one.experimental_get_tracing_count() for one in found)


def _print(figures: dict[str, Any]) -> None:
    table = Table("what is counted", "figure")
    for name, value in figures.items():
        if isinstance(value, dict):
            for part, number in value.items():
                table.add_row(f"{name}, {part}", f"{number:,}")
        elif isinstance(value, list):
            table.add_row(name, ", ".join(value) or "none")
        else:
            table.add_row(name, f"{value:,}")
    Screen().print(table)
