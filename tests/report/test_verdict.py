"""The sentence that says what came of a training."""

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.evaluation.intervals import Observations, mean_intervals
from pipelines.report.verdict import verdict


def figures(**sets):
    """As metrics.json has them: of each set its role, difference, half its interval and queries."""
    found = {"before": {}, "after": {}, "interval": {}, "sets": {}}
    for name, (role, difference, half) in sets.items():
        counts = {"queries": 50, "documents": 900}
        found["before"][name] = counts | {"ndcg@10": 60.0, "mrr@10": 50.0}
        found["after"][name] = counts | {"ndcg@10": 60.0 + difference, "mrr@10": 10.0}
        ends = {"low": difference - half, "high": difference + half, "detectable": 1.43 * half}
        found["interval"][name] = {"ndcg@10": ends, "mrr@10": ends}
        found["sets"][name] = {"evaluation": "retrieval", "role": role}
    return found


def test_questions_decide_whatever_held_out_pairs_say() -> None:
    found = verdict(figures(retrieval=("held_out", 9.4, 1.0), users=("judged", -3.5, 1.5)))
    assert found.word == "worse"
    assert not found.is_proxy
    assert found.sentence == (
        "The model is worse on judged sets: nDCG@10 on users fell by 3.50 (-5.00 to -2.00)."
    )
    assert found.next_step.startswith("Keep the start")


def test_without_questions_held_out_pairs_are_called_a_proxy() -> None:
    found = verdict(figures(retrieval=("held_out", 9.4, 1.0)))
    assert found.word == "better"
    assert found.is_proxy
    assert "a proxy for real queries" in found.sentence
    assert "evaluation.retrieval_sets" in found.next_step


def test_some_better_and_some_worse() -> None:
    found = verdict(
        figures(a=("judged", 0.2, 1.0), b=("judged", 2.0, 1.0), c=("judged", -2.0, 1.0))
    )
    assert found.word == "mixed"
    places = [found.sentence.index(f"on {name} ") for name in "bca"]
    assert places == sorted(places)


def test_what_cannot_be_told_says_what_could_be() -> None:
    found = verdict(figures(a=("judged", 0.2, 2.0)))
    assert found.word == "not significant"
    assert "and only 2.9 or more would show" in found.sentence
    # 50 queries show 2.86 points; 2.86 squared as many show one.
    assert "about 410 show a difference of one point" in found.next_step
    grouped = verdict(with_test(figures(a=("judged", 0.2, 2.0)), "a", p=0.4, groups=9))
    assert "about 410 in 74 groups show a difference of one point" in grouped.next_step


def test_what_was_lost_on_a_guard_is_named() -> None:
    found = verdict(figures(a=("judged", 2.0, 1.0), other=("guard", -3.0, 1.0)))
    assert found.word == "better"
    assert "lost elsewhere: nDCG@10 on other fell by 3.00 (-4.00 to -2.00)." in found.sentence
    assert found.next_step.startswith("Weigh the loss")
    kept = verdict(figures(a=("judged", 2.0, 1.0), other=("guard", -0.5, 1.0)))
    assert "No guard shows a loss." in kept.sentence
    assert kept.next_step == "You may promote it."


@pytest.mark.parametrize("known", [{}, figures()])
def test_nothing_that_decides_gives_no_verdict(known) -> None:
    assert verdict(known) is None


def without_interval(known, name: str, after: float):
    """A set of fewer queries than an interval needs."""
    del known["interval"][name]
    known["after"][name]["ndcg@10"] = after
    return known


def test_a_set_that_is_not_judged_is_named() -> None:
    known = figures(retrieval=("held_out", 5.0, 1.0), users=("judged", 0.0, 1.0))
    # Held-out pairs do not step in for questions that are there.
    assert verdict(without_interval(known, "users", 20.0)) is None
    known = figures(a=("judged", 2.0, 1.0), users=("judged", 0.0, 1.0), other=("guard", 0.0, 1.0))
    known = without_interval(without_interval(known, "users", 20.0), "other", float("nan"))
    found = verdict(known)
    assert "nDCG@10 on users (60.00 before, 20.00 after)" in found.sentence
    assert "No guard shows a loss" not in found.sentence
    assert "may promote" not in found.next_step


def test_a_source_that_lost_is_named() -> None:
    found = verdict(
        figures(retrieval=("held_out", 2.0, 1.0), **{"retrieval.b": ("held_out", -5, 1)})
    )
    assert found.word == "mixed"
    assert found.sentence.startswith("The model is better on 1 and worse on 1 of 2 held-out sets")
    assert "on retrieval.b fell by 5.00" in found.sentence
    assert "a proxy for real queries" in found.sentence


