"""Measures hybrid search: nDCG@10 of vectors, of BM25, and of both fused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from pipelines.errors import InputError
from pipelines.evaluation.base import Form
from pipelines.evaluation.intervals import Observed, mean_intervals
from pipelines.evaluation.retrieval import BM25_ALONE
from pipelines.evaluation.sets import evaluate, named_sets
from pipelines.progress.screen import Screen
from pipelines.settings import Config
from pipelines.settings.evaluation import EvaluationSettings
from pipelines.spark.session import spark_session
from pipelines.tokens.start import start_folder

FIGURE = "ndcg@10"


def measure(config: Config, data: str | None) -> dict[str, Any]:
    """Measures the start of the settings, untrained.

    Args:
        config: With `evaluation.retrieval_sets`.
        data: Not used: the sets are those of the settings.

    Returns:
        ``sets``: by set ``queries``, ``bm25``, ``vectors``, ``hybrid`` (nDCG@10 times 100),
        ``gain`` of the hybrid form over vectors, and the ends of its 95 % ``interval``, None of
        too few queries; and the means of the first three, under ``mean``.

    Raises:
        InputError: There is no set to measure on, or no model to measure.
    """
    asked = config.evaluation.retrieval_sets
    if not asked:
        raise InputError("evaluation.retrieval_sets", "it is empty", "Name sets in BEIR's layout")
    start = start_folder(config)
    if start is None:
        raise InputError("encoder.start", "random weights find nothing", "Name a model")
    section = EvaluationSettings(retrieval=False, geometry=False, retrieval_sets=asked, hybrid=True)
    config = config.model_copy(update={"evaluation": section})
    session = spark_session(config.for_stage("evaluate"), needs_context=False)
    observed: dict[str, Observed] = {}
    figures = evaluate(session, config, start, observed.__setitem__)
    sets = {one.name: _of_set(one.name, figures, observed) for one in named_sets(config)}
    kinds = ("bm25", "vectors", "hybrid")
    mean = {kind: sum(one[kind] for one in sets.values()) / len(sets) for kind in kinds}
    _print(sets)
    return {"sets": sets, "mean": {kind: round(value, 2) for kind, value in mean.items()}}


def _of_set(
    name: str,
    figures: Mapping[str, Mapping[str, float]],
    observed: Mapping[str, Observed],
) -> dict[str, Any]:
    both = Form(hybrid=True).named(name)
    known = mean_intervals(observed[name].observations, observed[both].observations).get(FIGURE)
    return {
        "queries": int(figures[name]["queries"]),
        "bm25": round(figures[both][BM25_ALONE], 2),
        "vectors": round(figures[name][FIGURE], 2),
        "hybrid": round(figures[both][FIGURE], 2),
        "gain": round(figures[both][FIGURE] - figures[name][FIGURE], 2),
        "interval": None if known is None else [round(known.low, 2), round(known.high, 2)],
    }


def _print(sets: Mapping[str, Mapping[str, Any]]) -> None:
    table = Table("set", "queries", "BM25", "vectors", "hybrid", "over vectors", "95 % interval")
    for name, found in sets.items():
        alone = (f"{found[kind]:.2f}" for kind in ("bm25", "vectors", "hybrid"))
        ends = "" if found["interval"] is None else "{:+.2f} to {:+.2f}".format(*found["interval"])
        table.add_row(name, f"{found['queries']:,}", *alone, f"{found['gain']:+.2f}", ends)
    Screen().print(table)
