"""What is BigDL's own: its graph, its parts, its executors, its class path."""

import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from corpus_factory import small_config
from engine_cases import trained_here
from hypothesis import given
from hypothesis import strategies as st
from lost_executors import executor_lost
from py4j.protocol import Py4JJavaError
from test_contract import ENDLESS, PROMPT_SECONDS, STALL_SECONDS, distance

from pipelines.catalog import LOSSES
from pipelines.engines.base import load_engine
from pipelines.engines.bigdl import dllib_engine as memory
from pipelines.engines.bigdl import jars
from pipelines.engines.bigdl.feeding import packed, parts_of, replicas
from pipelines.engines.bigdl.progress import parse_progress
from pipelines.errors import EngineError, EngineUnavailable, WorkerLostError
from pipelines.lanes.files import Granule, Side
from pipelines.lanes.reader import LaneReader
from pipelines.losses.candidates import Picks
from pipelines.models.bert.spec import BertSpec
from pipelines.models.weights import random_weights
from pipelines.runs.checkpoint import Checkpoint, checkpoint_steps, load_checkpoint, save_checkpoint
from pipelines.settings import Config, TrainingSettings
from pipelines.settings.objective import objective

pytest.importorskip("bigdl", reason="BigDL is not installed")
training_graph = pytest.importorskip("pipelines.engines.bigdl.dllib").training_graph

STEPS = 24
# Of which some parts are made; and after which weights are compared: roundings add up.
FEW_STEPS = 8
# How far curves are apart: fp16 of dllib is the upper half of the bits of an fp32, seven digits
# of each gradient, and of the weights on their way.
OF_FP16 = 2e-2


def trained(spark, run, on_metrics=lambda line: None):
    return np.array(load_engine("bigdl").train(spark, run, on_metrics).losses)


@pytest.mark.matrix
@pytest.mark.parametrize(("workers", "compression"), [(1, "none"), (2, "fp16")])
def test_its_curve_is_that_of_one_process(spark, make_run, reference, workers, compression):
    run = make_run(FEW_STEPS, workers=workers, framework="bigdl", compression=compression)
    bound = {"none": 1e-3, "fp16": OF_FP16}[compression]
    np.testing.assert_allclose(trained(spark, run), reference(FEW_STEPS, "torch"), rtol=bound)


def test_threads_and_parts_change_nothing(spark, make_run, reference, monkeypatch):
    settings = {"weight_decay": 0.1, "clip_norm": 0.5}
    run = make_run(FEW_STEPS, workers=1, threads=2, framework="bigdl", **settings)
    assert replicas(run.config.training) == 2
    # Steps of 2 x 8 pairs of at most 32 tokens: five to a part.
    monkeypatch.setattr("pipelines.engines.bigdl.dllib.PART_TOKENS", 5 * 2 * 8 * 2 * 32)
    curve = trained(spark, run)
    np.testing.assert_allclose(curve, reference(FEW_STEPS, "torch", **settings), rtol=1e-3)
    assert checkpoint_steps(run.run_folder) == [0, FEW_STEPS]
    assert not list((run.run_folder / "checkpoints").glob(".*"))


def blocks(spark):
    """The names of all blocks that the driver knows of."""
    master = spark.sparkContext._jvm.org.apache.spark.SparkEnv.get().blockManager().master()
    return " ".join(status.blocks().keys().mkString(" ") for status in master.getStorageStatus())


def test_slices_that_are_not_alike_and_what_is_left_afterwards(spark, make_run, monkeypatch):
    # An odd number of weights, which two workers cannot share evenly.
    spec = BertSpec(vocabulary=2000, layers=1, hidden=33, heads=3, intermediate=64)
    weights = random_weights(spec, 1)
    assert sum(value.size for value in weights.values()) % 2 == 1
    settings = {"weight_decay": 0.1, "clip_norm": 0.5}
    alone = make_run(FEW_STEPS, "alone", workers=1, framework="torch", **settings)
    run = make_run(FEW_STEPS, workers=2, framework="bigdl", **settings)
    for one in (alone, run):
        save_checkpoint(one.run_folder, Checkpoint(0, spec, weights, {}), 9)
    # Steps of 8 pairs a worker of at most 32 tokens: five to a part.
    monkeypatch.setattr("pipelines.engines.bigdl.dllib.PART_TOKENS", 5 * 8 * 2 * 32)
    cached = spark.range(5).cache()
    cached.count()
    losses, expected = trained_here(alone)
    np.testing.assert_allclose(trained(spark, run), losses, rtol=1e-3)
    last = load_checkpoint(run.run_folder, FEW_STEPS)
    assert last.weights.keys() == expected.weights.keys()
    apart, moved = (distance(one, expected.weights) for one in (last.weights, weights))
    assert apart < 1e-3 * moved
    # What dllib has cached is gone, and what others have is not.
    assert "test_" not in blocks(spark)
    assert "rdd_" in blocks(spark)
    cached.unpersist()