def test_guards_alone_speak_of_losses() -> None:
    found = verdict(figures(other=("guard", -20.0, 2.0)))
    assert found.word == "worse"
    assert found.sentence == (
        "The model lost elsewhere: nDCG@10 on other fell by 20.00 (-22.00 to -18.00)."
    )


def test_how_many_sets_there_are_belongs_to_it() -> None:
    sets = {f"set{place}": ("judged", 0.1, 1.0) for place in range(14)}
    found = verdict(figures(lucky=("judged", 1.5, 1.0), **sets))
    assert found.sentence.startswith("The model is better on 1 of 15 judged sets: nDCG@10 on lucky")


def test_fewer_questions_than_there_are_is_no_advice() -> None:
    known = figures(a=("judged", 0.2, 0.4))
    known["before"]["a"]["queries"] = known["after"]["a"]["queries"] = 2000
    assert verdict(known).next_step == "Judge more queries, or train longer."


def with_test(known, name: str, **told):
    """What the test of a set says, besides its interval."""
    known["interval"][name]["ndcg@10"].update(told)
    return known


def test_six_queries_must_differ_for_a_word() -> None:
    for difference in (2.0, -2.0):
        known = figures(a=("judged", difference, 1.0))
        found = verdict(with_test(known, "a", p=0.0001, differing=5))
        assert found.word == "not significant"
        assert "and only 5 queries differ" in found.sentence
        assert verdict(with_test(known, "a", p=0.0001, differing=6)).word != "not significant"
        grouped = verdict(with_test(known, "a", p=0.0001, differing=5, groups=8))
        assert "and only 5 groups differ" in grouped.sentence


def test_the_test_must_agree_with_the_interval() -> None:
    known = with_test(figures(a=("judged", 2.0, 1.0)), "a", p=0.08, differing=30)
    found = verdict(known)
    assert found.word == "not significant"
    assert "(+1.00 to +3.00), with a p value of 0.08" in found.sentence


def test_one_gain_of_ten_sets_must_be_rarer_than_a_gain_of_one() -> None:
    others = {f"set{place}": ("judged", 0.1, 1.0) for place in range(9)}
    known = with_test(figures(lucky=("judged", 1.5, 1.0), **others), "lucky", p=0.01, differing=30)
    found = verdict(known)
    assert found.word == "not significant"
    assert "with a p value of 0.01, 0.1 after Holm's correction" in found.sentence
    assert "Tested: nDCG@10 on 10 judged sets" in found.tested
    assert "Holm's correction for 10 sets" in found.tested
    assert verdict(with_test(known, "lucky", p=0.004, differing=30)).word == "better"


def measured(differences, groups=None):
    """Verdicts of trainings on ten sets, of the differences of each query.

    Args:
        differences: [trainings, sets, queries].
        groups: [queries], the same in all sets.
    """
    trainings, sets, queries = differences.shape
    # One call for all: each is a figure of its own on the same queries.
    rows = {str(place): row for place, row in enumerate(differences.reshape(-1, queries))}
    items, zero = np.arange(queries), np.zeros(queries)
    before = Observations(items, dict.fromkeys(rows, zero), groups)
    intervals = [*mean_intervals(before, Observations(items, rows, groups)).values()]
    for training in range(trainings):
        known = figures(**{f"set{one}": ("judged", 0.0, 1.0) for one in range(sets)})
        for one, interval in enumerate(intervals[training * sets : (training + 1) * sets]):
            name, difference = f"set{one}", differences[training, one].mean()
            known["after"][name]["ndcg@10"] = 60.0 + difference
            known["interval"][name] = {"ndcg@10": asdict(interval)}
        yield verdict(known)


@pytest.mark.parametrize("grouped", [False, True])
def test_models_without_a_change_are_called_better_in_one_of_twenty_trainings(
    grouped, monkeypatch
) -> None:
    monkeypatch.setattr("pipelines.evaluation.intervals._RESAMPLES", 999)
    random, trainings, queries = np.random.default_rng(3), 250, 60
    groups = np.arange(queries) // 4
    noise = random.normal(0, 10, (trainings, 10, queries))
    # The queries of a group gain and lose together.
    noise += random.normal(0, 20, (trainings, 10, 15))[..., groups]
    if not grouped:
        noise = random.permuted(noise, axis=2) * random.choice([-1, 1], noise.shape)
    words = [found.word for found in measured(noise, groups if grouped else None)]
    share = np.mean([word in ("better", "mixed") for word in words])
    # Three standard errors of so many trainings.
    assert share <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / trainings)


