"""What asynchrony costs: figures of evaluation after the same number of examples."""

import pytest

RUNS = [
    ("tensorflowonspark", "async"),
    ("elephas", "sync"),
    ("elephas", "async"),
    ("elephas", "hogwild"),
]


@pytest.mark.matrix
@pytest.mark.parametrize(("engine", "mode"), RUNS)
def test_two_workers_are_as_good_as_one_process(check_quality, engine, mode):
    check_quality(engine, mode)
