"""What errors of dllib's jobs mean."""

import pytest

from pipelines.engines.bigdl.progress import WorkerLocations, too_long
from pipelines.errors import EngineError, WorkerLostError
from pipelines.settings import TrainingSettings

LOST = "Lost task 1.3 in stage 7.0 (TID 20) (10.0.0.9 executor 4): "


@pytest.fixture
def workers() -> WorkerLocations:
    training = TrainingSettings(workers=2, granules_per_step=4)
    known = ["10.0.0.1:70", "10.0.0.2:71"]
    return WorkerLocations(None, None, training, None, lambda: ["10.0.0.2 node2"], known=known)


@pytest.mark.parametrize(
    "cause",
    [
        "java.lang.IllegalStateException: Please initialize AllReduceParameter first!",
        "AllReduceParameter is not initialized",
        "java.lang.IllegalStateException: worker 1 was lost: its part of the optimiser is gone",
    ],
)
def test_a_task_that_is_made_elsewhere_tells_of_a_lost_worker(workers, cause):
    error = workers.error(RuntimeError(LOST + cause))
    assert isinstance(error, WorkerLostError)
    assert str(error).startswith("engine bigdl, rank 1, host node2, lane 2: its executor is gone")


def test_any_other_failure_of_a_task_is_no_loss(workers):
    error = workers.error(RuntimeError(LOST + "java.lang.ArithmeticException: / by zero"))
    assert type(error) is EngineError
    assert str(error).startswith("engine bigdl, rank 1, host 10.0.0.9, lane 2: ")


def test_a_host_is_called_by_its_name_once_it_is_known(workers):
    assert workers.place(1) == {"rank": 1, "host": "node2", "lane": 2}
    assert workers.place(0) == {"rank": 0, "host": "10.0.0.1", "lane": 0}


def test_an_executor_that_is_silent_is_lost_and_one_that_pauses_is_not():
    lines = "10.0.0.1:70 22.6\n10.0.0.2:71 31.5\n"
    assert too_long(lines, awake=600.0, most_seconds=30.0) == {"10.0.0.2:71": 31.5}
    assert too_long("", awake=600.0, most_seconds=30.0) == {}


def test_a_driver_that_was_suspended_has_heard_nothing(workers):
    assert too_long("10.0.0.2:71 900.0\n", awake=3.0, most_seconds=30.0) == {}
