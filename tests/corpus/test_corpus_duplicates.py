"""Shingles and bands against their definitions, and near duplicates found among texts."""

import math
import random
import unicodedata
from functools import cache
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.corpus.dedup import near_duplicates as duplicates
from pipelines.corpus.dedup import near_duplicates as shingles
from pipelines.corpus.dedup.near_duplicates import (
    MAX_HASHES,
    MAX_REFERENCES,
    RECALL,
    SHINGLE,
    Banding,
    band_hashes,
    banding,
    bucket_blocks,
    earlier_pairs,
    near_duplicates,
    near_matches,
    near_pairs,
    normalise,
    reference_pairs,
    shingle_hashes,
    similar_pairs,
    similarities,
)
from pipelines.spark.frames import Scratch

THRESHOLD = 0.8
WORDS = (
    *("river", "stone", "garden", "window", "morning", "letter", "silver", "yellow", "harbour"),
    *("mountain", "carpet", "winter", "engine", "travel", "market", "bottle", "candle", "doctor"),
    *("forest", "island", "jacket", "kitchen", "ladder", "museum", "number", "orange", "pencil"),
)

# Few letters, so that shingles repeat; several scripts, marks, emoji and what has no letters.
ALPHABET = "aAbB  .,1_ßİΣé한국어हि😀❤\ufe0f\u200d\uffff\n\x00"
TEXTS = st.lists(
    st.one_of(st.text(st.sampled_from(ALPHABET), max_size=40), st.text(max_size=40)), max_size=8
)


def plain_normalised(text):
    characters = []
    for character in text:
        kind = unicodedata.category(character)
        mark = kind in ("Mn", "Mc") and character not in map(chr, range(0xFE00, 0xFE10))
        mark = mark and ord(character) < 0x40000
        characters.append(character.lower()[0] if kind[0] in "LN" or mark else " ")
    return " ".join(word for word in "".join(characters).split(" ") if word)


@cache
def plain_shingles(text):
    normalised = plain_normalised(text)
    if len(normalised) <= SHINGLE:
        return frozenset({normalised} - {""})
    return frozenset(normalised[i : i + SHINGLE] for i in range(len(normalised) - SHINGLE + 1))


def plain_similarity(one, other):
    one, other = plain_shingles(one), plain_shingles(other)
    return len(one & other) / len(one | other) if one | other else 0.0


@given(TEXTS)
def test_texts_are_normalised_as_defined(texts):
    assert normalise(texts).strings() == [plain_normalised(text) for text in texts]


@given(TEXTS)
def test_hashes_stand_for_the_shingles(texts):
    hashes, counts = shingle_hashes(normalise(texts))
    assert counts.sum() == len(hashes)
    known = {}
    for text, part in zip(texts, np.split(hashes, np.cumsum(counts)[:-1]), strict=False):
        normalised = plain_normalised(text)
        plain = [normalised[i : i + SHINGLE] for i in range(max(len(normalised) - SHINGLE + 1, 1))]
        for shingle, found in zip(filter(None, plain), part.tolist(), strict=True):
            assert known.setdefault(shingle, found) == found
    assert len(set(known.values())) == len(known)


@given(TEXTS, TEXTS)
def test_similarity_is_that_of_the_sets(left, right):
    pairs = list(zip(left, right, strict=False)) + [(text, text) for text in left]
    left, right = [one for one, _ in pairs], [other for _, other in pairs]
    expected = [plain_similarity(one, other) for one, other in pairs]
    assert similarities(left, right).tolist() == expected


@given(TEXTS)
def test_buckets_depend_on_the_text_alone(texts):
    bands = Banding(3, 2)
    hashes, has_shingles = band_hashes(texts, bands)
    assert has_shingles.tolist() == [bool(plain_shingles(text)) for text in texts]
    alone = [band_hashes([text], bands)[0] for text in texts]
    assert np.array_equal(hashes, np.concatenate([np.empty((0, 3), np.uint64), *alone]))


def test_long_and_many_texts_are_cut_into_chunks(monkeypatch):
    texts = [sentence(random.Random(number)) for number in range(200)]
    other = texts[1:] + texts[:1]
    whole = band_hashes(texts, Banding(8, 4))[0], similarities(texts, other)
    monkeypatch.setattr(shingles, "_CHUNK_CHARACTERS", 100)
    cut = band_hashes(texts, Banding(8, 4))[0], similarities(texts, other)
    assert np.array_equal(whole[0], cut[0])
    assert np.array_equal(whole[1], cut[1])


def test_bands_at_usual_thresholds():
    assert banding(0.9) == Banding(6, 6)
    assert banding(0.8) == Banding(8, 4)
    assert banding(0.7) == Banding(10, 3)
    assert banding(0.5) == Banding(14, 2)
    assert math.isclose(Banding(8, 4).share_meeting(0.8), 0.985, abs_tol=5e-4)


