"""What asynchrony costs: figures of evaluation after the same number of examples."""

import pytest
from corpus_factory import small_config

from pipelines import workflow

STEPS = 120
POINTS = 6
"""Runs that differ by their seed alone are up to two points apart on so small a corpus."""

RUNS = [
    {"engine": "tensorflowonspark", "mode": "async"},
    {"engine": "elephas", "mode": "hogwild"},
    pytest.param({"engine": "elephas", "mode": "sync"}, marks=pytest.mark.matrix),
    pytest.param({"engine": "elephas", "mode": "async"}, marks=pytest.mark.matrix),
]


@pytest.fixture(scope="module")
def reference():
    """The figure of the synchronous reference, once known."""
    return {}


def ndcg(prepared, folder, **training) -> dict[str, float]:
    """nDCG@10 on the held-out pairs before and after training, in points."""
    config = small_config(prepared, max_steps=STEPS, epochs=50, **training)
    config = config.model_copy(
        update={"run": config.run.model_copy(update={"folder": str(folder)})}
    )
    workflow.train(config)
    figures = workflow.evaluate(config)
    return {name: figures[name]["retrieval"]["ndcg@10"] for name in ("before", "after")}


@pytest.mark.parametrize("settings", RUNS, ids=lambda value: "-".join(value.values()))
def test_two_workers_are_as_good_as_one_process(spark, prepared, tmp_path, reference, settings):
    if not reference:
        reference |= ndcg(prepared, tmp_path / "sync", engine="local", workers=1)
    ours = ndcg(prepared, tmp_path / "ours", workers=2, **settings)
    gain = reference["after"] - reference["before"]
    assert gain > 2 * POINTS, "the reference learns more than what runs may differ by"
    assert ours["after"] > reference["after"] - POINTS
