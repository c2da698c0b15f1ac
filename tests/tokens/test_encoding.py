"""Texts become the ids that the library gives them, chunk by chunk, whatever ends they have."""

import gzip
import json
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_checkpoints import SPECIAL, tokenizer_of
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from pipelines.errors import InputError
from pipelines.models.start import check_tokenizer
from pipelines.settings.load import parse
from pipelines.tokens import encoding as chunks
from pipelines.tokens.encoding import (
    NO_TOKEN,
    ChunkCache,
    ChunkEncoder,
    LibraryEncoder,
    open_encoder,
    shortened,
    split,
)
from pipelines.tokens.examples import words_of_columns
from pipelines.tokens.start import default_start
from pipelines.tokens.vocabulary import (
    learn_bpe,
    learn_unigram,
    load_tokenizer,
    save_subwords,
    special_ends,
)

NASTY = [
    "",
    " ",
    " \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2003\u2028\u2029\u202f\u205f\u3000 ",
    "a\tb\nc\rd\x0be\x0cf\x1cg\x85h\xa0i\u2003j\u2028k\u3000l",
    "con\x00trol \x07\x7f\u200b\ufeff\u00ad\ufffdcharacters \x00 \ufffd",
    "日本語のテキスト と 漢字, 中文。也可以。",
    "한국어 텍스트, 그리고 한국어",
    "Tiếng Việt có dấu; tiếng Việt",
    "naïve Ångström İstanbul ß \u017f \u212a ǅ ΑΣ",
    "e\u0301 \u0301e !\u0301 \u0301! a\u0323\u0307 a\u0307\u0323 \u0301",
    "≠ =\u0338 ﬁne Ⅷ ½ \U0001d54f \U0001f1e9\U0001f1ea 👩‍👩‍👧‍👦",
    "unassigned \u0378 private \ue000 \U000f0000 last \U0010ffff \uffff",
    "[CLS] [SEP][MASK] written [SEP out SEP] [sep]",
    "x" * 100 + " " + "x" * 101 + " " + "é" * 5000,
    "many words " * 700,
    "!!!...\"'`~^|<>{}[]()_-+=*&%$#@\\/",
    "don't U.S.A. 3.14 e-mail@example.org https://example.org/?q=1&r=%20",
    "▁ ▁word word▁ wo▁rd",
]
TEXTS = st.one_of(
    st.text(max_size=80),
    st.sampled_from(NASTY),
    st.text(st.sampled_from("aZ é́İ日한,. [\t\n\x00\x0b\x85\xa0\u3000\u200b\ufffd▁"), max_size=40),
    st.lists(st.sampled_from(["[SEP]", "[CLS", "]", "word", " ", ","])).map("".join),
)


BERT = {
    "uncased": {},
    "cased": {"lowercase": False},
    "cased, accents stripped": {"lowercase": False, "strip_accents": True},
    "uncased, accents kept": {"strip_accents": False},
    "no Chinese": {"handle_chinese_chars": False},
    "not cleaned": {"clean_text": False},
}


def bert(**options):
    tokenizer = load_tokenizer(default_start())
    tokenizer.normalizer = normalizers.BertNormalizer(**options)
    return tokenizer


def subwords(folder, learn, **options):
    (words,) = words_of_columns(
        iter([pa.array([Path(json.__file__).read_text(), *NASTY])]), lowercase=True
    )
    counts = dict(zip(*(column.to_pylist() for column in words.columns), strict=True))
    save_subwords(folder, learn(counts, 500), 64, **options)
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    return {
        **{kind: bert(**options) for kind, options in BERT.items()},
        "bpe": subwords(tmp_path_factory.mktemp("bpe"), learn_bpe, lowercase=True),
        "unigram": subwords(tmp_path_factory.mktemp("unigram"), learn_unigram, lowercase=False),
    }


@pytest.fixture(scope="module")
def encoders(tokenizers):
    """They live through all examples, so that they meet chunks that they know."""
    return {
        (kind, max_length): open_encoder(tokenizer, max_length)
        for kind, tokenizer in tokenizers.items()
        for max_length in (8, 24)
    }


KINDS = ("bpe", "unigram", *BERT)


def library_ids(tokenizer, texts, max_length):
    """What the library gives, by its own way of cutting."""
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.enable_truncation(max_length)
    return [None if text is None else tokenizer.encode(text).ids for text in texts]


def ids_of(column):
    return [
        None if value is None else np.frombuffer(value, "<i4").tolist()
        for value in column.to_pylist()
    ]