@given(st.floats(0, 1, exclude_min=True))
def test_bands_keep_their_promise(threshold):
    bands = banding(threshold)
    assert bands.bands * bands.rows <= MAX_HASHES
    assert bands.share_meeting(threshold) >= RECALL or bands == Banding(MAX_HASHES, 1)
    assert threshold < 0.1 or bands.share_meeting(threshold) >= RECALL


def sentence(generator, words=14):
    return " ".join(generator.choice(WORDS) for _ in range(words)).capitalize() + "."


def edit(text, generator, edits):
    characters = list(text)
    for _ in range(edits):
        characters[generator.randrange(len(characters))] = generator.choice("qxzjk")
    return "".join(characters)


def generated():
    """Sentences, and copies of each that have 1 to 6 characters changed."""
    generator = random.Random(17)
    originals = [sentence(generator) for _ in range(300)]
    copies = [edit(original, generator, edits) for original in originals for edits in (1, 2, 3, 6)]
    return originals, copies


ORIGINALS, COPIES = generated()
TEXTS_IN_ORDER = ORIGINALS + COPIES


@pytest.fixture
def scratch(tmp_path):
    with Scratch(tmp_path / "scratch") as scratch:
        yield scratch


def frame(spark, texts, partitions=3):
    """Keys are ten times the places."""
    rows = [(10 * place, place, text) for place, text in enumerate(texts)]
    made = spark.createDataFrame(rows, "key long, order long, text string")
    return made.repartition(partitions)