def test_a_task_that_is_made_again_is_refused(spark, make_run):
    run = make_run(4, framework="bigdl", workers=1)
    context = spark.sparkContext
    spec = load_checkpoint(run.run_folder, 0).spec
    graph, _ = training_graph(context, spec, run)
    reader = LaneReader(run.lanes_folder, run.manifest, run.sides)
    inputs = []
    for step, addresses in run.shares(0, 1):
        granules = [reader.granule(address) for address in addresses]
        batch = graph.classes.Granules.read(packed(step.index, granules, run))
        inputs.append(batch.getInput())
    graph.model.forward(inputs[0])
    graph.model.forward(inputs[1])
    for again in (inputs[3], inputs[2]):
        with pytest.raises(Py4JJavaError, match="was given step 3 after 2 steps from 0 on"):
            graph.model.forward(again)


def executors_process(spark, rank):
    """The process of a worker's executor, by the port of its block manager."""
    context = spark.sparkContext
    locations = context._jvm.sentencepipelines.Runs.locations(context._jsc, "Thread Model RDD", 2)
    port = int(locations.split("\n")[rank].rpartition(":")[2])
    for process in psutil.Process().children(recursive=True):
        if process.name() == "java" and any(
            one.status == psutil.CONN_LISTEN and one.laddr.port == port
            for one in process.net_connections("tcp")
        ):
            return process.pid
    raise AssertionError("no process listens there")


def test_an_executor_that_is_killed_ends_the_run(spark, make_run, reference):
    """Until then its curve is that of one process, as near as gradients of 16 bits are.

    The exit code is told of the workers of other engines too, which report it by themselves.
    """
    settings = {"checkpoint_every": 4, "stall_seconds": STALL_SECONDS, "compression": "fp16"}
    run = make_run(STEPS, workers=2, framework="bigdl", **settings)
    losses, killed = [], []

    def kill_once(line):
        losses.append(line["loss"])
        if line["step"] == 6 and not killed:
            killed.append(time.monotonic())
            os.kill(executors_process(spark, 1), signal.SIGKILL)

    gone = r"rank 1, host \S+, lane 1: its executor is gone"
    with executor_lost(spark.sparkContext), pytest.raises(EngineError, match=gone):
        trained(spark, run, kill_once)
    assert time.monotonic() - killed[0] < PROMPT_SECONDS
    # Some steps more may have been made until it was killed.
    kept = checkpoint_steps(run.run_folder)
    assert kept[:2] == [0, 4]
    assert kept[-1] < STEPS
    assert spark.range(3).count() == 3, "the session lives on"
    expected = reference(STEPS, "torch")[: len(losses)]
    np.testing.assert_allclose(losses, expected, rtol=OF_FP16)
    assert not np.allclose(losses, expected, rtol=1e-5)


FORMS = {
    "in_batch_negatives": [2, 3],
    "cosine_regression": [2],
}


@pytest.mark.parametrize(("name", "sides"), [(n, s) for n, many in FORMS.items() for s in many])
def test_a_loss_is_that_of_pytorch(spark, name, sides):
    import torch
    from bigdl.dllib.nn.layer import Input, Model

    generator = np.random.default_rng(1)
    texts = generator.normal(size=(sides, 4, 6, 5)).astype(np.float32)
    units = texts / np.linalg.norm(texts, axis=-1, keepdims=True)
    scores = generator.uniform(size=(4, 6)).astype(np.float32)
    inputs = [Input() for _ in range(sides)]
    loss = LOSSES.load(name)
    settings = objective(name).model_copy(update={"temperature": 0.1})
    node, criterion = loss.form("bigdl")(inputs, 6, settings)
    scored = loss.needs == "scores"
    targets = scores if scored else np.tile(np.arange(1, 7, dtype=np.float32), 4)
    output = Model(inputs, [node]).forward(list(units))
    ours = criterion.forward(output, targets.reshape(-1))
    picks = Picks(torch.arange(6), torch.empty((0, 2), dtype=torch.int64))
    theirs = [
        loss.form("torch")(
            [torch.from_numpy(side[granule]) for side in units],
            torch.from_numpy(scores[granule]) if scored else picks,
            settings,
        )
        for granule in range(4)
    ]
    assert ours == pytest.approx(float(torch.stack(theirs).mean()), rel=1e-5)


