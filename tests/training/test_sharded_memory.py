"""What a worker of two holds, of an encoder that is not whole in any of them."""

import pytest

from pipelines.benchmarks.sharded.command import STEPPERS, measure

pytestmark = pytest.mark.slow

SMALL = {"hidden": 512, "vocabulary": 500, "steps": 1, "pairs": 1, "tokens": 8, "offload": "disk"}
FEWER, MORE = 2, 10
"""Layers: what more of them take is independent of libraries, and of what is gathered at once."""


def most(found, *phases):
    return max(worker[phase]["anonymous"] for worker in found["workers"] for phase in phases)


@pytest.mark.parametrize("engine", STEPPERS)
def test_a_worker_never_holds_the_whole(tmp_path, monkeypatch, engine):
    pytest.importorskip("transformers")
    disk = tmp_path / "disk"
    disk.mkdir()
    monkeypatch.setenv("TMPDIR", str(disk))
    # What is let go is given back at once, and not kept for later by the allocator.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "262144")
    few = measure(tmp_path, engine=engine, layers=FEWER, **SMALL)
    more = measure(tmp_path, engine=engine, layers=MORE, **SMALL)
    weights = 4 * (more["parameters"] - few["parameters"])
    assert weights > 90e6
    # Half of the weights and of the gradients, and what the allocator keeps. One process that holds
    # all has four times the weights while it trains.
    held = most(more, "load", "steps", "save") - most(few, "load", "steps", "save")
    assert held < 3.5 * weights
    if engine == "fsdp":
        assert most(more, "load") - most(few, "load") < 0.8 * weights
    expected = sum(more["formula"].values()) - sum(few["formula"].values())
    assert expected == pytest.approx(weights, rel=0.1)
    assert list(disk.iterdir()) == []