def assert_same(encoder, tokenizer, texts, max_length):
    encoded = encoder.encode(pa.array(texts, pa.string()))
    encoded.ids.validate(full=True)
    whole = [None if text is None else tokenizer.encode(text).ids for text in texts]
    assert encoded.lengths.tolist() == [min(len(ids or []), max_length) for ids in whole]
    assert encoded.cut.tolist() == [len(ids or []) > max_length for ids in whole]
    assert ids_of(encoded.ids) == [
        ids[: max_length - 1] + ids[-1:] if ids and len(ids) > max_length else ids for ids in whole
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_of_nasty_texts_are_those_of_the_library(tokenizers, kind):
    texts = [*NASTY, None, *NASTY[::-1]]
    for max_length in (8, 24, 512):
        encoder = open_encoder(tokenizers[kind], max_length)
        assert isinstance(encoder, ChunkEncoder)
        found = encoder.encode(pa.array(texts))
        assert ids_of(found.ids) == library_ids(tokenizers[kind], texts, max_length)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100)
@given(texts=st.lists(st.none() | TEXTS, max_size=12), max_length=st.sampled_from([8, 24]))
def test_ids_of_any_text_are_those_of_the_library(tokenizers, encoders, kind, texts, max_length):
    assert_same(encoders[kind, max_length], tokenizers[kind], texts, max_length)


def lines(path, count):
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        long_enough = (line.partition(". ")[0] for line in file if len(line) > 20)
        return list(islice(long_enough, count))


def real_sentences(folder):
    """Real text in seven languages."""
    for language in ("de", "fr", "zh", "ko", "en"):
        table = pq.read_table(folder / f"stsb/stsb-{language}-test.parquet")
        yield from table["sentence1"].to_pylist() + table["sentence2"].to_pylist()
    captions = pq.read_table(folder / "captions/multi30k-translations-train.parquet")
    for language in ("cs", "de", "fr", "en"):
        yield from captions[language][:19_000].to_pylist()
    yield from lines(folder / "raw/kowiki-part-00.txt.gz", 3000)
    yield from lines(folder / "raw/enwiki-part-03.txt.gz", 6000)
    with gzip.open(folder / "raw/viwiki-part-00.txt.gz", "rt", encoding="utf-8") as file:
        for line in file:
            yield from json.loads(line)["text"].split("\n")[:20]


@pytest.mark.slow
def test_ids_of_twenty_thousand_real_sentences_are_those_of_the_library(shared_data):
    texts = list(real_sentences(shared_data))[::5]
    assert len(texts) >= 20_000
    for tokenizer, some in ((bert(), texts), (bert(lowercase=False), texts[::4])):
        expected = LibraryEncoder(tokenizer, 128).encode(pa.array(some))
        found = open_encoder(tokenizer, 128).encode(pa.array(some))
        assert found.ids.equals(expected.ids)
        assert np.array_equal(found.lengths, expected.lengths)
        assert np.array_equal(found.cut, expected.cut)


def test_a_column_is_encoded_slice_by_slice(monkeypatch, tokenizers):
    monkeypatch.setattr(chunks, "SLICE_BYTES", 64)
    texts = [*NASTY, None, None, *NASTY]
    encoder = open_encoder(tokenizers["uncased"], 16)
    assert_same(encoder, tokenizers["uncased"], texts, 16)


def test_a_part_of_a_column_is_read_from_its_own_place(tokenizers):
    whole = pa.array(["one", None, "two words", "[SEP] three", "four"])
    encoder = open_encoder(tokenizers["uncased"], 16)
    for first, last in ((0, 0), (1, 2), (1, 4), (3, 5)):
        found = encoder.encode(whole[first:last])
        expected = library_ids(tokenizers["uncased"], whole[first:last].to_pylist(), 16)
        assert ids_of(found.ids) == expected


@given(st.lists(TEXTS, max_size=8))
def test_chunks_are_the_whole_text_each_one_once(texts):
    found = split(pa.array(texts, pa.string()), lowercase=False)
    distinct = found.distinct.to_pylist()
    assert len(set(distinct)) == len(distinct)
    for text, first, last in zip(texts, found.rows[:-1], found.rows[1:], strict=True):
        assert b"".join(distinct[n] for n in found.numbers[first:last]) == text.encode()


class TestCache:
    @staticmethod
    def lengths(words):
        return [range(len(word)) for word in words]

    def ids(self, cache, words):
        first, count, pool = cache.ragged(pa.array(words, pa.binary()))
        return [pool[a : a + n].tolist() for a, n in zip(first, count, strict=True)]

    def test_a_chunk_is_encoded_once(self):
        asked = []
        cache = ChunkCache(lambda words: asked.extend(words) or self.lengths(words))
        assert self.ids(cache, [b"abc", b"", b"d"]) == [[0, 1, 2], [], [0]]
        assert self.ids(cache, [b"d", b"ab", b"abc"]) == [[0], [0, 1], [0, 1, 2]]
        assert asked == [b"abc", b"", b"d", b"ab"]

    def test_it_begins_anew_when_it_is_full(self):
        asked = []
        cache = ChunkCache(lambda words: asked.extend(words) or self.lengths(words), most_bytes=3)
        for _ in range(2):
            assert self.ids(cache, [b"abc"]) == [[0, 1, 2]]
        assert asked == [b"abc"]
        assert self.ids(cache, [b"d"]) == [[0]]
        assert self.ids(cache, [b"d", b"abc"]) == [[0], [0, 1, 2]]
        assert asked == [b"abc", b"d", b"d", b"abc"]


