"""Model folders of every kind that this package writes, small and the same on every run.

Shapes are small but not tiny: some servers have kernels for few sizes of attention heads. Weights
are random where a family has no packaged checkpoint, and large enough that texts differ.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers, trainers
from tokenizers import models as tokenizer_models
from tokenizers.processors import ByteLevel, TemplateProcessing

from pipelines.errors import PipelineError
from pipelines.models.adaptation import UP, effective, split
from pipelines.models.folder import read_encoder, write_encoder
from pipelines.models.lsa.modules import with_terms
from pipelines.models.smaller import static_spec
from pipelines.models.spec import Dense, EncoderSpec, Pooling
from pipelines.models.weights import WORDS, Weights, dense_name
from pipelines.settings.load import parse
from pipelines.tokens.start import Prompts, default_start

LENGTH = 64
"""Tokens that the models read; one of the texts is longer."""
_SIZE = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
_ENCODER = {**_SIZE, "intermediate_size": 192, "max_position_embeddings": 2 * LENGTH}
_DECODER = {
    **_SIZE,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 192,
    "max_position_embeddings": 2 * LENGTH,
}
_BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_TRAINED = 900
"""Tokens of a vocabulary of bytes that is trained on the texts."""

TEXTS = (
    "How do I reset the password of my account?",
    "Open the settings, choose Security, and click on Reset password.",
    "The bridge over the river was closed for repairs in May 2021.",
    "A recipe for bread: flour, water, salt and yeast.",
    "Which engine does the aircraft of 1938 have?",
    "Spark reads each file once; executors never wait without a deadline.",
    "Café, naïve, Zürich and ÅNGSTRÖM keep their accents.",
    "ALL CAPITALS ARE STILL WORDS",
    "ten",
    "x",
    "1,234.56 euros, or about 1.3e3 dollars (€/$)",
    "Das ist ein deutscher Satz über Straßen und Häuser.",
    "日本語の文章も少しあります。",
    "Привет, мир! Как дела?",
    "An emoji 🙂 and a tab\tand two  spaces.",
    "def encode(texts: list[str]) -> np.ndarray: ...",
    "user@example.org wrote to https://example.org/path?query=1#part",
    "Unbelievably, antidisestablishmentarianism is tokenised into pieces.",
    "The last word but one ends with a hyphen- here",
    " ".join(f"This sentence has the number {number} and goes on." for number in range(40)),
)
"""The last one is longer than every model reads."""


@dataclass(frozen=True)
class Family:
    """A type of checkpoint, as `transformers` names it.

    Attributes:
        model_type: Of config.json.
        config: Further keys of config.json.
        tokens: Makes the tokenizer, and the options beside it.
        pooling: Of the model.
        dense: Widths of dense layers behind the pooling.
        rank: Of a LoRA product, merged into the weights; 0 for none.
    """

    model_type: str
    config: Mapping[str, Any]
    tokens: Callable[[], tuple[Tokenizer, dict[str, Any]]]
    pooling: Pooling = "mean"
    dense: tuple[int, ...] = ()
    rank: int = 0


def word_pieces(kind: str) -> Callable[[], tuple[Tokenizer, dict[str, Any]]]:
    """Return what makes a tokenizer as BERT's, for a class of `transformers`."""

    def make() -> tuple[Tokenizer, dict[str, Any]]:
        tokenizer = of_word_pieces(_BERT)
        surround(tokenizer, "[CLS]", "[SEP]")
        names = dict(zip(("pad", "unk", "cls", "sep", "mask"), _BERT, strict=True))
        return tokenizer, {f"{name}_token": token for name, token in names.items()} | {
            "tokenizer_class": kind,
            "do_lower_case": True,
        }

    return make


