"""What every engine promises, on real text."""

import contextlib
import dataclasses
import os
import re
import shutil
import signal
import socket
import time

import numpy as np
import psutil
import pytest
from engine_cases import ENGINE_CASES, LAST_STEPS, course_in_rounds, resumed, trained_here
from lanes_factory import damage_lane
from unauthenticated import tells_nothing, visit

from pipelines.catalog import ENGINES
from pipelines.engines.base import load_engine
from pipelines.errors import EngineError
from pipelines.runs.checkpoint import (
    checkpoint_path,
    checkpoint_steps,
    load_checkpoint,
    save_checkpoint,
)

STEPS = 24
EVERY = 10
# In runs that are to end long before: who waits for a step gives up after STALL_SECONDS alone.
ENDLESS = 100_000
STALL_SECONDS = 1200
# Rates of so long a run would grow for thousands of steps, and its first ones learn nothing.
FROM_THE_FIRST = {"schedule": "constant", "warmup": 0.0}
PROMPT_SECONDS = 600
PLACE = r"replica \d, stage \d, tensor rank \d"


def started() -> set[int]:
    """Processes below this one, zombies and what belongs to Spark itself left out.

    Spark's are its JVMs, their Python daemon and its workers; what a worker has started bears
    the daemon's command line too, but has a daemon for a grandparent's parent.
    """
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            ancestors = [name_of(parent) for parent in (child, *child.parents()[:2])]
            spark = name_of(child) in {"java", "daemon"} and ancestors != ["daemon"] * 3
            if child.status() != psutil.STATUS_ZOMBIE and not spark:
                found.add(child.pid)
        except psutil.NoSuchProcess:
            continue
    return found


def name_of(process: psutil.Process) -> str:
    is_daemon = not {"pyspark.daemon", "pipelines.spark.daemon"}.isdisjoint(process.cmdline())
    return "daemon" if is_daemon else process.name()


def listening() -> set[int]:
    """The ports that this process and what it has started listen at."""
    return {c.laddr.port for c in connections() if c.status == psutil.CONN_LISTEN}


def connections() -> list:
    """Of this process and of all Python processes below it, but for Spark's daemons."""
    found = psutil.Process().net_connections("tcp")
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = child.parent()
            if name_of(child) != "java" and not (parent and name_of(parent) == "java"):
                found += [c._replace(fd=child.pid) for c in child.net_connections("tcp")]
    return found


def doors() -> set:
    """The addresses that this process itself listens at."""
    ours = psutil.Process().net_connections("tcp")
    return {one.laddr for one in ours if one.status == psutil.CONN_LISTEN}


def wait_until_gone(before: set[int], ports: set[int]) -> None:
    """What a run started must be gone soon after it ended."""
    deadline = time.monotonic() + 60
    while started() - before or listening() - ports:
        assert time.monotonic() < deadline, (started() - before, listening() - ports)
        time.sleep(0.2)


def course_of(engine_case, course):
    """The course that the engine's runs are held to, or would be if they were alike."""
    if engine_case.in_rounds:
        return course(STEPS, course_in_rounds, **settings_of(engine_case))
    alone = {"workers": 1, "framework": reference_framework(engine_case)}
    if engine_case.name == "test":
        alone |= engine_case.training
    harder = {name: value for name, value in engine_case.harder.items() if name != "feed"}
    return course(STEPS, **alone, **harder, **encoder_of(engine_case))


def settings_of(engine_case):
    return {"checkpoint_every": EVERY, **engine_case.training, **engine_case.harder}


def reference_framework(engine_case):
    """In which one process makes the same losses."""
    framework = engine_case.training.get("framework", "tensorflow")
    return {"bigdl": "torch"}.get(framework, framework)


def encoder_of(engine_case):
    """Each stage of a pipeline has a layer."""
    stages = engine_case.placement.stages
    return {"layers": stages} if stages > 1 else {}


def compute_with_tensorflow(spark):
    """As an evaluation does, in Spark's Python workers."""

    def compute(batches):
        from pipelines.lean_tensorflow import tensorflow as tf

        assert float(tf.reduce_sum(tf.ones([3]))) == 3
        yield from batches

    assert spark.range(2, numPartitions=2).mapInArrow(compute, "id long").count() == 2


@contextlib.contextmanager
def taken_ports():
    """Somebody else listens where the libraries would: Elephas, TensorFlow, Flask."""
    with contextlib.ExitStack() as stack:
        for port in (4000, 2222, 5000):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_server(("", port)))
        yield


def test_every_mode_of_every_engine_is_under_contract():
    tested = {
        (engine_case.name.partition("-")[0], engine_case.training.get("mode", "sync"))
        for engine_case in ENGINE_CASES
    }
    assert tested >= {(name, mode) for name in ENGINES for mode in load_engine(name).modes}


