"""The words that BM25 counts, in scripts with and without blanks."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.vectors.bm25 import words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("  ... --- ", []),
        ("The cats' Cat, in 1,024 bytes.", ["the", "cat", "cat", "in", "1", "024", "byte"]),
        ("this is gas", ["thi", "is", "gas"]),
        ("snake_case __init__ kebab-case", ["snake", "case", "init", "kebab", "case"]),
        ("Straße \uff21\uff22\uff23 \ufb01les", ["strasse", "abc", "file"]),
        ("Les années d'été", ["les", "année", "d", "été"]),
        ("हिन्दी की किताबें", ["हिन्दी", "की", "किताबें"]),
        ("東京タワー", ["東", "京", "タ", "ワ", "ー", "東京", "京タ", "タワ", "ワー"]),
        ("ﾄｳｷｮｳ", ["ト", "ウ", "キ", "ョ", "ウ", "トウ", "ウキ", "キョ", "ョウ"]),
        ("猫。犬", ["猫", "犬"]),
        ("iPhone用", ["iphone", "用"]),
        ("서울", ["서", "울", "서울"]),
        ("ไทย", ["ไ", "ท", "ย", "ไท", "ทย"]),
    ],
)
def test_the_words_of_a_text(text, words) -> None:
    assert words_of(text) == words


def test_letters_with_marks_are_the_same_however_they_are_written() -> None:
    for text in ("été", "がぎぐ", "서울"):
        assert words_of(unicodedata.normalize("NFD", text)) == words_of(text)


@given(st.text(), st.text())
def test_texts_that_are_apart_have_the_words_of_both(left, right) -> None:
    assert words_of(f"{left}\n{right}") == words_of(left) + words_of(right)


@given(st.text())
def test_a_word_is_never_blank_and_is_found_by_itself(text) -> None:
    for word in words_of(text):
        assert word.strip()
        assert "_" not in word