def of_word_pieces(special: Sequence[str]) -> Tokenizer:
    """Return a tokenizer of word pieces, with every second word of the texts and all letters.

    Not trained: trainers of word pieces and of unigrams choose other pieces on each run.
    """
    plain = Tokenizer(tokenizer_models.WordPiece({}, unk_token="[UNK]"))
    plain.normalizer = normalizers.BertNormalizer(lowercase=True)
    plain.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    read = (plain.normalizer.normalize_str(text) for text in TEXTS)
    words = {word for text in read for word, _ in plain.pre_tokenizer.pre_tokenize_str(text)}
    letters = sorted({*"".join(words)})
    pieces = [*special, *letters, *(f"##{letter}" for letter in letters), *sorted(words)[::2]]
    numbers = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    plain.model = tokenizer_models.WordPiece(numbers, unk_token="[UNK]")
    plain.add_special_tokens([*special])
    return plain


def mpnet_pieces() -> tuple[Tokenizer, dict[str, Any]]:
    """Return a tokenizer as MPNet's: word pieces between `<s>` and `</s>`."""
    special = ("<s>", "<pad>", "</s>", "<unk>", "[UNK]", "<mask>")
    tokenizer = of_word_pieces(special)
    surround(tokenizer, "<s>", "</s>")
    names = {"pad": "<pad>", "unk": "[UNK]", "bos": "<s>", "eos": "</s>", "mask": "<mask>"}
    names |= {"cls": "<s>", "sep": "</s>"}
    return tokenizer, {f"{name}_token": token for name, token in names.items()} | {
        "tokenizer_class": "MPNetTokenizer",
        "do_lower_case": True,
    }


def sentence_pieces() -> tuple[Tokenizer, dict[str, Any]]:
    """Return a tokenizer as XLM-R's: unigrams between `<s>` and `</s>`."""
    special = ("<s>", "<pad>", "</s>", "<unk>")
    splits, characters = pre_tokenizers.Metaspace(), sorted({*"".join(TEXTS)} - {" "})
    words = {word for text in TEXTS for word, _ in splits.pre_tokenize_str(text)}
    scores = {"\u2581": -4.0} | dict.fromkeys(characters, -9.0)
    scores |= {word: -6.0 for word in sorted(words)[::2] if len(word) > 1}
    pieces = [*((token, 0.0) for token in special), *scores.items()]
    tokenizer = Tokenizer(tokenizer_models.Unigram(pieces, special.index("<unk>")))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = splits
    tokenizer.add_special_tokens([*special])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    surround(tokenizer, "<s>", "</s>")
    names = {"pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>", "mask": "<mask>"}
    names |= {"cls": "<s>", "sep": "</s>"}
    return tokenizer, {f"{name}_token": token for name, token in names.items()} | {
        "tokenizer_class": "XLMRobertaTokenizer"
    }