def test_a_change_of_each_query_is_found_on_all_of_ten_sets(monkeypatch) -> None:
    monkeypatch.setattr("pipelines.evaluation.intervals._RESAMPLES", 999)
    gains = np.random.default_rng(4).normal(10, 10, (20, 10, 60))
    assert {found.word for found in measured(gains)} == {"better"}


@pytest.mark.parametrize("queries", [10, 200])
def test_four_changed_queries_give_no_word(queries, monkeypatch) -> None:
    monkeypatch.setattr("pipelines.evaluation.intervals._RESAMPLES", 999)
    changes = np.zeros((20, 1, queries))
    changes[..., :4] = np.random.default_rng(5).uniform(1, 100, (20, 1, 4))
    for sign in (1, -1):
        assert {found.word for found in measured(sign * changes)} == {"not significant"}


def test_a_loss_counts_by_itself_and_says_how_often_chance_gives_one() -> None:
    others = {f"set{place}": ("judged", 0.1, 1.0) for place in range(9)}
    known = with_test(figures(bad=("judged", -1.5, 1.0), **others), "bad", p=0.03, differing=30)
    found = verdict(known)
    assert found.word == "worse"
    assert "on 10 sets without a change, 22 % of trainings show one by chance" in found.sentence
    alone = verdict(with_test(figures(bad=("judged", -1.5, 1.0)), "bad", p=0.03, differing=30))
    assert "without a change" not in alone.sentence


def test_what_was_tested_is_said() -> None:
    known = figures(a=("judged", 2.0, 1.0))
    assert verdict(known).tested == (
        "Tested: nDCG@10 on a (50 queries, 900 documents) by a 95 % interval."
    )
    known = with_test(known, "a", p=0.001, differing=12, groups=23)
    assert verdict(known).tested == (
        "Tested: nDCG@10 on a (50 queries in 23 groups, 900 documents) by a 95 % interval and a "
        "sign-flip test."
    )
    assert str(verdict(known)).endswith(verdict(known).tested)


def test_what_held_out_pairs_lose_is_named_where_questions_gain() -> None:
    found = verdict(figures(a=("judged", 2.0, 1.0), retrieval=("held_out", -3.0, 1.0)))
    assert found.word == "better"
    assert "lost elsewhere: nDCG@10 on retrieval fell by 3.00 (-4.00 to -2.00)." in found.sentence
    assert found.next_step.startswith("Weigh the loss")
    gained = verdict(figures(a=("judged", 2.0, 1.0), retrieval=("held_out", 3.0, 1.0)))
    assert "lost" not in gained.sentence


START = {"model": {"step": 1, "start_share": 1.0}}


def test_a_model_that_is_the_start_is_not_to_be_trained_longer() -> None:
    known = with_test(figures(a=("judged", 0.0, 0.0)), "a", p=1.0, differing=0)
    assert "and no queries differ" in verdict(known).sentence
    found = verdict(known | START)
    assert found.sentence.startswith("Nothing was trained: the encoder has the weights of the")
    assert "longer" not in str(found)
    assert "training.start_share" in found.next_step


def test_words_beside_a_start_that_was_not_trained_may_be_better() -> None:
    kept = {"weight_change": 0.0, "training": {"largest_loss": 0, "objectives": ["simcse"]}} | START
    found = verdict(figures(a=("judged", 2.0, 1.0)) | kept)
    assert (found.next_step, found.is_doubted) == ("You may promote it.", False)
    lost = verdict(figures(a=("judged", -2.0, 1.0)) | kept)
    assert lost.next_step.startswith("Keep the start; set training.start_share below 1")
    weighed = verdict(figures(a=("judged", 2.0, 1.0), b=("guard", -2.0, 1.0)) | kept)
    assert weighed.next_step == "Weigh the loss before promoting it."


@given(
    st.dictionaries(
        st.text("abc", min_size=1),
        st.tuples(
            st.sampled_from(["judged", "held_out", "guard"]),
            st.floats(-50, 50),
            st.floats(0.01, 10),
        ),
        max_size=5,
    )
)
def test_better_is_never_said_where_questions_say_worse(sets) -> None:
    found = verdict(figures(**sets))
    judged = [one for one in sets.values() if one[0] == "judged"]
    worse = any(difference + half < 0 for _, difference, half in judged)
    if found and judged and worse:
        assert found.word in ("worse", "mixed")
        assert "worse" in found.sentence.lower()
        assert "may promote" not in found.next_step


