"""Tokenizers with none, one or two special tokens at either end of a text."""

import json

import numpy as np
import pyarrow as pa
import pytest
from tiny_checkpoints import SPECIAL, tokenizer_of
from tokenizers import Tokenizer, models

from pipelines.errors import InputError
from pipelines.models.start import check_tokenizer
from pipelines.settings.load import parse
from pipelines.tokens.encoding import NO_TOKEN, open_encoder, shortened, special_ends

TEXTS = ["one two three four five six seven eight nine ten", "one", "", None, "</s> one <s> two"]
ENDS = [
    ((), ()),
    (("<s>",), ()),
    ((), ("</s>",)),
    (("<s>",), ("</s>",)),
    (("<s>", "<unk>"), ("</s>", "</s>")),
]


def ids_of(column):
    return [
        None if value is None else np.frombuffer(value, "<i4").tolist()
        for value in column.to_pylist()
    ]


@pytest.mark.parametrize(("before", "after"), ENDS)
def test_they_are_counted(before, after):
    assert special_ends(tokenizer_of(before, after)) == (len(before), len(after))


@pytest.mark.parametrize("most", [5, 8, 64])
@pytest.mark.parametrize(("before", "after"), ENDS)
def test_texts_are_cut_as_the_library_cuts_them(before, after, most):
    tokenizer = tokenizer_of(before, after)
    cutting = Tokenizer.from_str(tokenizer.to_str())
    cutting.enable_truncation(most)
    expected = [None if text is None else cutting.encode(text).ids or [NO_TOKEN] for text in TEXTS]
    texts = pa.array(TEXTS, pa.string())
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
