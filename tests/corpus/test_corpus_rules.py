"""Cleaning and its rules hold for any text, and keys found in Python are those of Spark."""

import unicodedata

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.corpus.cleaning import prose, rules
from pipelines.corpus.cleaning.rules import (
    TEXT_RULES,
    UNKNOWN,
    ascii_keys,
    clean,
    clean_lines,
    compose,
    identify,
    repeated_share,
    text_key,
    text_reasons,
)
from pipelines.settings import CorpusSettings

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


def reason_of(text, **settings):
    nothing = pa.nulls(1, pa.string())
    sides = [clean(pa.array([text], pa.string()))]
    return text_reasons(nothing, sides, CorpusSettings(**settings)).to_pylist()[0]


@pytest.mark.parametrize(
    ("text", "settings", "reason"),
    [
        (None, {}, "no text"),
        (" \t ", {}, "empty text"),
        ("broken \ufffd text", {}, "not UTF-8"),
        ("1234567890 !!", {}, "no letter in it"),
        ("short", {}, "too short"),
        ("a long text", {"max_characters": 10}, "too long"),
        ("<<--==>> ab cd **", {}, "too many symbols"),
        ("buy it now buy it now buy it now buy it now", {}, "repeats itself"),
        ("buy it now buy it now buy it now", {"max_repeated": 1}, None),
        ("Ceci est une phrase tout à fait française.", {"languages": ["en"]}, "other language"),
        ("Ceci est une phrase tout à fait française.", {"languages": ["en", "fr"]}, None),
        ("한국어 문장은 글자입니다.", {}, None),
        ("A plain sentence.", {}, None),
    ],
)
def test_rules(text, settings, reason):
    assert reason_of(text, **settings) == reason


def test_the_first_rule_and_the_first_reason_count():
    reasons = pa.array([None, "earlier"], pa.string())
    sides = [pa.array(["fine enough text", ""]), pa.array(["", "x"])]
    found = text_reasons(reasons, sides, CorpusSettings())
    assert found.to_pylist() == ["empty text", "earlier"]


@given(st.lists(st.none() | texts, max_size=8))
def test_a_rule_says_something_of_every_text(batch):
    cleaned_batch = clean(pa.array(batch, pa.string()))
    for rule in TEXT_RULES.values():
        assert len(rule(cleaned_batch, CorpusSettings(languages=("en",)))) == len(batch)


@given(st.lists(st.sampled_from("abc"), max_size=12))
def test_repeated_share_is_of_words_in_repeated_triples(words):
    triples = [tuple(words[place : place + 3]) for place in range(len(words) - 2)]
    again = [place for place, triple in enumerate(triples) if triple in triples[:place]]
    covered = {place + step for place in again for step in range(3)}
    share = len(covered) / len(words) if words else 0.0
    assert repeated_share(" ".join(words)) == pytest.approx(share)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The weather was fine on the day that we left the harbour.", "en"),
        ("Das Wetter war schön an dem Tag, als wir den Hafen verließen.", "de"),
        ("우리가 항구를 떠나던 날은 날씨가 좋았다.", "ko"),
        ("Thời tiết rất đẹp vào ngày chúng tôi rời bến cảng.", "vi"),
        ("ok", UNKNOWN),
        ("", UNKNOWN),
        ("12 34", UNKNOWN),
    ],
)
def test_languages(text, language):
    assert identify(text) == language


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
    words = prose._WORD.findall(text)
    spaced = text.encode().translate(prose._ONLY_LETTERS)
    assert [word.decode() for word in spaced.split()] == words


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
