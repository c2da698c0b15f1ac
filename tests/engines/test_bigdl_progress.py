"""What errors of dllib's jobs mean."""

import pytest

from pipelines.engines.bigdl.progress import WorkerLocations
from pipelines.errors import EngineError, WorkerLostError
from pipelines.settings import TrainingSettings

LOST = "Lost task 1.3 in stage 7.0 (TID 20) (10.0.0.9 executor 4): "


@pytest.fixture
def workers() -> WorkerLocations:
    training = TrainingSettings(workers=2, granules_per_step=4)
    return WorkerLocations(None, None, training, known=["10.0.0.1:70", "10.0.0.2:71"])


@pytest.mark.parametrize(
    "cause",
    [
        "java.lang.IllegalStateException: Please initialize AllReduceParameter first!",
        "java.lang.IllegalStateException: worker 1 was lost: its part of the optimiser is gone",
    ],
)
def test_a_task_that_is_made_elsewhere_tells_of_a_lost_worker(workers, cause):
    error = workers.error(RuntimeError(LOST + cause))
    assert isinstance(error, WorkerLostError)
    assert str(error).startswith(
        "engine bigdl, rank 1, host 10.0.0.2, lane 2: its executor is gone"
    )


def test_any_other_failure_of_a_task_is_no_loss(workers):
    error = workers.error(RuntimeError(LOST + "java.lang.ArithmeticException: / by zero"))
    assert type(error) is EngineError
    assert str(error).startswith("engine bigdl, rank 1, host 10.0.0.9, lane 2: ")
