"""Doubts about a model, as functions of what metrics.json holds."""

import numpy as np
import pytest

from pipelines.evaluation.alarms import (
    alarms,
    choosing_sets,
    doubts,
    embedding_signs,
    signs_of,
)
from pipelines.evaluation.pairs import Compared
from pipelines.evaluation.retrieval import Queries, Retrieved

JUDGED = {"evaluation": "retrieval_sets", "role": "judged"}
GUARD = {"evaluation": "retrieval_sets", "role": "guard"}
VARIANT = {"evaluation": "retrieval_sets", "role": "variant"}
HELD_OUT = {"evaluation": "retrieval", "role": "held_out"}


def names(figures) -> list[str]:
    return [one.name for one in doubts(figures)]


@pytest.mark.parametrize(
    ("change", "model", "raised"),
    [
        (None, {}, False),
        (0.0, {}, True),
        (3e-8, {}, True),
        (1e-4, {}, False),
        # Whose weights are those of the start because that was asked for.
        (0.0, {"start_share": 1.0}, False),
        (0.0, {"start_share": 0.5}, True),
    ],
)
def test_weights_that_did_not_move(change, model, raised) -> None:
    assert names({"model": model, "weight_change": change}) == ["unmoved_weights"] * raised


@pytest.mark.parametrize(
    ("objectives", "largest", "raised"),
    [
        (["in_batch_negatives"], 0.0003, True),
        (["in_batch_negatives"], 0.3, False),
        # The scale of these is not known.
        (["margin_mse"], 0.0003, False),
        (["in_batch_negatives", "margin_mse"], 0.0003, False),
        (["cosent"], 0.0, True),
        (["cosent"], 0.0003, False),
        (["simcse"], float("nan"), False),
        (["simcse"], 0.0003, False),
        (["triplet"], 0.0, True),
        (["one of a later release"], 0.0, False),
        ([], 0.0, False),
    ],
)
def test_a_loss_near_0_from_the_first_step(objectives, largest, raised) -> None:
    training = {"largest_loss": largest, "objectives": objectives, "final_loss": 0.0}
    assert names({"training": training}) == ["easy_negatives"] * raised


def made(kind: str) -> np.ndarray:
    rows = np.random.default_rng(3).normal(size=(40, 16)).astype(np.float32)
    match kind:
        case "one point":
            return np.ones_like(rows)
        case "nearly one point":
            return np.ones_like(rows) + 0.01 * rows
        case "one line":
            return rows[:, :1] * np.ones((1, 16), np.float32)
        case "zeros":
            return np.zeros_like(rows)
        case "no numbers":
            return np.full_like(rows, np.nan)
    return rows


def observed(embeddings: np.ndarray) -> dict[str, Retrieved]:
    ids = np.arange(len(embeddings))
    return {"users": Retrieved(Queries(ids, embeddings, {}), {})}


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        ("one point", True),
        ("nearly one point", True),
        ("one line", True),
        ("zeros", True),
        ("apart", False),
        # The figures are none either, which no promotion lets pass.
        ("no numbers", False),
    ],
)
def test_embeddings_that_have_collapsed(kind, raised) -> None:
    found = signs_of(observed(made(kind)))
    assert names({"signs": {"after": found}}) == ["collapsed_embeddings"] * raised
    # What the start is like is no alarm.
    assert names({"signs": {"before": found}}) == []


def test_signs_are_those_of_all_pairs() -> None:
    rows = made("apart")
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = unit @ unit.T
    apart = cosines[~np.eye(len(rows), dtype=bool)]
    signs = embedding_signs(rows)
    assert signs["mean_cosine"] == pytest.approx(apart.mean(), abs=1e-6)
    assert 10 < signs["effective_rank"] <= 16
    assert signs_of(observed(rows[:4])) == {}


@pytest.mark.parametrize(("uniformity", "raised"), [(0.0, True), (-0.02, True), (-0.3, False)])
def test_where_nothing_is_ranked_uniformity_tells(uniformity, raised) -> None:
    after = {"geometry": {"pairs": 50, "alignment": 0.1, "uniformity": uniformity}}
    assert names({"after": after}) == ["collapsed_embeddings"] * raised
    assert names({"before": after}) == []


@pytest.mark.parametrize(("spread", "raised"), [(0.0, True), (1e-6, True), (0.05, False)])
def test_scores_that_are_constant(spread, raised) -> None:
    cosines = 0.7 + spread * np.linspace(-1, 1, 20)
    found = signs_of({"sts": Compared(np.arange(20), cosines, np.linspace(0, 1, 20))})
    assert names({"signs": {"after": found}}) == ["constant_scores"] * raised
    # Two of a few pairs may have the same cosine.
    assert signs_of({"sts": Compared(np.arange(4), cosines[:4], np.arange(4.0))}) == {}


def overlap(seen: int, items: int = 1500, of: str = "queries") -> dict:
    return {"seen": seen, "items": items, "of": of}


def test_sets_that_the_model_was_trained_on() -> None:
    sets = {"users": JUDGED, "users@64": VARIANT, "other": GUARD, "retrieval": HELD_OUT}
    figures = {"sets": sets, "overlap": {"users": overlap(1200), "other": overlap(0)}}
    (found,) = doubts(figures)
    assert found.name == "seen_in_training"
    assert found.sentence == "1,200 of 1,500 queries of users are among the training pairs."
    assert alarms(figures) == []
    figures["overlap"] = {"other": overlap(1, 30, "pairs")}
    (found,) = doubts(figures)
    assert found.sentence == "1 of 30 pairs of other is among the training pairs."
    assert names({"sets": sets, "overlap": {"users": overlap(0)}}) == []


@pytest.mark.parametrize(
    ("best_by", "sets", "chosen", "raised"),
    [
        (None, {"users": JUDGED}, set(), False),
        ("users.ndcg@10", {"users": JUDGED}, {"users"}, True),
        ("users@64+bm25.mrr@10", {"users": JUDGED, "users@64+bm25": VARIANT}, {"users"}, True),
        ("sts.v2.spearman", {"sts.v2": JUDGED}, {"sts.v2"}, True),
        # Another set judges.
        ("dev.ndcg@10", {"dev": JUDGED, "test": JUDGED}, {"dev"}, False),
        ("retrieval.ndcg@10", {"retrieval": HELD_OUT, "users": JUDGED}, {"retrieval"}, False),
        # All held-out pairs are of one kind.
        (
            "geometry.uniformity",
            {"retrieval": HELD_OUT, "geometry": HELD_OUT},
            {"retrieval", "geometry"},
            True,
        ),
        ("absent.ndcg@10", {"users": JUDGED}, set(), False),
    ],
)
def test_a_set_that_has_chosen_the_checkpoint(best_by, sets, chosen, raised) -> None:
    figures = {"model": {"best_by": best_by}, "sets": sets}
    assert choosing_sets(figures) == chosen
    assert names(figures) == ["chosen_by_judge"] * raised


def test_a_copy_of_a_set_is_no_other_set() -> None:
    figures = {
        "model": {"best_by": "dev.ndcg@10"},
        "sets": {"dev": JUDGED, "copy": JUDGED},
        "measured": {"sets": {"dev": "aa", "copy": "aa"}},
    }
    assert names(figures) == ["chosen_by_judge"]
    figures["measured"]["sets"]["copy"] = "bb"
    assert names(figures) == []
