"""What a stage has of a session that others have not, on executors of two cores."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pipelines.engines.base import load_engine
from pipelines.errors import InputError
from pipelines.settings.load import parse
from pipelines.spark.stage_resources import check_stages, stage_settings

PARTITIONS = "spark.sql.shuffle.partitions"
UNSET = "spark.sql.parquet.mergeSchema"

SESSIONS = """
import json, os, sys
from pipelines.settings.load import parse
from pipelines.spark.jobs import await_slots, ranks_of, task_slots
from pipelines.spark.session import executor_count, spark_session
from pipelines.spark.stage_resources import resource_profile, resources_in

def where(rdd):
    def place(_):
        import os, time
        from pyspark import TaskContext
        # Longer than Spark leaves the Python worker of a task that was cancelled, as those are
        # that waited for executors (`spark.python.task.killTimeout`).
        time.sleep(5)
        # Each executor has a folder of its own.
        yield os.getcwd(), TaskContext.get().cpus()
    return rdd.mapPartitions(place).collect()

def look(spark, train):
    master = "local-cluster[1,2,1024]"
    conf = {"master": master, "executor.cores": "2", "task.cpus": "1", **spark}
    config = parse({"spark": conf, "stages": {"train": train}})
    session = spark_session(config)
    context, resources = session.sparkContext, resources_in(session, config, "train")
    profile = resource_profile(resources)
    again = resource_profile(resources)
    slots = await_slots(session, 1, 120, resources)
    tasks = where(ranks_of(context, slots, profile))
    told = {
        "slots": slots,
        "own": task_slots(context),
        "cpus": [cpus for _, cpus in tasks],
        "once": profile._java_resource_profile.id() == again._java_resource_profile.id(),
    }
    if not resources.dynamic:  # Else executors of the session would be started once more.
        others = where(context.parallelize(range(2), 2))
        told["others"] = [cpus for _, cpus in others]
        told["places"] = len({place for place, _ in tasks + others})
    session.stop()
    return told

found = {"tasks": look({}, {"spark.task.cpus": 2})}
dynamic = {
    "dynamicAllocation.enabled": "true",
    "dynamicAllocation.shuffleTracking.enabled": "true",
    "dynamicAllocation.executorIdleTimeout": "1s",
    "executor.memory": "512m",
}
found["executors"] = look(dynamic, {"spark.executor.memory": "600m", "spark.task.cpus": 2})
print("found", json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    """What is found in two sessions that another process starts."""
    command = [sys.executable, "-c", SESSIONS]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("found "))
    return json.loads(line.removeprefix("found "))


def test_tasks_of_a_training_are_larger_than_others_on_the_same_executors(found):
    tasks = found["tasks"]
    assert (tasks["slots"], tasks["own"]) == (1, 2)
    assert (tasks["cpus"], tasks["others"]) == ([2], [1, 1])
    assert tasks["places"] == 1
    assert tasks["once"]


def test_a_training_gets_executors_of_its_own_with_dynamic_allocation(found):
    executors = found["executors"]
    assert executors["slots"] == 1
    assert executors["cpus"] == [2]
    assert executors["once"], "a second profile would start executors again"


def test_what_spark_lets_change_is_set_while_a_stage_runs(spark):
    before = spark.conf.get(PARTITIONS)
    assert spark.conf.get(UNSET, None) is None
    config = parse({"stages": {"prepare": {PARTITIONS: 7, UNSET: True}}})
    with pytest.raises(RuntimeError), stage_settings(spark, config, "prepare"):
        assert (spark.conf.get(PARTITIONS), spark.conf.get(UNSET)) == ("7", "true")
        raise RuntimeError
    assert spark.conf.get(PARTITIONS) == before
    assert spark.conf.get(UNSET, None) is None


@pytest.mark.parametrize(
    ("stage", "key", "value"),
    [
        ("evaluate", "spark.executor.memory", "7g"),
        ("prepare", "spark.task.cpus", "3"),
        ("train", "spark.speculation", "true"),
    ],
)
def test_what_is_fixed_is_refused_before_anything_is_done(spark, stage, key, value):
    config = parse({"stages": {stage: {key: value}}})
    with pytest.raises(InputError, match=rf"^stages\.{stage}\.{key}: .* as a job of its own"):
        check_stages(spark, config, ("prepare", "train", "evaluate"))
    conf = dict(spark.sparkContext.getConf().getAll())
    same = {key: conf[key]} if key in conf else {}
    check_stages(spark, parse({"stages": {stage: same}}), (stage,))


@pytest.mark.parametrize("engine", ["horovod", "torch"])
def test_other_executors_for_a_training_are_refused_before_anything_is_prepared(spark, engine):
    config = parse({"stages": {"train": {"spark.executor.memory": "7g"}}})
    with pytest.raises(InputError, match=r"^stages\.train\.spark\.executor\.memory: .* of its own"):
        load_engine(engine).check_session(spark, config)


def test_an_engine_whose_jobs_are_a_librarys_has_the_sessions_resources(spark):
    config = parse({"stages": {"train": {"spark.task.cpus": 9}}})
    config = config.model_copy(
        update={"training": config.training.model_copy(update={"framework": "bigdl"})}
    )
    with pytest.raises(InputError, match=r"^stages\.train\.spark\.task\.cpus: engine bigdl runs"):
        load_engine("bigdl").check_session(spark, config)
