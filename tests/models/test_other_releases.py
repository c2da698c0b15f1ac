"""Model folders say the same to every release of `transformers`."""

from __future__ import annotations

import json

import pytest
from tiny_checkpoints import FAMILIES, write_plain
from tokenizers import Tokenizer, normalizers, pre_tokenizers, trainers
from tokenizers import models as tokenizer_models
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, AutoTokenizer

from pipelines.models.folder import read_encoder, write_encoder
from pipelines.models.hf.architecture import config_text, earlier_rope
from pipelines.tokens.vocabulary import load_tokenizer

TEXTS = ("in May 2021 two  words", "Über 12,345.6 words!", "it's a text", "one two")
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def byte_pairs() -> Tokenizer:
    """Pre-tokenized as GPT-2 does, unlike the class of Qwen."""
    tokenizer = Tokenizer(tokenizer_models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([*TEXTS, "2021", "2021"], trainer)
    tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return tokenizer


def unigrams() -> Tokenizer:
    """Normalised by NFKC, unlike the class of XLM-RoBERTa."""
    tokenizer = Tokenizer(tokenizer_models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=90, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator([*TEXTS * 3], trainer)
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


@pytest.mark.parametrize(
    ("family", "made", "options"),
    [
        ("qwen3", byte_pairs, {"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": False}),
        ("qwen3", byte_pairs, {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False}),
        ("xlm-roberta", unigrams, {"tokenizer_class": "XLMRobertaTokenizer"}),
    ],
)
def test_the_tokens_of_a_model_are_those_of_its_file(family, made, options, tmp_path):
    tokenizer = made()
    chosen = FAMILIES[family]
    sizes = {**chosen.config, "vocab_size": tokenizer.get_vocab_size()}
    start = write_plain(tmp_path / "start", type(chosen)(chosen.kind, chosen.model_type, sizes))
    tokenizer.save(str(start / "tokenizer.json"))
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    (start / "tokenizer_config.json").write_text(json.dumps(names | options))
    spec, weights = read_encoder(start)
    write_encoder(tmp_path / "model", spec, weights, start, "")
    expected = [tokenizer.encode(text).ids for text in TEXTS]
    read = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert read(list(TEXTS))["input_ids"] == expected
    assert [one.ids for one in load_tokenizer(tmp_path / "model").encode_batch(TEXTS)] == expected
    assert "token_type_ids" not in read(TEXTS[0])


@pytest.mark.parametrize(
    ("name", "rope", "expected"),
    [
        ("qwen3", {"rope_type": "default", "rope_theta": 1e6}, {"rope_theta": 1e6}),
        (
            "llama",
            {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0},
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        ),
        (
            "modernbert",
            {
                "full_attention": {"rope_type": "default", "rope_theta": 8e4},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
            },
            {"global_rope_theta": 8e4, "local_rope_theta": 5e3},
        ),
    ],
)
def test_rotary_positions_are_written_by_both_names(name, rope, expected, tmp_path):
    family = FAMILIES[name]
    config = {**family.config, "rope_parameters": rope}
    start = write_plain(tmp_path / "start", type(family)("hf", family.model_type, config))
    spec, weights = read_encoder(start)
    write_encoder(tmp_path / "model", spec, weights, start, "")
    written = json.loads((tmp_path / "model" / "config.json").read_text())
    assert {key: written[key] for key in expected} == expected
    assert written["rope_parameters"] == rope
    assert read_encoder(tmp_path / "model")[0] == spec
    read = AutoConfig.from_pretrained(tmp_path / "model").rope_parameters
    assert read == AutoConfig.from_pretrained(start).rope_parameters


@pytest.mark.parametrize("rope", [None, 3, {}, {"full_attention": 1}, {"sliding_attention": {}}])
def test_other_settings_of_positions_have_no_earlier_name(rope):
    assert earlier_rope({"model_type": "modernbert", "rope_parameters": rope}) == {}


def test_a_contradicting_earlier_name_stays():
    config = {"rope_parameters": {"rope_theta": 2.0}, "rope_theta": 3.0, "dtype": "float32"}
    assert json.loads(config_text(config))["rope_theta"] == 3.0
    config["rope_theta"] = 2.0
    assert "rope_theta" not in json.loads(config_text(config))