def test_it_trains_checkpoints_reports_resumes_and_leaves_nothing(
    engine_case, make_run, spark, course
):
    """One whose runs are alike goes on from a state in the middle, which no engine has made."""
    expected = course_of(engine_case, course)
    made, lines, seen = engine_case.make(), [], set()
    run = make_run(STEPS, **settings_of(engine_case))

    def listen(line):
        lines.append(line)
        seen.update(doors())

    if engine_case.repeats:
        save_checkpoint(run.run_folder, expected.middle, 9)
        run = resumed(run, expected.middle.step)
    made.check(spark, run.config)
    before, ports = started(), listening()
    if engine_case.after_evaluation:
        compute_with_tensorflow(spark)
    with taken_ports():
        others = doors()
        outcome = made.train(spark, run, listen)

    steps = STEPS - run.first_step
    assert outcome.steps == steps == len(outcome.losses)
    assert outcome.examples == steps * 2 * run.manifest.granule
    assert np.mean(outcome.losses[-LAST_STEPS:]) < engine_case.falls_to * np.mean(expected.still)
    assert [line["step"] for line in lines] == list(range(run.first_step + 1, STEPS + 1))
    assert [line["loss"] for line in lines] == list(outcome.losses)
    assert all(0 <= line["padding"] < 1 and line["examples_per_second"] > 0 for line in lines)
    assert checkpoint_steps(run.run_folder) == sorted({0, *written(run), run.first_step, STEPS})
    check_times(lines, engine_case)

    assert (outcome.staleness is None) == (run.config.training.mode == "sync")
    if outcome.staleness is not None:
        assert 0 <= outcome.staleness.mean <= outcome.staleness.most
        assert max(line["staleness_max"] for line in lines) == outcome.staleness.most

    if engine_case.repeats:
        np.testing.assert_allclose(outcome.losses, expected.losses[run.first_step :], rtol=1e-3)
        check_state(load_checkpoint(run.run_folder, STEPS), expected)
    # The address of the session.
    assert {address.ip for address in seen - others} <= {"127.0.0.1"}
    assert seen - others or not engine_case.watched
    wait_until_gone(before, ports)


def written(run):
    """The steps before which a run keeps its state on its way."""
    return [step for step in range(run.first_step + 1, STEPS) if run.is_checkpointed(step)]


def check_state(last, expected):
    """Weights and the optimiser's arrays are those of the course."""
    # AdamW moves a weight whose gradient is but rounding as far as any: all of them are compared.
    for found, wanted, begun in (
        (last.weights, expected.last.weights, expected.middle.weights),
        (last.moments, expected.last.moments, expected.middle.moments),
    ):
        assert found.keys() == wanted.keys()
        if wanted:
            apart, moved = distance(found, wanted), distance(begun, wanted)
            assert apart < 1e-3 * moved, (apart, moved)


@pytest.mark.matrix
def test_a_run_out_of_step_goes_on_from_its_checkpoint_in_step(out_of_step, make_run, spark):
    """What it makes then is what one process makes, which goes on from the same state."""
    made = out_of_step.make()
    run = make_run(STEPS, checkpoint_every=EVERY, **out_of_step.training)
    made.train(spark, run, lambda line: None)
    shutil.rmtree(checkpoint_path(run.run_folder, STEPS))
    start = load_checkpoint(run.run_folder, 20).weights
    alone = with_training(run, mode="sync", feed="lanes", workers=1)
    losses, last = trained_here(resumed(alone, 20))
    again = made.train(spark, resumed(with_training(run, max_staleness=0), 20), lambda line: None)
    np.testing.assert_allclose(again.losses, losses, rtol=1e-4)
    found = load_checkpoint(run.run_folder, STEPS).weights
    assert distance(found, last.weights) < 1e-3 * distance(start, last.weights)


def distance(weights, others):
    return np.linalg.norm([np.linalg.norm(weights[name] - others[name]) for name in others])


def check_times(lines, engine_case):
    """Workers tell where their time went, if a loop of ours made their steps."""
    assert all(bool(line["workers"]) == engine_case.watched for line in lines)
    for worker in (worker for line in lines for worker in line["workers"]):
        told = {"rank", "examples", "tokens", "seconds"}
        parts = {name: seconds for name, seconds in worker.items() if name not in told}
        assert min(parts.values()) >= 0
        assert sum(parts.values()) == pytest.approx(worker["seconds"], abs=1e-3)
        assert ("communication" in parts) == engine_case.tells_exchange


def with_training(run, **settings):
    training = run.config.training.model_copy(update=settings)
    return dataclasses.replace(run, config=run.config.model_copy(update={"training": training}))


def test_it_trains_after_an_evaluation_in_the_same_session(spark, make_run, in_executors):
    compute_with_tensorflow(spark)
    run = make_run(2, **in_executors.training)
    assert in_executors.make().train(spark, run, lambda line: None).steps == 2


