"""Waiting for machines, and hearing of those that go; with a context that is told what it has."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace

import pytest

from pipelines.errors import EngineUnavailable
from pipelines.spark.errors import LeavingExecutors
from pipelines.spark.jobs import await_room


def session_on(master: str, executors: int = 0, *, stopped: bool = False) -> SimpleNamespace:
    # The driver is one of those that Spark lists.
    listed = [None] * (executors + 1)
    java = SimpleNamespace(
        isStopped=lambda: stopped,
        statusTracker=lambda: SimpleNamespace(getExecutorInfos=lambda: listed),
    )
    context = SimpleNamespace(master=master, _jsc=SimpleNamespace(sc=lambda: java))
    return SimpleNamespace(sparkContext=context)


def test_executors_that_come_one_after_the_other_are_waited_for():
    coming = itertools.chain([0, 1, 1], itertools.repeat(2))
    began = time.monotonic()
    assert await_room(session_on("yarn"), 2, lambda: next(coming), 60) == 2
    assert time.monotonic() - began < 30


def test_what_does_not_come_is_told_at_the_deadline():
    assert await_room(session_on("spark://host:7077"), 2, lambda: 1, 0.3) == 1


@pytest.mark.parametrize(("master", "executors"), [("local[2]", 0), ("local-cluster[3,1,1024]", 3)])
def test_nothing_is_waited_for_where_nothing_can_come(master, executors):
    began = time.monotonic()
    assert await_room(session_on(master, executors), 9, lambda: 3, 600) == 3
    assert time.monotonic() - began < 30


def test_executors_of_a_local_cluster_that_start_are_waited_for():
    coming = itertools.chain([1], itertools.repeat(3))
    assert await_room(session_on("local-cluster[3, 1, 1024]", 1), 3, lambda: next(coming), 60) == 3


def test_the_last_executor_of_a_local_cluster_that_comes_while_others_are_counted_is_waited_for():
    session = session_on("local-cluster[2,1,1024]", 1)
    listed = session.sparkContext._jsc.sc().statusTracker().getExecutorInfos()

    def count() -> int:
        there = len(listed) - 1
        if there < 2:
            listed.append(None)
        return there

    assert await_room(session, 2, count, 60) == 2


def test_a_session_that_spark_has_ended_is_told_of():
    with pytest.raises(EngineUnavailable, match=r"^spark\.master: Spark has ended the session on"):
        await_room(session_on("yarn", stopped=True), 2, lambda: 0, 60)


class Executors(list):
    """Scala's sequence."""

    def size(self):
        return len(self)

    def apply(self, place):
        return self[place]


def leaving_context(executors, leaving, enabled="true") -> SimpleNamespace:
    def state(executor):
        return SimpleNamespace(isDefined=lambda: executor in leaving)

    scheduler = SimpleNamespace(getExecutorDecommissionState=state)
    java = SimpleNamespace(getExecutorIds=lambda: executors, taskScheduler=lambda: scheduler)
    conf = {"spark.decommission.enabled": enabled}
    return SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: java), getConf=lambda: conf)


def test_each_executor_that_leaves_is_told_of_once(monkeypatch):
    monkeypatch.setattr("pipelines.spark.errors.LOOK_SECONDS", 0.0)
    executors, leaving, told = Executors(["0", "1"]), set(), []
    watch = LeavingExecutors(leaving_context(executors, leaving), told.append)
    watch.look()
    assert told == []
    leaving.add("1")
    watch.look()
    watch.look()
    leaving.add("0")
    watch.look()
    assert told == [f"Spark decommissions executor {number}" for number in (1, 0)]


def test_nothing_is_asked_where_spark_decommissions_nothing():
    watch = LeavingExecutors(leaving_context(None, None, enabled="false"), pytest.fail)
    watch.look()
