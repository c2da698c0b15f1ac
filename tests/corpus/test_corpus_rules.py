"""Cleaning holds for any text."""

import unicodedata

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.corpus.rules import clean, clean_lines, compose

texts = st.text(
    alphabet=st.one_of(
        st.characters(codec="utf-8"),
        st.sampled_from(list(" \t\n\r\x00\x0b\x0c\x85\xa0\xad\ufeff\u2028\u3000e\u0301👩\u200d👧")),
    )
)


def cleaned(text):
    return clean(pa.array([text], pa.string())).to_pylist()[0]


@given(texts)
def test_clean_text_is_composed_and_has_single_spaces_and_no_controls(text):
    result = cleaned(text)
    assert not any(unicodedata.category(character) == "Cc" for character in result)
    assert result == " ".join(result.split(" ")).strip()
    assert "  " not in result
    assert result == unicodedata.normalize("NFC", result)


@given(st.lists(st.none() | texts))
def test_composing_is_unicode_s_own_whatever_is_in_the_batch(batch):
    expected = [text and unicodedata.normalize("NFC", text) for text in batch]
    assert compose(pa.array(batch, pa.string())).to_pylist() == expected


@given(texts)
def test_cleaning_twice_changes_nothing(text):
    assert cleaned(cleaned(text)) == cleaned(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  a\t\r\nb\u3000c\u2028d  ", "a b c d"),
        ("nul\x00l and \x1b[0m", "null and [0m"),
        ("e\u0301te\u0301", "été"),
        ("👩\u200d👧 stays", "👩\u200d👧 stays"),
        ("\ufeffsoft\u00adware", "software"),
        ("\x00", ""),
        (None, None),
    ],
)
def test_examples(text, expected):
    assert cleaned(text) == expected


def test_clean_lines_keeps_lines_and_indentation():
    array = pa.array(["a\r\n\tb\rc\x0cd\x00", None])
    assert clean_lines(array).to_pylist() == ["a\n    b\nc\nd", None]
