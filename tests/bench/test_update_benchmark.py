"""What the benchmark changes in a lake is what has to be embedded again."""

import pytest
from embedding_fixtures import small_model
from embedding_rounds import embed_here

from pipelines.settings.load import parse
from pipelines_bench.update import FILES, Measured, _configured, _jobs, _print

__all__ = ["small_model"]


@pytest.mark.slow
def test_a_hundredth_is_embedded_again(small_model, tmp_path, capsys) -> None:
    config = parse({"embedding": {"model": str(small_model), "precision": "fp32"}})
    files = []

    def measured() -> Measured:
        files.append(len(list((tmp_path / "lake").iterdir())))
        embedded = embed_here(_configured(config, tmp_path))
        return Measured(
            rows=0, embedded=embedded, cpu_seconds=2.0, seconds=1.0, log_cpu_seconds=0.5
        )

    jobs = _jobs([f"text {number}" for number in range(400)], tmp_path, measured)
    assert {name: job.embedded for name, job in jobs.items()} == {
        "made": 396,
        "unchanged": 0,
        "appended": 4,
        "rewritten": 4,
    }
    assert files == [FILES, FILES, FILES + 1, FILES]
    _print(jobs)
    assert "100.0 %" in capsys.readouterr().out
