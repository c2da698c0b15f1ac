"""The sentence that says what came of a training."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    assert found.sentence == "Worse on judged sets: nDCG@10 on users -3.50 (-5.00 to -2.00)."
    assert found.next_step.startswith("Keep the start")


def test_without_questions_held_out_pairs_are_called_a_stand_in() -> None:
    found = verdict(figures(retrieval=("held_out", 9.4, 1.0)))
    assert found.word == "better"
    assert found.is_proxy
    assert "need not be gained there" in found.sentence
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
    assert found.word == "cannot be told"
    assert "where differences show from 2.9 on" in found.sentence
    # 50 queries show 2.86 points; 2.86 squared as many show one.
    assert "about 410 show a difference of one point" in found.next_step


def test_what_was_lost_on_a_guard_is_named() -> None:
    found = verdict(figures(a=("judged", 2.0, 1.0), other=("guard", -3.0, 1.0)))
    assert found.word == "better"
    assert "Lost elsewhere: nDCG@10 on other -3.00 (-4.00 to -2.00)." in found.sentence
    assert found.next_step.startswith("Weigh the loss")
    kept = verdict(figures(a=("judged", 2.0, 1.0), other=("guard", -0.5, 1.0)))
    assert "No guard shows a loss." in kept.sentence
    assert kept.next_step == "It may be promoted."


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
    assert "nDCG@10 on users 60.00 before and 20.00 after" in found.sentence
    assert "No guard shows a loss" not in found.sentence
    assert "may be promoted" not in found.next_step


def test_a_source_that_lost_is_named() -> None:
    found = verdict(
        figures(retrieval=("held_out", 2.0, 1.0), **{"retrieval.b": ("held_out", -5, 1)})
    )
    assert found.word == "mixed"
    assert found.sentence.startswith("Better on some and worse on others of held-out pairs")
    assert "on retrieval.b -5.00" in found.sentence
    assert "need not be gained there" in found.sentence


def test_guards_alone_speak_of_losses() -> None:
    found = verdict(figures(other=("guard", -20.0, 2.0)))
    assert found.word == "worse"
    assert found.sentence == "Lost elsewhere: nDCG@10 on other -20.00 (-22.00 to -18.00)."


def test_how_many_sets_there_are_belongs_to_it() -> None:
    sets = {f"set{place}": ("judged", 0.1, 1.0) for place in range(14)}
    found = verdict(figures(lucky=("judged", 1.5, 1.0), **sets))
    assert found.sentence.startswith("Better on 1 of 15 judged sets: nDCG@10 on lucky")


def test_fewer_questions_than_there_are_is_no_advice() -> None:
    known = figures(a=("judged", 0.2, 0.4))
    known["before"]["a"]["queries"] = known["after"]["a"]["queries"] = 2000
    assert verdict(known).next_step == "Judge more questions, or train longer."


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
        assert "promoted" not in found.next_step
