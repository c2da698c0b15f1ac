"""Cross-encoders of a few kilobytes, with random weights, as `transformers` saves them."""

from __future__ import annotations

import json
from pathlib import Path

from tiny_checkpoints import FAMILIES, SPECIAL, tokenizer_of
from tokenizers.processors import TemplateProcessing

LINES = (
    "the model reads a text",
    "one two three four five six seven",
    "words that nobody knows",
    "a text that the model knows",
    "eight nine ten words",
    "ten",
)
WITH_TYPES = ("bert", "electra")
"""Families that tell the second text by its token type."""


def write_reranker(folder: Path, family: str, seed: int = 3) -> Path:
    """A cross-encoder of one score, of a family of :data:`tiny_checkpoints.FAMILIES`."""
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    known = FAMILIES[family]
    torch.manual_seed(seed)
    config = AutoConfig.for_model(known.model_type, **known.config, num_labels=1)
    model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4).add_(torch.randn_like(weight) * 0.1)
    model.save_pretrained(folder)
    write_pair_tokenizer(folder, types=family in WITH_TYPES)
    return folder


def write_pair_tokenizer(folder: Path, *, types: bool, max_length: int = 32) -> None:
    """A tokenizer of words that joins two texts."""
    tokenizer = tokenizer_of((), ())
    second = ":1" if types else ""
    ends = ("<s>", "</s>")
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>",
        pair=f"<s> $A </s> $B{second} </s>{second}",
        special_tokens=[(token, SPECIAL.index(token)) for token in ends],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    inputs = ["input_ids", *(["token_type_ids"] if types else []), "attention_mask"]
    options = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "model_input_names": inputs,
        **{"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