SEEN = {"overlap": {"a": {"seen": 1200, "items": 1500, "of": "queries"}}}
CHOSEN = {"model": {"step": 9, "best_by": "a.ndcg@10", "value": 62.0}}


def test_better_is_not_said_of_questions_that_were_trained_on_without_saying_so() -> None:
    found = verdict(figures(a=("judged", 2.0, 1.0)) | SEEN | CHOSEN)
    assert found.sentence == (
        "The model is better on judged sets: nDCG@10 on a rose by 2.00 (+1.00 to +3.00), but 1,200 "
        "of 1,500 queries of a are among the training pairs, and the checkpoint was chosen by "
        "a.ndcg@10 (training.keep_best)."
    )
    assert found.next_step.startswith("Before promoting it, judge it by queries unseen")
    assert found.is_doubted
    guarded = figures(b=("judged", 2.0, 1.0), a=("guard", 0.0, 1.0)) | SEEN
    guarded["overlap"]["b"] = {"seen": 0, "items": 50, "of": "queries"}
    found = verdict(guarded)
    assert "No guard shows a loss. 1,200 of 1,500 queries of a are among" in found.sentence
    assert found.is_doubted
    # Which no promotion lets pass.
    assert found.next_step.startswith("Before promoting it, judge it by queries unseen")
    lost = verdict(figures(a=("judged", -2.0, 1.0)) | SEEN)
    assert "(-3.00 to -1.00). 1,200 of 1,500 queries of a are among" in lost.sentence


def test_what_has_chosen_the_checkpoint_decides_nothing_where_another_set_does() -> None:
    found = verdict(figures(a=("judged", 5.0, 1.0), b=("judged", 0.2, 1.0)) | CHOSEN)
    assert found.word == "not significant"
    assert "on a " not in found.sentence
    chosen = (
        "The checkpoint was chosen by a.ndcg@10 (training.keep_best), so its set does not count."
    )
    assert chosen in found.sentence
    assert not found.is_doubted


def test_a_set_that_is_too_small_does_not_stand_in_for_the_one_that_chose() -> None:
    known = figures(a=("judged", 5.0, 1.0), b=("judged", 0.2, 1.0)) | CHOSEN
    found = verdict(without_interval(known, "b", 60.2))
    assert found.word == "better"
    assert ", but the checkpoint was chosen by a.ndcg@10" in found.sentence
    assert "No test was possible" in found.sentence
    assert found.is_doubted


def test_what_has_chosen_the_checkpoint_gives_the_others_no_further_chance() -> None:
    known = with_test(figures(a=("judged", 5.0, 1.0), b=("judged", 2.0, 1.0)), "a", p=1.0)
    known = with_test(known, "b", p=0.03)
    assert verdict(known).word == "not significant"
    found = verdict(known | CHOSEN)
    assert (found.word, "Holm" in found.tested) == ("better", False)


def test_that_nobody_has_looked_is_said_of_a_gain() -> None:
    unknown = "It is not known whether a is among the training pairs."
    assert unknown in verdict(figures(a=("judged", 2.0, 1.0))).sentence
    assert unknown not in verdict(figures(a=("judged", -2.0, 1.0))).sentence
    matched = {"overlap": {"a": {"seen": 0, "items": 50, "of": "queries"}}}
    found = verdict(figures(a=("judged", 2.0, 1.0)) | matched)
    assert (unknown in found.sentence, found.is_doubted) == (False, False)


def test_what_was_trained_on_is_said_of_too_few_questions_too() -> None:
    known = without_interval(figures(a=("judged", 2.0, 1.0)), "a", 62.0)
    assert verdict(known) is None
    found = verdict(known | SEEN)
    assert found.sentence == "1,200 of 1,500 queries of a are among the training pairs."
    assert (found.word, found.is_doubted) == ("not significant", True)
    assert found.next_step.startswith("Before promoting it, judge it by queries unseen")


@pytest.mark.parametrize("known", [{}, figures(a=("judged", 2.0, 1.0))])
def test_alarms_come_first(known) -> None:
    found = verdict(known | {"weight_change": 0.0})
    assert str(found).startswith("ALARM: The weights did not move")
    assert found.next_step == "Do not promote it before you know why."
    assert found.is_doubted
