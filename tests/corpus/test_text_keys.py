"""The keys by which texts are the same: those found in Python are those that Spark finds."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipelines.corpus.cleaning.rules import ascii_keys, text_key

TEXTS = [
    "A text.",
    "a TEXT",
    "",
    "  ",
    "...",
    "3 + 4 = 7",
    "caf\u00e9",
    "\u0130stanbul",
    "\U0001f600",
    "\x00 \x7f",
    "tab\tand\nline",
    None,
]


def spark_keys(spark, texts, known=None):
    rows = [*zip(texts, known or [None] * len(texts), strict=True)]
    frame = spark.createDataFrame(rows, "text string, known long")
    found = frame.select(text_key(frame["text"], frame["known"]).alias("key"))
    return [row["key"] for row in found.collect()]


def test_keys_of_ascii_are_those_of_spark_and_others_are_left_to_it(spark):
    known = ascii_keys(pa.array(TEXTS, pa.string())).to_pylist()
    keys = spark_keys(spark, TEXTS)
    is_ascii = [text is not None and text.isascii() for text in TEXTS]
    assert known == [key if ours else None for key, ours in zip(keys, is_ascii, strict=True)]
    assert spark_keys(spark, TEXTS, known) == keys


def test_case_and_signs_do_not_count():
    one, other, third, sign, signs = ascii_keys(
        pa.array(["A text.", "a-TEXT", "b text", "?", "??"])
    ).to_pylist()
    assert one == other != third
    # Without letters a text is its own key.
    assert sign != signs


@given(st.lists(st.one_of(st.none(), st.text(max_size=9)), max_size=9), st.integers(0, 4))
def test_a_slice_has_the_keys_of_its_texts(texts, begin):
    whole = pa.array(texts, pa.string())
    assert ascii_keys(whole[begin:]).to_pylist() == ascii_keys(whole).to_pylist()[begin:]
    alone = [ascii_keys(pa.array([text], pa.string()))[0].as_py() for text in texts]
    assert ascii_keys(whole).to_pylist() == alone
