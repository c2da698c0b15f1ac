"""What is looked at first and cheaply never hides a text from what is then done to it."""

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from pipelines.corpus.cleaning import paragraphs, rules
from pipelines.settings import CorpusSettings

CHARACTERS = [chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]


def whites(texts):
    return pc.replace_substring_regex(texts, rules._WHITE, " ")


def test_every_white_character_becomes_a_blank():
    texts = pa.array([f"a{character}b" for character in CHARACTERS])
    assert rules.single_spaces(texts).equals(whites(texts))


def test_no_mark_comes_before_the_first_foreign_character():
    texts = pa.array(CHARACTERS[:0x300])
    assert not pc.any(pc.match_substring_regex(texts, r"\p{M}")).as_py()


@given(st.lists(st.text(alphabet=st.sampled_from("a \t\x0b\xa0\u3000\n"), max_size=6)))
def test_runs_of_white_space_become_one_blank(texts):
    column = pa.array([*texts, None], pa.string())
    expected = pc.utf8_trim(whites(column), characters=" ")
    assert rules.single_spaces(column).equals(expected)


@given(st.lists(st.one_of(st.none(), st.text(alphabet="aB3 \t\x0b_-+\u00e9\u2013", max_size=9))))
def test_symbols_are_counted_alike_in_any_text(texts):
    column = pa.array(texts, pa.string()).slice(1)
    settings = CorpusSettings(max_symbols=0.3)
    expected = pc.greater(rules._symbols_of(column), pc.multiply(pc.utf8_length(column), 0.3))
    found = pc.fill_null(rules._symbols(column, settings), False)
    assert found.equals(pc.fill_null(expected, False))


@given(st.text(alphabet="ab3 _-\n'", max_size=30))
def test_words_of_ascii_are_counted_as_those_of_other_texts(text):
    words = paragraphs._WORD.findall(text)
    spaced = text.encode().translate(paragraphs._ONLY_LETTERS)
    assert [word.decode() for word in spaced.split()] == words
