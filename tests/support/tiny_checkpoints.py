"""Checkpoints of a few kilobytes of every family, as `transformers` and sentence-transformers
write them, with random weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

TEXTS = (
    "the model reads a text",
    "",
    "words that nobody knows: zyx",
    "one two three four five six seven eight nine ten " * 3,
    "ten",
)
_WORDS = sorted({word for text in TEXTS for word in text.split()} - {"zyx"})
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
_SIZE = {"vocab_size": 48, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
_BERT = {**_SIZE, "intermediate_size": 40, "max_position_embeddings": 40}
_DECODER = {
    **_SIZE,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
}


@dataclass(frozen=True)
class Family:
    """What a checkpoint of a family is made of.

    Attributes:
        kind: The architecture that reads it.
        model_type: Of its config.json.
        config: Of `transformers`.
        before: Special tokens before a text.
        after: Those behind it.
        pooling: As sentence-transformers calls it.
    """

    kind: str
    model_type: str
    config: Mapping[str, Any]
    before: tuple[str, ...] = ("<s>",)
    after: tuple[str, ...] = ("</s>",)
    pooling: str = "mean"


FAMILIES = {
    family.model_type: family
    for family in (
        Family("bert", "bert", {**_BERT, "pad_token_id": 1}, pooling="cls"),
        Family("roberta", "roberta", {**_BERT, "pad_token_id": 1, "type_vocab_size": 1}),
        Family("roberta", "xlm-roberta", {**_BERT, "pad_token_id": 1, "type_vocab_size": 1}),
        Family("roberta", "camembert", {**_BERT, "pad_token_id": 1, "type_vocab_size": 1}),
        Family(
            "distilbert",
            "distilbert",
            {
                "vocab_size": 48,
                "dim": 24,
                "n_layers": 2,
                "n_heads": 3,
                "hidden_dim": 40,
                "max_position_embeddings": 40,
                "pad_token_id": 1,
            },
        ),
        Family("electra", "electra", {**_BERT, "embedding_size": 16, "pad_token_id": 1}),
        Family("mpnet", "mpnet", {**_BERT, "pad_token_id": 1}),
        Family(
            "hf",
            "modernbert",
            {**_BERT, "pad_token_id": 1, "global_attn_every_n_layers": 2, "local_attention": 8},
            pooling="cls",
        ),
        Family("hf", "qwen3", _DECODER, before=(), pooling="lasttoken"),
        Family("hf", "llama", _DECODER, after=(), pooling="weightedmean"),
        Family(
            "hf",
            "gpt2",
            {
                "vocab_size": 48,
                "n_embd": 24,
                "n_layer": 2,
                "n_head": 3,
                "n_positions": 40,
                "pad_token_id": 1,
                # Left at the library's, these are no words of so small a vocabulary.
                "bos_token_id": 0,
                "eos_token_id": 2,
            },
            before=(),
            pooling="lasttoken",
        ),
        Family(
            "hf",
            "gemma3_text",
            {**_DECODER, "sliding_window": 8, "use_bidirectional_attention": True},
        ),
    )
}


def tokenizer_of(before: Sequence[str], after: Sequence[str]) -> Tokenizer:
    """A vocabulary of whole words, with special tokens before and after a text."""
    words = [*SPECIAL, *_WORDS]
    tokenizer = Tokenizer(WordLevel({word: n for n, word in enumerate(words)}, "<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(list(SPECIAL))
    if before or after:
        tokenizer.post_processor = TemplateProcessing(
            single=" ".join([*before, "$A", *after]),
            special_tokens=[(token, words.index(token)) for token in {*before, *after}],
        )
    return tokenizer


def write_tokenizer(folder: Path, family: Family, max_length: int = 32) -> None:
    """The files of a family's tokenizer."""
    tokenizer_of(family.before, family.after).save(str(folder / "tokenizer.json"))
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    options = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_length}
    (folder / "tokenizer_config.json").write_text(json.dumps(options | names))


def random_model(family: Family, seed: int = 3) -> Any:
    """A model of `transformers` with weights that are large enough to matter."""
    import torch
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(seed)
    config = AutoConfig.for_model(family.model_type, **family.config)
    model = AutoModel.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for weight in model.parameters():
            # Biases and norms start as constants, which would hide that one is not read.
            weight.mul_(4).add_(torch.randn_like(weight) * 0.1)
    return model


def write_plain(folder: Path, family: Family, model: Any = None) -> Path:
    """A checkpoint folder of `transformers`."""
    (model or random_model(family)).save_pretrained(folder)
    write_tokenizer(folder, family)
    return folder


def write_sentence_folder(
    folder: Path, family: Family, *, pooling: str | None = None, dense: bool = False
) -> Path:
    """The same, as sentence-transformers saves it."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    plain = folder.parent / f"{folder.name}-plain"
    write_plain(plain, family)
    transformer = modules.Transformer(str(plain), max_seq_length=24)
    width = transformer.get_embedding_dimension()
    parts = [transformer, modules.Pooling(width, pooling or family.pooling)]
    if dense:
        parts += [
            modules.Dense(width, 20, activation_function=torch.nn.Tanh()),
            modules.Dense(20, 12, bias=False, activation_function=torch.nn.Identity()),
        ]
    parts.append(modules.Normalize())
    SentenceTransformer(modules=parts, device="cpu").save(str(folder), create_model_card=False)
    return folder


def edit(path: Path, **changes: Any) -> None:
    """Changes some keys of a JSON file, which need not be there."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    path.write_text(json.dumps({**known, **changes}), encoding="utf-8")
