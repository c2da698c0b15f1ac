"""What the measure of the engines' starts gives."""

import pytest
from corpus_factory import small_config

from pipelines_bench.startup_engines import measure_engines


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["local", "torch"])
def test_each_start_takes_time_of_a_processor(prepared, name):
    (figures,) = measure_engines(small_config(prepared, framework="torch"), [name])
    assert figures["engine"] == name
    for start in ("cold", "warm"):
        # A worker computes with PyTorch, which is imported in no less than this.
        assert figures[f"cpu_seconds_{start}"] > 0.1
        assert figures[f"wall_{start}"] > 0.1