def byte_pairs(
    special: Sequence[str], first: str, last: str, options: Mapping[str, Any]
) -> Callable[[], tuple[Tokenizer, dict[str, Any]]]:
    """Return what makes a tokenizer of bytes; ``first`` and ``last`` may be empty."""

    def make() -> tuple[Tokenizer, dict[str, Any]]:
        tokenizer = Tokenizer(tokenizer_models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=_TRAINED,
            special_tokens=[*special],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(TEXTS, trainer)
        tokenizer.post_processor = ByteLevel(trim_offsets=False)
        if first or last:
            surround(tokenizer, first, last)
        return tokenizer, dict(options)

    return make


def surround(tokenizer: Tokenizer, first: str, last: str) -> None:
    """Put special tokens around texts."""
    ends = [token for token in (first, last) if token]
    places = " ".join(token for token in (first, "$A", last) if token)
    tokenizer.post_processor = TemplateProcessing(
        single=places, special_tokens=[(token, tokenizer.token_to_id(token)) for token in {*ends}]
    )


def rope(theta: float) -> dict[str, Any]:
    """Return the settings of rotary positions, as `transformers` 5 writes them.

    Earlier releases read them from keys of their own, and have other numbers as default.
    """
    return {"rope_type": "default", "rope_theta": theta}


_QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_ENDS = ("<s>", "<pad>", "</s>")
_ENDS_OPTIONS = {
    **{"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"},
    **{"pad_token": "<pad>", "eos_token": "</s>"},
}
FAMILIES = {
    "bert": Family("bert", _ENCODER, word_pieces("BertTokenizer"), pooling="cls", dense=(48,)),
    "distilbert": Family(
        "distilbert",
        {"dim": 128, "n_layers": 2, "n_heads": 4, "hidden_dim": 192}
        | {"max_position_embeddings": 2 * LENGTH},
        word_pieces("DistilBertTokenizer"),
    ),
    "mpnet": Family("mpnet", {**_ENCODER, "pad_token_id": 1}, mpnet_pieces),
    "xlm-roberta": Family(
        "xlm-roberta", {**_ENCODER, "pad_token_id": 1, "type_vocab_size": 1}, sentence_pieces
    ),
    "modernbert": Family(
        "modernbert",
        {**_ENCODER, "pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3}
        | {"bos_token_id": 2, "eos_token_id": 3, "global_attn_every_n_layers": 2}
        | {"local_attention": 16}
        | {"rope_parameters": {"full_attention": rope(80e3), "sliding_attention": rope(5e3)}},
        byte_pairs(
            _BERT,
            "[CLS]",
            "[SEP]",
            {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": True}
            | {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
            | {"sep_token": "[SEP]", "mask_token": "[MASK]"},
        ),
    ),
    "qwen3": Family(
        "qwen3",
        {**_DECODER, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 2}
        | {"rope_parameters": rope(1e6)},
        byte_pairs(
            _QWEN,
            "",
            "<|endoftext|>",
            {"tokenizer_class": "Qwen2Tokenizer", "pad_token": "<|endoftext|>"}
            | {"eos_token": "<|im_end|>", "add_prefix_space": False, "unk_token": None}
            | {"bos_token": None, "padding_side": "left", "add_bos_token": False},
        ),
        pooling="lasttoken",
        rank=4,
    ),
    "gemma3": Family(
        "gemma3_text",
        {**_DECODER, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
        | {"sliding_window": 16, "use_bidirectional_attention": True, "query_pre_attn_scalar": 32}
        | {"layer_types": ["sliding_attention", "full_attention"]}
        | {"rope_parameters": {"full_attention": rope(5e5), "sliding_attention": rope(5e3)}},
        byte_pairs(_ENDS, "<s>", "</s>", _ENDS_OPTIONS | {"padding_side": "left"}),
        dense=(96, 48),
    ),
    "llama": Family(
        "llama",
        {**_DECODER, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
        | {"rope_parameters": rope(5e5)},
        byte_pairs(_ENDS, "<s>", "", _ENDS_OPTIONS),
        pooling="weightedmean",
    ),
}


def family_model(family: Family, folder: Path, start: Path) -> None:
    """Write a model of a family; ``start`` takes its checkpoint."""
    spec, weights = random_start(family, start)
    spec = replace(spec, pooling=family.pooling, max_length=LENGTH)  # type: ignore[call-arg]
    if family.rank:
        weights = merged(weights, family.rank)
    spec = replace(spec, dense=tuple(Dense(width=width) for width in family.dense))
    numbers, width = np.random.default_rng(11), spec.hidden
    for place, layer in enumerate(spec.dense):
        for part, shape in {"weight": (layer.width, width), "bias": (layer.width,)}.items():
            values = numbers.standard_normal(shape) / np.sqrt(width)
            weights[dense_name(place, part)] = values.astype(np.float32)
        width = layer.width
    write_encoder(folder, spec, weights, start, "")


def random_start(family: Family, folder: Path) -> tuple[EncoderSpec, Weights]:
    """Write a checkpoint of `transformers` with random weights, and read it."""
    import torch
    from transformers import AutoConfig, AutoModel

    folder.mkdir(parents=True)
    tokenizer, options = family.tokens()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    torch.manual_seed(7)
    sizes = {**family.config, "vocab_size": tokenizer.get_vocab_size()}
    config = AutoConfig.for_model(family.model_type, **sizes)
    model = AutoModel.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for weight in model.parameters():
            # Biases and norms start as constants, which would hide that one is not read.
            weight.mul_(3).add_(torch.randn_like(weight) * 0.05)
    model.save_pretrained(folder)
    return read_encoder(folder)


def merged(weights: Weights, rank: int) -> Weights:
    """Return an encoder's weights with those of a LoRA training in them."""
    settings = parse({"encoder": {"lora": {"rank": rank}}}).encoder
    trained, frozen = split(settings, weights, seed=5)
    numbers = np.random.default_rng(5)
    learnt = {
        name: numbers.standard_normal(value.shape).astype(np.float32) * 0.05
        if name.endswith(UP)
        else value
        for name, value in trained.items()
    }
    return effective(learnt, frozen.weights, frozen.scale)


def packaged(
    folder: Path, *, prompts: Mapping[str, str] | None = None, lexical: int = 0, length: int = 256
) -> None:
    """Write the packaged start as a model, with prompts, or with lexical features."""
    start = default_start()
    spec, weights = read_encoder(start)
    named = Prompts.from_json({"prompts": dict(prompts or {})})
    spec = replace(spec, prompts=named, max_length=length)
    if lexical:
        vectors = np.random.default_rng(3).standard_normal((spec.vocabulary, lexical))
        spec, weights = with_terms(spec, weights, vectors.astype(np.float32) * 0.2)
    write_encoder(folder, spec, weights, start, "")


def static(folder: Path) -> None:
    """Write static embeddings: the rows of the packaged start's word embedding."""
    start = default_start()
    spec, weights = read_encoder(start)
    smaller = replace(static_spec(spec), max_length=LENGTH)
    write_encoder(folder, smaller, {WORDS: weights[WORDS]}, start, "")


@dataclass(frozen=True)
class Model:
    """A column of the table.

    Attributes:
        about: What it is, for the page.
        write: Writes the folder; the second folder is for what it is made from.
        prompts: Names of its prompts, for texts that begin with one.
    """

    about: str
    write: Callable[[Path, Path], None]
    prompts: tuple[str, ...] = ()


def _of_family(name: str) -> Callable[[Path, Path], None]:
    return lambda folder, start: family_model(FAMILIES[name], folder, start)


MODELS = {
    "start": Model(
        "the packaged all-MiniLM-L6-v2: BERT, mean pooling", lambda folder, _: packaged(folder)
    ),
    "prompts": Model(
        "the same, with a prompt for queries and one for documents",
        lambda folder, _: packaged(
            folder, prompts={"query": "query: ", "document": "passage: "}, length=LENGTH
        ),
        ("query", "document"),
    ),
    "lexical": Model(
        "the same, with 128 lexical (LSA) features", lambda folder, _: packaged(folder, lexical=128)
    ),
    "bert": Model("BERT, CLS pooling, a Dense layer", _of_family("bert")),
    "distilbert": Model("DistilBERT, mean pooling", _of_family("distilbert")),
    "mpnet": Model("MPNet, mean pooling", _of_family("mpnet")),
    "xlm-roberta": Model("XLM-RoBERTa, mean pooling", _of_family("xlm-roberta")),
    "modernbert": Model("ModernBERT, mean pooling", _of_family("modernbert")),
    "qwen3": Model("Qwen3, last token, LoRA merged into its weights", _of_family("qwen3")),
    "gemma3": Model(
        "Gemma 3 that attends in both directions, mean pooling, two Dense layers",
        _of_family("gemma3"),
    ),
    "llama": Model("Llama, weighted mean pooling", _of_family("llama")),
    "static": Model("static embeddings, no layers", lambda folder, _: static(folder)),
}


def write_models(home: Path, names: Iterable[str]) -> dict[str, Path]:
    """Write model folders; return them by name.

    Raises:
        PipelineError: This installation lacks the packaged start.
    """
    folders = {}
    for name in names:
        folder, start = home / name, home / f"{name}-start"
        for place in (folder, start):
            shutil.rmtree(place, ignore_errors=True)
        home.mkdir(parents=True, exist_ok=True)
        MODELS[name].write(folder, start)
        folders[name] = folder
    return folders


__all__ = ["MODELS", "TEXTS", "Model", "PipelineError", "write_models"]
