"""What keeps a model out of service though its figures pass, and a first model that lost."""

import json
from pathlib import Path

import pytest
from run_factory import write_run

from pipelines.errors import PromotionRefused
from pipelines.files import storage
from pipelines.promotion.stage import Promotion, promote
from pipelines.settings.load import parse

NDCG = "users.ndcg@10"
JUDGED = {"users": {"evaluation": "retrieval_sets", "role": "judged"}}


@pytest.fixture
def target(tmp_path) -> Path:
    return tmp_path / "served"


def measured_run(folder: Path, before: float, after: float, half: float | None = 1.0, **more):
    """A run whose model was measured beside its start, on a set with an interval unless None."""
    run = write_run(folder, str(after))
    metrics = storage.read_json(run / "metrics.json")
    metrics["measured"]["sets"] = {"users": "the same texts"}
    counts = {"queries": 50, "documents": 90}
    metrics |= {
        "sets": JUDGED,
        "before": {"users": counts | {"ndcg@10": before}},
        "after": {"users": counts | {"ndcg@10": after}},
    }
    if half is not None:
        gain = after - before
        ends = {"low": gain - half, "high": gain + half, "detectable": 1.4 * half}
        metrics["interval"] = {"users": {"ndcg@10": ends}}
    storage.write_json(run / "metrics.json", metrics | more)
    return run


def promoted(target: Path, run: Path, **settings) -> Promotion:
    tree = {"promotion": {"target": str(target), **settings}, "run": {"folder": str(run)}}
    return promote(parse(tree))


def refusal(target: Path, run: Path, **settings) -> str:
    with pytest.raises(PromotionRefused) as error:
        promoted(target, run, **settings)
    recorded = json.loads((run / "promotion.json").read_text())
    assert recorded["promoted"] is False
    assert recorded["refusals"][0] in str(error.value)
    return str(error.value)


def test_a_destroyed_model_is_not_the_first_one(tmp_path, target) -> None:
    run = measured_run(tmp_path / "destroyed", 95.6, 1.1)
    told = refusal(target, run)
    assert told.startswith("promotion.accept: The model is worse on judged sets: nDCG@10 on users ")
    assert "Keep the start" in told
    assert "Tested" not in told
    assert told.endswith("Name worse_than_start there to promote the model all the same.")
    assert not target.exists()
    # Doubts of another kind are no leave for this one.
    refusal(target, run, accept=["seen_in_training"])
    (judgement,) = promoted(target, run, accept=["worse_than_start"]).judgements
    assert (judgement.served, judgement.start) == (None, None)


@pytest.mark.parametrize("half", [None, 1.0])
def test_a_first_model_is_compared_with_its_start_metric_by_metric(tmp_path, target, half) -> None:
    lost = measured_run(tmp_path / "lost", 60.0, 55.0, half)
    if half is None:
        told = refusal(target, lost)
        assert told.startswith("promotion.tolerance: users.ndcg@10 is 55.0000, and the start has")
    assert promoted(target, lost, tolerance={NDCG: 6.0}, accept=["worse_than_start"])


def test_a_guard_counts_for_a_first_model_too(tmp_path, target) -> None:
    run = measured_run(tmp_path / "run", 60.0, 65.0)
    metrics = storage.read_json(run / "metrics.json")
    metrics["sets"]["other"] = {"evaluation": "retrieval_sets", "role": "guard"}
    metrics["measured"]["sets"]["other"] = "other texts"
    for when, value in (("before", 70.0), ("after", 50.0)):
        metrics[when]["other"] = {"queries": 50, "documents": 90, "ndcg@10": value}
    metrics["interval"]["other"] = {"ndcg@10": {"low": -22.0, "high": -18.0, "detectable": 2.0}}
    storage.write_json(run / "metrics.json", metrics)
    told = refusal(target, run)
    assert told == (
        "promotion.tolerance: other.ndcg@10 is 50.0000, and the start has 70.0000 "
        "(the difference is -22.00 to -18.00). The tolerance is 0."
    )
    assert promoted(target, run, tolerance={"other.ndcg@10": 20.0})


@pytest.mark.parametrize(("before", "after"), [(60.0, 62.0), (60.0, 60.0), (60.0, 59.5)])
def test_what_may_be_chance_is_no_reason_against_a_first_model(
    tmp_path, target, before, after
) -> None:
    run = measured_run(tmp_path / "run", before, after)
    (judgement,) = promoted(target, run).judgements
    assert judgement.start == before


def test_better_asks_for_a_gain_of_the_first_model_too(tmp_path, target) -> None:
    told = refusal(target, measured_run(tmp_path / "run", 60.0, 60.5), required="better")
    assert "the start has 60.0000 (the difference is -0.50 to +1.50). It must be better." in told
    assert promoted(target, measured_run(tmp_path / "good", 60.0, 62.5), required="better")


SEEN = {"overlap": {"users": {"seen": 1200, "items": 1500, "of": "queries"}}}


@pytest.mark.parametrize(
    ("name", "recorded", "said"),
    [
        ("seen_in_training", SEEN, "1,200 of 1,500 queries of users are among the training pairs"),
        (
            "chosen_by_judge",
            {"model": {"step": 8, "best_by": NDCG, "value": 64.0}},
            "The checkpoint was chosen by users.ndcg@10 (training.keep_best)",
        ),
        ("unmoved_weights", {"weight_change": 2e-8}, "The weights did not move"),
        (
            "collapsed_embeddings",
            {"signs": {"after": {"users": {"mean_cosine": 0.9999, "effective_rank": 1.1}}}},
            "The embeddings have collapsed: the queries of users have a mean cosine of 0.9999",
        ),
        (
            "easy_negatives",
            {"training": {"largest_loss": 0.0001, "objectives": ["in_batch_negatives"]}},
            "The model had nothing to learn, since all negatives are easy: the loss was 0.0001",
        ),
        (
            "constant_scores",
            {"signs": {"after": {"sts": {"deviation": 1e-7}}}},
            "The scores are constant: the cosines of the pairs of sts have a standard deviation",
        ),
    ],
)
def test_a_doubted_model_is_refused_unless_told(tmp_path, target, name, recorded, said) -> None:
    first = measured_run(tmp_path / "first", 60.0, 61.0)
    assert promoted(target, first)
    run = measured_run(tmp_path / "doubted", 60.0, 65.0, **recorded)
    for folder in (target, tmp_path / "empty"):
        told = refusal(folder, run)
        assert told.startswith(f"promotion.accept: {said}")
        assert told.endswith(f"Name {name} there to promote the model all the same.")
    assert promoted(tmp_path / "empty", run, accept=[name])
    recorded = json.loads((run / "promotion.json").read_text())
    assert [doubt["name"] for doubt in recorded["doubts"]] == [name]


def test_each_doubt_is_named(tmp_path, target) -> None:
    run = measured_run(tmp_path / "run", 60.0, 40.0, **SEEN, weight_change=0.0)
    told = refusal(target, run)
    assert told.endswith(" Nor did seen_in_training, worse_than_start pass.")
    recorded = json.loads((run / "promotion.json").read_text())
    assert len(recorded["refusals"]) == 3
