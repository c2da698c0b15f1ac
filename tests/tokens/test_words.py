"""Words are counted as the library splits them, over all parts."""

from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.spark.frames import Scratch
from pipelines.spark.parquet_parts import find_parts
from pipelines.tokens import examples as module
from pipelines.tokens.examples import count_words, words_of_columns

TEXTS = st.lists(
    st.none() | st.text(max_size=40) | st.text(st.sampled_from("aZé 日,\t\x00\u3000"), max_size=30)
)


def merged(batches):
    counts = {}
    for batch in batches:
        for word, count in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            counts[word] = counts.get(word, 0) + count
    return counts


@given(columns=st.lists(TEXTS, max_size=3), lowercase=st.booleans())
def test_words_are_counted_as_the_library_splits_them(plainly_counted, columns, lowercase):
    arrays = (pa.array(column, pa.string()) for column in columns)
    texts = [text for column in columns for text in column]
    found = merged(words_of_columns(arrays, lowercase=lowercase))
    assert found == plainly_counted(texts, lowercase=lowercase)


def test_a_task_that_meets_many_chunks_hands_them_on(monkeypatch, plainly_counted):
    texts = [f"word{index % 70} and word{index % 50}" for index in range(300)]
    monkeypatch.setattr(module, "MAX_CHUNKS", 40)
    columns = (pa.array(texts[first : first + 30]) for first in range(0, 300, 30))
    batches = list(words_of_columns(columns, lowercase=True))
    assert len(batches) > 1
    assert merged(batches) == plainly_counted(texts, lowercase=True)


def test_very_long_words_are_left_out():
    (batch,) = words_of_columns(iter([pa.array(["x" * 100 + " " + "x" * 101])]), lowercase=True)
    assert batch.column("word").to_pylist() == ["x" * 100]


@pytest.fixture
def counted(spark, tmp_path):
    """Counts the words of three parts."""
    texts = [f"{'common ' * 9}word{index % 20} Word{index % 7}" for index in range(90)]
    for part in range(3):
        mine = texts[part::3]
        columns = {"id": range(30), "anchor": mine, "positive": pa.array(mine[:5] + [None] * 25)}
        pq.write_table(pa.table(columns), tmp_path / f"part-{part}.parquet")
    count = partial(count_words, spark, find_parts(tmp_path), lowercase=True)
    both = texts + [text for part in range(3) for text in texts[part::3][:5]]
    return count, both, tmp_path / "scratch"


def test_all_words_are_counted_over_all_parts(counted, plainly_counted):
    count, texts, folder = counted
    with Scratch(folder) as scratch:
        found = count(scratch)
    assert list(found.items()) == list(plainly_counted(texts, lowercase=True).items())


def test_only_the_most_frequent_words_come_to_the_driver(counted, plainly_counted, monkeypatch):
    count, texts, folder = counted
    expected = plainly_counted(texts, lowercase=True)
    for most in (1, 5, 10):
        monkeypatch.setattr(module, "MAX_WORDS", most)
        with Scratch(folder) as scratch:
            found = count(scratch)
        assert 1 <= len(found) <= most
        assert list(found) == list(expected)[: len(found)]
        # Words that occur as often as one another stay together.
        assert min(found.values()) > expected[list(expected)[len(found)]]