@pytest.fixture(scope="module")
def pairs(spark, tmp_path_factory):
    """The near duplicates among the generated texts, as places: a later and an earlier one."""
    with Scratch(tmp_path_factory.mktemp("pairs") / "scratch") as scratch:
        rows = near_pairs(frame(spark, TEXTS_IN_ORDER), THRESHOLD, scratch).collect()
    return {(row["key"] // 10, row["other"] // 10) for row in rows}


def test_planted_duplicates_are_found(pairs):
    alike = {
        place
        for place, copy in enumerate(COPIES, len(ORIGINALS))
        if plain_similarity(ORIGINALS[(place - len(ORIGINALS)) // 4], copy) >= THRESHOLD
    }
    assert len(alike) > 500
    assert len(alike & {place for place, _ in pairs}) >= 0.95 * len(alike)


def test_nothing_below_the_threshold_is_taken_for_a_duplicate(pairs):
    assert len(pairs) > 500
    for later, earlier in pairs:
        assert earlier < later
        assert plain_similarity(TEXTS_IN_ORDER[later], TEXTS_IN_ORDER[earlier]) >= THRESHOLD


def test_partitions_and_row_order_change_nothing(spark, scratch, pairs, monkeypatch):
    monkeypatch.setattr(duplicates, "_ENTRIES_PER_BLOCK", 3000)
    texts = frame(spark, TEXTS_IN_ORDER[::-1], 7)
    place = len(TEXTS_IN_ORDER) - 1 - F.col("order")
    texts = texts.withColumns({"order": place, "key": 10 * place})
    rows = near_duplicates(texts, THRESHOLD, scratch).collect()
    assert sorted(row["key"] // 10 for row in rows) == sorted({place for place, _ in pairs})


def entries_of(texts, order=None):
    """The entries of texts whose keys are their places, in one block."""
    order = range(len(texts)) if order is None else order
    batch = pa.RecordBatch.from_pydict(
        {
            "key": pa.array(range(len(texts)), pa.int64()),
            "order": pa.array(order, pa.int64()),
            "text": pa.array(texts, pa.string()),
        }
    )
    packed = bucket_blocks([batch], banding(THRESHOLD), 1)
    return [batch.select(["entries"]) for batch in packed]


def rows_of(batches):
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def dropped(texts, order=None):
    """The places of the texts that are dropped, found by the executor functions alone."""
    proposed = rows_of(earlier_pairs(entries_of(texts, order)))
    batch = pa.RecordBatch.from_pydict(
        {
            "key": [key for key, _ in proposed],
            "other": [other for _, other in proposed],
            "text": [texts[key] for key, _ in proposed],
            "other_text": [texts[other] for _, other in proposed],
        }
    )
    return {key for key, _ in rows_of(similar_pairs([batch], THRESHOLD))}


def test_the_order_decides_which_stays_and_the_key_breaks_ties():
    texts = ["Quite the same sentence", "quite the same sentence.", "QUITE the same sentence"]
    assert dropped(texts, [2, 1, 3]) == {0, 2}
    assert dropped(texts, [-1, -1, -1]) == {1, 2}


def test_of_a_chain_the_first_stays():
    generator = random.Random(3)
    words = [generator.choice(WORDS) for _ in range(60)]
    chain = [" ".join(words[first : first + 40]) for first in range(0, 20, 3)]
    assert all(plain_similarity(*pair) >= 0.85 for pair in pairwise(chain))
    assert plain_similarity(chain[0], chain[-1]) < 0.6
    assert dropped(chain) == set(range(1, len(chain)))


def test_any_script_and_very_short_texts():
    texts = [
        "서울은 대한민국의 수도이자 최대 도시이다.",
        "서울은, 대한민국의 수도이자 최대 도시이다!",
        "부산은 대한민국의 제2의 도시이다.",
        "😀",
        "😀😀",
        "🎉 !!!",
        "Yes",
        "yes!",
        "No",
        "❤️ Yes ❤️",
        "The cat sat on the mat 😀 and looked out of the window",
        "the cat sat on the mat -- and looked out of the window.",
        "किताब मेज़ पर रखी है",
        "कतब मज पर रख ह",
        "",
        "",
    ]
    assert dropped(texts) == {1, 7, 9, 11}


def test_no_texts_at_all(spark, scratch):
    nothing = frame(spark, ["A text."]).where("false")
    assert near_duplicates(nothing, THRESHOLD, scratch).collect() == []
    reference = kept_reference(nothing, scratch)
    assert near_matches(frame(spark, ["A text."]), reference, THRESHOLD, scratch).collect() == []


def kept_reference(texts, scratch):
    return scratch.keep_counted(texts.selectExpr("xxhash64(text) as key", "text").distinct())


@pytest.mark.parametrize("most_known", [0, 2**19])
def test_only_texts_like_the_reference_match(spark, scratch, monkeypatch, most_known):
    # Executors know the buckets of a reference, or it is shuffled with the texts.
    monkeypatch.setattr(duplicates, "_MOST_KNOWN", most_known)
    known = ORIGINALS[:50]
    reference = [(text,) for text in [*known, *known[:10], "😀", ""]]
    reference = kept_reference(spark.createDataFrame(reference, "text string"), scratch)
    rows = near_matches(frame(spark, [*COPIES, "😀"]), reference, THRESHOLD, scratch).collect()
    found = {row["key"] // 10 for row in rows}
    assert len(found) == len(rows)
    expected = {
        place
        for place, copy in enumerate(COPIES)
        if any(plain_similarity(original, copy) >= THRESHOLD for original in known)
    }
    assert len(expected) > 80
    assert found <= expected
    assert len(found) >= 0.95 * len(expected)


def test_a_bucket_costs_as_much_as_it_has_members():
    # All alike, and all in the same 8 buckets, where all pairs would be 16 million.
    texts = [f"{'-' * (place % 7)}One and the same sentence." for place in range(2000)]
    pairs = rows_of(earlier_pairs(entries_of(texts)))
    assert len(pairs) == 8 * 2 * 1999
    assert set(pairs) == {(key, 0) for key in range(1, 2000)} | {
        (key, key - 1) for key in range(1, 2000)
    }


def test_a_template_costs_as_much_as_it_has_texts():
    texts = [f"{place} is a village in the district of Somewhere." for place in range(2000)]
    pairs = rows_of(earlier_pairs(entries_of(texts)))
    assert 1000 < len(pairs) <= 8 * 2 * 1999


def test_buckets_are_whole_whatever_the_number_of_blocks():
    texts = [f"{place % 5} sentences are the same as others." for place in range(40)]
    batch = pa.RecordBatch.from_pydict(
        {"key": list(range(40)), "order": list(range(40)), "text": texts}
    )
    found = set()
    for packed in bucket_blocks([batch], banding(THRESHOLD), 6):
        for block in packed.to_pylist():
            assert 0 <= block["block"] < 6
            one = pa.RecordBatch.from_pydict({"entries": [block["entries"]]})
            found |= set(rows_of(earlier_pairs([one])))
    assert found == set(rows_of(earlier_pairs(entries_of(texts))))


def test_a_text_is_compared_with_every_text_of_the_reference_up_to_a_bound():
    same = "One and the same sentence."
    few = entries_of([same] * 7, [0, 1, 0, 1, 0, 1, 1])
    expected = {(text, known) for text in (1, 3, 5, 6) for known in (0, 2, 4)}
    assert set(rows_of(reference_pairs(few))) == expected
    many = entries_of([same] * 60, [0] * 50 + [1] * 10)
    assert len(rows_of(reference_pairs(many))) == 8 * 10 * MAX_REFERENCES
    assert rows_of(reference_pairs(entries_of([same] * 5, [1] * 5))) == []


def test_a_pair_at_the_threshold_is_similar():
    # Ten shingles and eight of them.
    batch = pa.RecordBatch.from_pydict(
        {"key": [1], "other": [2], "text": ["abcdefghijklmn"], "other_text": ["abcdefghijkl"]}
    )
    assert rows_of(similar_pairs([batch], 0.8)) == [(1, 2)]
    assert rows_of(similar_pairs([batch], 0.81)) == []