NO_LAST_TOKEN = TemplateProcessing(
    single="[CLS] $A", pair="[CLS] $A $B", special_tokens=[("[CLS]", 101)]
)
RANDOM_MERGES = models.BPE(
    {"[UNK]": 0, "a": 1, "b": 2, "ab": 3}, [("a", "b")], unk_token="[UNK]", dropout=1.0
)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("normalizer", normalizers.Lowercase()),
        ("normalizer", None),
        ("pre_tokenizer", pre_tokenizers.WhitespaceSplit()),
        ("post_processor", NO_LAST_TOKEN),
        ("model", RANDOM_MERGES),
        (None, AddedToken("écrit dehors", normalized=True)),
    ],
    ids=["lower case alone", "no normaliser", "white space", "no last token", "merges", "token"],
)
def test_other_tokenizers_are_left_to_the_library(part, value):
    tokenizer = bert()
    if part is None:
        tokenizer.add_tokens([value])
    else:
        setattr(tokenizer, part, value)
    encoder = open_encoder(tokenizer, 64)
    assert isinstance(encoder, LibraryEncoder)
    texts = ["ab Écrit, DEHORS!", None, ""]
    expected = [None if text is None else tokenizer.encode(text).ids for text in texts]
    assert ids_of(encoder.encode(pa.array(texts)).ids) == expected


def test_a_token_added_to_the_vocabulary_is_found_in_a_text():
    tokenizer = bert()
    tokenizer.add_tokens([AddedToken("two words", normalized=False)])
    encoder = open_encoder(tokenizer, 16)
    assert isinstance(encoder, ChunkEncoder)
    assert_same(encoder, tokenizer, ["These are two words.", "two", "words two words", None], 16)


ENDED = ["one two three four five six seven eight nine ten", "one", "", None, "</s> one <s> two"]
ENDS = [
    ((), ()),
    (("<s>",), ()),
    ((), ("</s>",)),
    (("<s>",), ("</s>",)),
    (("<s>", "<unk>"), ("</s>", "</s>")),
]


@pytest.mark.parametrize(("before", "after"), ENDS)
def test_ends_are_counted(before, after):
    assert special_ends(tokenizer_of(before, after)) == (len(before), len(after))


@pytest.mark.parametrize("most", [5, 8, 64])
@pytest.mark.parametrize(("before", "after"), ENDS)
def test_texts_are_cut_as_the_library_cuts_them(before, after, most):
    tokenizer = tokenizer_of(before, after)
    found = library_ids(tokenizer, ENDED, most)
    expected = [None if ids is None else ids or [NO_TOKEN] for ids in found]
    texts = pa.array(ENDED, pa.string())
    assert ids_of(open_encoder(tokenizer, most).encode(texts).ids) == expected
    whole = open_encoder(tokenizer, 1000).encode(texts).ids
    assert ids_of(shortened(whole, most, len(after))[0]) == expected


def test_a_vocabulary_without_the_letter_a_is_asked_for_another():
    tokenizer = Tokenizer(models.BPE({"b": 0}, []))
    assert special_ends(tokenizer) == (0, 0)


def test_one_that_knows_no_text_is_refused(tmp_path):
    Tokenizer(models.BPE({}, [])).save(str(tmp_path / "tokenizer.json"))
    config = parse({"encoder": {"start": "random"}, "tokens": {"vocabulary": str(tmp_path)}})
    with pytest.raises(InputError, match=r"^tokens\.vocabulary: .*makes no token of any text"):
        check_tokenizer(config)


@pytest.mark.parametrize("kind", ["bert", "static"])
def test_only_what_leaves_the_ends_out_needs_one_at_either_end(tmp_path, kind):
    tokenizer_of((), ("</s>",)).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pad_token": SPECIAL[1]}))
    encoder = {"start": "random", "kind": kind}
    config = parse({"encoder": encoder, "tokens": {"vocabulary": str(tmp_path)}})
    if kind == "bert":
        assert check_tokenizer(config) == tmp_path
        return
    with pytest.raises(InputError, match=r"^tokens\.vocabulary: .* adds no \[CLS\] or \[SEP\]"):
        check_tokenizer(config)
