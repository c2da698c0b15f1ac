"""What a worker of two holds, of an encoder that is not whole in any of them.

That each has its part of the parameters alone is in `test_sharded_steppers.py` too.
"""

import pytest

from pipelines_bench.sharded.command import STEPPERS, measure

pytestmark = pytest.mark.matrix

SMALL = {"hidden": 512, "vocabulary": 500, "steps": 1, "pairs": 1, "tokens": 8, "offload": "disk"}
LAYERS = {"fsdp": (2, 10), "deepspeed": (14, 22)}
"""What more of them take does not depend on the libraries, nor on what is gathered at once; with so
many, the buffers of DeepSpeed are full."""
MOST = {
    "fsdp": {"load": 0.7, "steps": 1.5, "save": 0.9},
    "deepspeed": {"load": 1.8, "steps": 2.0, "save": 2.0},
}
"""Times the weights, by phase. By the formula a worker of two that trains holds 1 and 1.5 times the
weights; it would be 2 and 3 if each held the whole. Seen: 0.5, 1.1 to 1.2, 0.6; 1.5, 1.6, 1.6."""


@pytest.mark.parametrize("engine", STEPPERS)
def test_a_worker_never_holds_the_whole(tmp_path, monkeypatch, engine):
    pytest.importorskip("transformers")
    disk = tmp_path / "disk"
    disk.mkdir()
    monkeypatch.setenv("TMPDIR", str(disk))
    # What is let go is given back at once, and not kept for later by the allocator.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "262144")
    few, more = (
        measure(tmp_path, engine=engine, layers=layers, **SMALL) for layers in LAYERS[engine]
    )
    weights = 4 * (more["parameters"] - few["parameters"])
    assert weights > 90e6
    for phase, most in MOST[engine].items():
        held, before = (
            max(worker[phase]["anonymous"] for worker in found["workers"]) for found in (more, few)
        )
        assert held - before < most * weights, phase
    expected = sum(more["formula"].values()) - sum(few["formula"].values())
    copies = {"fsdp": 1, "deepspeed": 1.5}[engine]
    assert expected == pytest.approx(copies * weights, rel=0.1)
    assert list(disk.iterdir()) == []
