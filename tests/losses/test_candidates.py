"""Which candidates are no negatives, against the rule written out pair by pair."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipelines.lanes.files import SCHEMA, Side, decode
from pipelines.losses.candidates import Candidates, granule_targets, identities
from pipelines.settings.objective import objective

# So few values that most repeat, at both ends of what 64 bits hold.
VALUES = st.sampled_from([-(2**63), -1, 0, 2**62, 2**62 + 1, 2**63 - 1])


@st.composite
def examples(draw):
    """Identities of some examples of pairs, triplets or single texts."""
    sides = draw(st.sampled_from([2, 3, 5]))
    rows = draw(st.lists(st.tuples(*[VALUES] * (1 + sides)), min_size=1, max_size=9))
    array = np.array(rows, np.int64)
    return array[:, [0, 1, 1]] if draw(st.booleans()) else array


def excluded_one_by_one(everyone, first, last, anchors):
    """The rule, for one anchor and one candidate after the other."""
    sides = [*range(2, everyone.shape[1]), *([1] if anchors else [])]
    candidates = [
        (example, side, row[side]) for side in sides for example, row in enumerate(everyone)
    ]
    found = []
    for anchor in range(first, last):
        group, own, positive = everyone[anchor, :3]
        for number, (example, side, key) in enumerate(candidates):
            if example == anchor and side in (1, 2):
                continue
            of_the_group = example != anchor and everyone[example, 0] == group
            if of_the_group or key in (own, positive):
                found.append([anchor - first, number])
    return np.array(found, np.int64).reshape(-1, 2)


@given(examples(), st.booleans(), st.data())
def test_what_an_anchor_does_not_see(everyone, anchors, data):
    last = data.draw(st.integers(0, len(everyone)))
    first = data.draw(st.integers(0, last))
    candidates = Candidates(everyone, anchors=anchors)
    assert candidates.count == len(everyone) * (everyone.shape[1] - 2 + anchors)
    picks = candidates.picks(first, last)
    np.testing.assert_array_equal(picks.own, np.arange(first, last))
    expected = excluded_one_by_one(everyone, first, last, anchors)
    np.testing.assert_array_equal(picks.excluded, expected)


def granule_of(groups, **sides):
    """A granule as a reader makes it of a record batch; texts are lists of token ids."""
    count = len(groups)
    columns = {name: [None] * count for name in SCHEMA.names} | {"id": range(count)}
    columns |= {"group": groups} | {
        name: [np.array(ids, "<i4").tobytes() for ids in texts] for name, texts in sides.items()
    }
    if "negative" in columns:
        columns["negatives"] = [[text] for text in columns.pop("negative")]
    arrays = [pa.array(columns[field.name], field.type) for field in SCHEMA]
    return decode(pa.record_batch(arrays, schema=SCHEMA), 0)


def excluded(granule, name="in_batch_negatives", sides=("anchor", "positive")):
    return granule_targets(objective(name), granule, sides).excluded.tolist()


def test_two_questions_with_one_answer_are_no_negatives_of_one_another():
    granule = granule_of(
        [1, 2, 3], anchor=[[1, 5], [1, 6], [1, 7]], positive=[[8, 9], [8, 9], [8, 9, 9]]
    )
    assert excluded(granule) == [[0, 1], [1, 0]]


def test_a_hard_negative_that_is_anothers_positive():
    granule = granule_of(
        [1, 2],
        anchor=[[1], [2]],
        positive=[[3], [4]],
        negative=[[4], [2]],
    )
    sides = ("anchor", "positive", "negative_0")
    # The second's positive is the first's hard negative, which the second must not push away;
    # its own hard negative is itself.
    assert excluded(granule, sides=sides) == [[1, 2], [1, 3]]


def test_a_group_protects_all_texts_but_the_own_hard_negative():
    granule = granule_of([7, 7], anchor=[[1], [2]], positive=[[3], [4]], negative=[[5], [6]])
    sides = ("anchor", "positive", "negative_0")
    assert excluded(granule, sides=sides) == [[0, 1], [0, 3], [1, 0], [1, 2]]


def test_simcse_of_equal_texts():
    granule = granule_of([1, 2, 3], anchor=[[5, 6], [5, 6], [5, 6, 0]])
    assert excluded(granule, "simcse", ("anchor", "anchor")) == [[0, 1], [1, 0]]


def test_a_text_is_known_by_its_tokens_whatever_the_padding():
    ids = np.array([[3, 4, 0, 0], [3, 4, 9, 9], [3, 4, 0, 0]], np.int32)
    narrow, wide = (
        Side(table, np.array([2, 2, 3], np.int32))
        for table in (ids, np.pad(ids, [(0, 0), (0, 12)]))
    )
    assert narrow.keys.dtype == np.int64
    assert narrow.keys[0] == narrow.keys[1] != narrow.keys[2]
    np.testing.assert_array_equal(narrow.keys, wide.keys)


def test_examples_of_several_granules_are_told_apart():
    granules = [granule_of([2**62 + n], anchor=[[n]], positive=[[9]]) for n in range(2)]
    rows = identities(granules, ("anchor", "positive"))
    assert rows.dtype == np.int64
    assert (rows[0] == rows[1]).tolist() == [False, False, True]


def test_time_and_memory_follow_from_the_pairs_that_are_left_out():
    """A step of 32,768 pairs has 2**30 similarities; none of them is looked at here."""
    count = 2**15
    everyone = np.random.default_rng(1).permutation(3 * count).reshape(count, 3)
    everyone[-1, 2] = everyone[0, 2]
    candidates = Candidates(everyone)
    picks = candidates.picks(0, count)
    assert candidates.count == count
    assert picks.excluded.tolist() == [[0, count - 1], [count - 1, 0]]