def granule(number, lengths, groups=(1, 2, 3)):
    side = Side(np.arange(number, number + 24, dtype=np.int32).reshape(3, 8), np.array(lengths))
    return Granule(number=number, groups=np.array(groups), anchor=side)


def test_a_thread_gets_its_granules_whole(spark, make_run):
    from pipelines.engines.bigdl.jvm import provide_classes

    run = make_run(1)
    classes = provide_classes(spark.sparkContext)
    granules = [
        granule(100, [8, 1, 3], groups=[1, 1, 1]),
        granule(200, [2, 2, 2]),
        granule(300, [5, 8, 1], groups=[4, 3, 4]),
    ]
    config = run.config.model_copy(update={"objective": objective("simcse")})
    singles = dataclasses.replace(
        run, config=config, manifest=dataclasses.replace(run.manifest, paired=False)
    )
    batch = classes.Granules.read(packed(7, granules, singles))
    assert batch.size() == 3
    part = batch.slice(2, 2)
    ids, lengths = (part.getInput().apply(number) for number in (1, 2))
    # `simcse` embeds the same texts twice.
    assert [lengths.valueAt(place) for place in range(1, 13)] == [2, 2, 2] * 2 + [5, 8, 1] * 2
    assert ids.nElement() == 2 * 6 + 2 * 14
    assert [ids.valueAt(place) for place in (1, 3, 13)] == [200, 208, 300]
    assert part.getTarget().nElement() == 6
    assert part.getInput().apply(4) == 7
    # Of 3 x 3 similarities, those of two texts of one group.
    assert [list(locations) for locations in part.getInput().apply(5)] == [[], [2, 6]]


@given(
    first=st.integers(0, 50),
    count=st.integers(1, 300),
    tokens=st.integers(1, 100_000),
)
def test_parts_are_the_run(first, count, tokens):
    run = SimpleNamespace(
        plan=SimpleNamespace(granules_per_step=2),
        config=Config(training=TrainingSettings(workers=2)),
        manifest=SimpleNamespace(granule=8, max_length=16),
        sides=("anchor", "positive"),
        first_step=first,
        last_step=first + count,
    )
    parts = list(parts_of(run, tokens))
    assert [step for part in parts for step in range(part.first, part.last)] == list(
        range(first, first + count)
    )
    assert all((part.last - part.first - 1) * 256 <= tokens for part in parts)


@given(st.integers(1, 9), st.integers(1, 6), st.integers(1, 6))
def test_replicas_share_the_granules_of_a_worker_evenly(threads, workers, granules):
    training = TrainingSettings(
        threads=threads, workers=workers, granules_per_step=workers * granules
    )
    count = replicas(training)
    assert 1 <= count <= threads
    assert granules % count == 0


def test_what_dllib_tells():
    first, second = parse_progress("0 0 1.5 0\n1 2.25 3.5 0.75\n")
    assert (first.steps, first.seconds) == (0, 1.5)
    assert (second.steps, second.loss, second.seconds, second.computing) == (1, 2.25, 3.5, 0.75)


def test_class_paths_are_added_to_what_is_there():
    conf = jars.class_paths({"spark.executor.extraClassPath": "/mine.jar"})
    assert conf["spark.executor.extraClassPath"].startswith("/mine.jar:")
    assert "bigdl-dllib" in conf["spark.driver.extraClassPath"]
    assert jars.class_paths(conf) == {}


def test_executors_log_where_spark_has_them_log(spark):
    options = "spark.executor.extraJavaOptions"
    assert jars.class_paths({options: "-Xint"})[options].startswith("-Xint -Dlog4j2.config")
    own = {options: "-Dlog4j2.configurationFile=mine.properties"}
    assert options not in jars.class_paths(own)
    temporary = spark._jvm.java.lang.System.getProperty("java.io.tmpdir")
    # The file that dllib's jar names.
    stray = Path(temporary, "${sys:logFilename}")
    before = stray.stat().st_mtime_ns if stray.exists() else None
    assert spark.range(4).repartition(2).count() == 4
    assert (stray.stat().st_mtime_ns if stray.exists() else None) == before