def test_a_worker_that_fails_is_named(each_launch, make_run, spark, tmp_path):
    run = make_run(STEPS, stall_seconds=STALL_SECONDS, **each_launch.training)
    # The worker that owns the last lane finds another token in it when it gets there.
    lanes = tmp_path / "lanes"
    shutil.copytree(run.lanes_folder, lanes)
    damage_lane(lanes, run.manifest, run.manifest.lanes - 1)
    broken = type(run)(**(vars(run) | {"lanes_folder": lanes}))
    before, ports, began = started(), listening(), time.monotonic()
    with pytest.raises(EngineError) as caught:
        each_launch.make().train(spark, broken, lambda line: None)
    assert time.monotonic() - began < PROMPT_SECONDS
    rank, lane = place_of_the_last_lane(each_launch)
    where = rf"rank {rank}, ({PLACE}, )?host {socket.gethostname()}, lane {lane}: "
    assert re.search(where, str(caught.value))
    damaged = rf"lane-{run.manifest.lanes - 1:03d}/part-00000\.arrow: granule \d+ is damaged: "
    assert re.search(damaged, str(caught.value))
    wait_until_gone(before, ports)
    assert spark.range(3).count() == 3, "the session lives on"


def place_of_the_last_lane(engine_case):
    """Rank and first lane of the worker that reads the last lane, as patterns."""
    if engine_case.placement.is_divided:
        return r"\d", str(engine_case.placement.replicas - 1)
    if engine_case.name.partition("-")[0] in {"test", "local"}:
        return "0", "0"
    if engine_case.training.get("mode", "sync") != "sync":
        return r"\d", "0"
    # Fed by Spark, any worker may have got the partition that reads it.
    return (r"\d", r"\d") if engine_case.training.get("feed") == "spark" else ("1", "1")


def test_an_objective_that_fails_on_an_executor_ends_the_run(each_loop, make_run, spark):
    run = make_run(STEPS, **each_loop.training)
    objective = run.config.objective.model_copy(update={"temperature": 1e-45})
    config = run.config.model_copy(update={"objective": objective})
    before, ports = started(), listening()
    with pytest.raises(EngineError, match=r"rank \d, host .*Lower training\.learning_rate"):
        each_loop.make().train(
            spark, type(run)(**(vars(run) | {"config": config})), lambda line: None
        )
    assert checkpoint_steps(run.run_folder) == [0]
    wait_until_gone(before, ports)


@pytest.mark.matrix
def test_a_last_step_that_leaves_no_numbers_is_not_kept(each_launch, make_run, spark):
    """Its loss, which is computed before the update, is as it should be."""
    run = make_run(1, **(each_launch.training | {"learning_rate": 1e39, "warmup": 0.0}))
    with pytest.raises(EngineError, match=r"Lower training\.learning_rate"):
        each_launch.make().train(spark, run, lambda line: None)
    assert checkpoint_steps(run.run_folder) == [0]


def test_strangers_change_nothing_and_a_worker_that_is_killed_ends_the_run(
    killable, make_run, spark, monitors, course
):
    """Gradients that are never old have asynchronous runs be alike as well."""
    settings = {"stall_seconds": STALL_SECONDS, **FROM_THE_FIRST, **killable.training}
    if not killable.repeats:
        settings["max_staleness"] = 0
    run = make_run(ENDLESS, **settings)
    before, ports, killed = started(), listening(), []
    losses, visited, told = [], set(), []

    def kill_once(line):
        losses.append(line["loss"])
        if len(losses) == 3 and killable.doors:
            there = {c.laddr for c in connections() if c.status == psutil.CONN_LISTEN}
            visited.update(address for address in there if address.port not in ports)
            told.extend(visit(visited))
        if len(losses) >= (STEPS if killable.doors else 3) and not killed:
            workers = monitors[-1]._shared.workers
            # The last of them is a parameter server, where there is one.
            rank = max(workers)
            there = workers[rank].connection.getpeername()[1]
            # The field of the file descriptor holds the process.
            process = next(c.fd for c in connections() if c.laddr.port == there)
            os.kill(process, signal.SIGKILL)
            killed.append(rank)

    began = time.monotonic()
    with pytest.raises(EngineError) as caught:
        killable.make().train(spark, run, kill_once)
    placement = killable.placement
    place = f"{placement.place(killed[0])}, " if placement.is_divided else ""
    where = f"rank {killed[0]}, {place}host .*the worker's process died"
    assert re.search(where, str(caught.value))
    wait_until_gone(before, ports)
    assert time.monotonic() - began < PROMPT_SECONDS
    assert spark.range(3).count() == 3, "the session lives on"
    assert len(visited) == killable.doors
    if killable.doors:
        assert {address.ip for address in visited} == {"127.0.0.1"}
        assert told
        assert all(map(tells_nothing, told)), told
        alone = {"workers": 1, "framework": reference_framework(killable), **FROM_THE_FIRST}
        if killable.name == "test":
            alone |= killable.training
        expected = course(STEPS, **alone).losses
        np.testing.assert_allclose(losses[:STEPS], expected, rtol=1e-3)
