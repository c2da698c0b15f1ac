"""What stands for a SparkContext in sessions of Spark Connect, without such a session."""

from __future__ import annotations

import threading
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from pyspark.errors import PySparkException

from pipelines.errors import InputError, PipelineError
from pipelines.settings import Config
from pipelines.spark import capacity as sharing
from pipelines.spark import jobs as job_timeout
from pipelines.spark.capacity import OperationTasks, conf_value, shared_value, task_threads
from pipelines.spark.errors import spark_cause
from pipelines.spark.jobs import run_with_timeout
from pipelines.spark.session import spark_session
from pipelines.spark.stage_resources import resources_in
from pipelines.spark.tasks import slices


@pytest.fixture
def connected(monkeypatch):
    """Has the process be a client of Spark Connect, without a server."""
    monkeypatch.setenv("SPARK_REMOTE", "sc://nowhere")


class Reticent:
    """The conf of a session that knows some keys and refuses to tell others."""

    def __init__(self, **known: str) -> None:
        self._known = known

    def get(self, key: str, default: str | None = None) -> str | None:
        if key == "spark.secret":
            raise PySparkException("[CONFIG_NOT_AVAILABLE] spark.secret")
        return self._known.get(key, default)


def test_a_job_that_needs_a_context_is_refused(connected):
    with pytest.raises(InputError, match=r"^spark\.master: this is a Spark Connect session \("):
        spark_session(Config())


@pytest.mark.parametrize(
    "error",
    [ModuleNotFoundError("No module named 'grpc_status'"), PySparkException("[NO] It is\noff")],
)
def test_a_server_that_does_not_answer_is_told_in_one_line(connected, monkeypatch, error):
    def fails(_):
        raise error

    monkeypatch.setattr("pyspark.sql.SparkSession.Builder.getOrCreate", fails)
    with pytest.raises(
        InputError, match=r"^spark\.master: Spark Connect gives no session \("
    ) as told:
        spark_session(Config(), needs_context=False)
    assert "\n" not in str(told.value)


def test_keys_that_a_session_does_not_tell_have_their_defaults(connected, monkeypatch):
    session = SimpleNamespace(conf=Reticent(**{"spark.task.cpus": "3"}))
    assert task_threads(session) == 3
    assert conf_value(session, "spark.secret", "1") == "1"
    monkeypatch.delenv("SPARK_REMOTE")
    with pytest.raises(PySparkException, match="CONFIG_NOT_AVAILABLE"):
        conf_value(session, "spark.secret", "1")


def test_a_stage_is_compared_with_what_a_session_tells(connected):
    stages = Config().stages.model_copy(
        update={"embed": {"spark.task.cpus": "1", "spark.sql.x": "2", "spark.secret": "3"}}
    )
    session = SimpleNamespace(conf=Reticent(**{"spark.sql.x": "2"}))
    found = resources_in(session, Config().model_copy(update={"stages": stages}), "embed")
    assert (found.tasks, found.others) == ((), ("spark.secret",))


def test_tasks_of_operations_are_counted_until_they_end():
    tasks = OperationTasks()
    stages = [
        SimpleNamespace(num_tasks=4, num_completed_tasks=4),
        SimpleNamespace(num_tasks=6, num_completed_tasks=1),
    ]
    tasks(stages=stages, inflight_tasks=2, operation_id="a", done=False)
    tasks(stages=stages[1:], inflight_tasks=2, operation_id="b", done=False)
    assert tasks.counts() == (6, 16)
    tasks(stages=stages, inflight_tasks=0, operation_id="a", done=True)
    tasks(stages=None, inflight_tasks=0, operation_id="c", done=True)
    assert tasks.counts() == (1, 6)


class Tagged:
    """A session that notes the tags of jobs, and ends one whose tag is interrupted."""

    def __init__(self) -> None:
        self.tags: list[str] = []
        self.ended: list[str] = []
        self.called_off = threading.Event()

    def addTag(self, tag: str) -> None:  # noqa: N802 - PySpark's name
        self.tags.append(tag)

    def interruptTag(self, tag: str) -> None:  # noqa: N802 - PySpark's name
        self.ended.append(tag)
        self.called_off.set()


@pytest.mark.slow
def test_a_job_has_a_tag_of_its_own_by_which_it_is_called_off(connected, monkeypatch):
    """Spark 3.5 says nothing of its tasks, so that the longer limit holds."""
    monkeypatch.setattr(job_timeout, "STALL_SECONDS", 0.0)
    monkeypatch.setattr(job_timeout, "BLIND_SECONDS", 2.0)
    session = Tagged()
    began = time.monotonic()
    with pytest.raises(
        PipelineError, match=r"^a, b was cancelled: its tasks wrote nothing for 2 s"
    ):
        run_with_timeout(session, "a, b", partial(session.called_off.wait, 60))
    assert 2 <= time.monotonic() - began < 50
    (tag,) = session.tags
    assert tag.startswith("a  b-")
    assert session.ended == [tag]


def test_what_functions_bring_along_is_bounded(connected, monkeypatch):
    monkeypatch.setattr(sharing, "MOST_BYTES", 1 << 20)
    few, many = np.zeros(1 << 16, np.float32), np.zeros(1 << 19, np.float32)
    with shared_value(None, few) as shared:
        assert shared.value is few
    told = r"^spark\.master: tasks need 2 MiB, and a Spark Connect session cannot send as much\. "
    with pytest.raises(InputError, match=told), shared_value(None, many):
        pass


@pytest.mark.parametrize(
    ("values", "most", "lengths"), [(7, 3, [2, 2, 3]), (2, 9, [1, 1]), (0, 4, [])]
)
def test_slices_hold_all_values_in_their_order(values, most, lengths):
    found = slices(range(values), most)
    assert [len(one) for one in found] == lengths
    assert [value for one in found for value in one] == list(range(values))


def test_the_cause_is_told_without_the_stack_of_the_server():
    error = PySparkException(
        "[TABLE_NOT_FOUND] There is no `a`.\n\nJVM stacktrace:\norg.apache.spark.SparkException\n"
    )
    assert spark_cause(error) == "[TABLE_NOT_FOUND] There is no `a`."