@pytest.mark.parametrize(
    ("conf", "on_driver", "key"),
    [
        ({}, False, "spark.driver.extraClassPath"),
        ({"spark.master": "yarn"}, True, "spark.executor.extraClassPath"),
    ],
)
def test_a_session_without_the_jars_is_refused(conf, on_driver, key):
    with pytest.raises(EngineUnavailable, match=f"^{key}: .*bigdl-dllib"):
        jars.check_class_paths(conf, on_driver=on_driver)
    jars.check_class_paths({"spark.master": "local[2]"}, on_driver=True)
    jars.check_class_paths({"spark.jars": "a,hdfs:/bigdl-dllib.jar"}, on_driver=True)


def test_folders_on_the_class_path_are_looked_into_where_they_are_here(tmp_path):
    conf = {"spark.executor.extraClassPath": f"/mine.jar:{tmp_path}/*"}
    with pytest.raises(EngineUnavailable, match=r"spark\.executor\.extraClassPath"):
        jars.check_class_paths(conf, on_driver=True)
    (tmp_path / "bigdl-dllib-spark.jar").touch()
    jars.check_class_paths(conf, on_driver=True)
    jars.check_class_paths({"spark.executor.extraClassPath": "/nowhere/here/*"}, on_driver=True)


MINILM = BertSpec(vocabulary=30522, layers=6, hidden=384, heads=12, intermediate=1536)


def test_memory_that_does_not_suffice_is_refused():
    needed = memory.driver_mb(MINILM)
    memory.check_heap("spark.driver.memory", needed, needed)
    with pytest.raises(EngineUnavailable, match=rf"^spark\.driver\.memory: .* least {needed}m"):
        memory.check_heap("spark.driver.memory", needed, needed - 1)


def test_memory_grows_with_all_that_takes_it():
    shape = memory.Shape(spec=MINILM, workers=2, replicas=1, texts=128, tokens=64)
    least = memory.executor_mb(shape)
    for key, value in {"replicas": 2, "texts": 256, "tokens": 128, "workers": 1}.items():
        assert memory.executor_mb(dataclasses.replace(shape, **{key: value})) > least, key


def test_a_session_that_is_too_small_is_refused_before_anything_is_written(spark, prepared):
    config = small_config(prepared, engine="bigdl", framework="bigdl")
    encoder = config.encoder.model_copy(update={"hidden": 2048, "intermediate": 2048})
    with pytest.raises(EngineUnavailable, match=r"^spark\.executor\.memory: .* at least \d+m"):
        load_engine("bigdl").check(spark, config.model_copy(update={"encoder": encoder}))


IN_ONE_PROCESS = """
import sys
import pipelines
from pipelines.settings import load as config
from pipelines.spark.session import stopped_at_the_end
with stopped_at_the_end():
    pipelines.train(config.load(None, sys.argv[1:]))
"""


@pytest.mark.matrix
def test_it_trains_in_a_session_of_its_own_in_one_process(prepared, tmp_path):
    settings = {
        "prepared.folder": prepared,
        "run.folder": tmp_path / "run",
        "spark.master": "local[2]",
        "tokens.max_length": 32,
        "encoder.start": "random",
        "encoder.layers": 1,
        "encoder.hidden": 32,
        "encoder.heads": 2,
        "training.engine": "bigdl",
        "training.framework": "bigdl",
        "training.granules_per_step": 2,
        "training.max_steps": 3,
    }
    arguments = [f"{key}={value}" for key, value in settings.items()]
    done = subprocess.run(
        [sys.executable, "-c", IN_ONE_PROCESS, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"step 3/3  loss \d", done.stdout + done.stderr)
    assert (tmp_path / "run" / "model" / "modules.json").is_file()


@pytest.mark.matrix
def test_an_executor_that_is_stopped_ends_the_run(spark, make_run):
    """Spark itself waits two minutes and more for it."""
    run = make_run(ENDLESS, workers=2, framework="bigdl", stall_seconds=STALL_SECONDS)
    stopped = []

    def stop_once(line):
        if line["step"] == 6 and not stopped:
            stopped.extend((executors_process(spark, 1), time.monotonic()))
            os.kill(stopped[0], signal.SIGSTOP)

    named = rf"rank 1, host {re.escape(socket.gethostname())}, lane 1: nothing was heard of it for"
    try:
        with pytest.raises(WorkerLostError, match=named):
            trained(spark, run, stop_once)
        assert time.monotonic() - stopped[1] < PROMPT_SECONDS
    finally:
        os.kill(stopped[0], signal.SIGKILL)
    assert spark.range(3).count() == 3, "the session lives on"
