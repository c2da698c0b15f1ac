"""Encoders as folders: sentence-transformers folders in and out, plain BERT checkpoints in.

The module of a static bag is in :mod:`pipelines.encoder.bag_folder`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from pipelines import storage
from pipelines.encoder.bag_folder import MODULE as BAG_MODULE
from pipelines.encoder.bag_folder import WEIGHT_FILE, read_bag, write_bag
from pipelines.encoder.spec import EncoderSpec
from pipelines.encoder.weights import (
    INITIAL_DEVIATION,
    Weights,
    check_weights,
    load_weights,
    random_weights,
    save_weights,
    weight_shapes,
)
from pipelines.errors import InputError
from pipelines.settings import Config
from pipelines.tokens.start import check_vocabulary, default_start, start_folder
from pipelines.tokens.vocabulary import MODULES_FILE, copy_tokenizer

__all__ = ["default_start", "read_encoder", "start_encoder", "write_encoder"]

KEY = "encoder.start"

_SENTENCE_MODULES = "sentence_transformers.models"
_POOLING_MODES: dict[str, Literal["mean", "cls"]] = {"mean": "mean", "cls": "cls"}
_OLD_POOLING_KEYS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
_SUPPORTED = {
    "model_type": ("bert",),
    "hidden_act": ("gelu",),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
}


def start_encoder(config: Config, vocabulary_size: int) -> tuple[EncoderSpec, Weights]:
    """The encoder that training starts from.

    A checkpoint folder brings its shape, and a sentence-transformers folder its pooling too;
    ``encoder.pooling`` and ``encoder.normalise`` decide for the others. The length comes from
    ``tokens.max_length``.

    Args:
        config: The configuration.
        vocabulary_size: Entries of the vocabulary that the corpus was prepared with.

    Raises:
        InputError: The checkpoint cannot be read, or does not fit the vocabulary.
    """
    encoder, max_length = config.encoder, config.tokens.max_length
    folder = start_folder(config)
    if folder is None:
        spec = _configured_spec(config, vocabulary_size)
        return spec, random_weights(spec, config.training.seed)
    check_vocabulary(config)
    spec, weights = read_encoder(folder)
    if encoder.kind == "bag" and spec.kind != "bag":
        raise InputError(
            "encoder.kind", f"{folder} is no `bag`", "leave it out, or encoder.start: random"
        )
    # Some checkpoints have more rows than words, to make a round number.
    if vocabulary_size > spec.vocabulary:
        raise InputError(
            "tokens.vocabulary",
            f"it has {vocabulary_size} entries and the start checkpoint {spec.vocabulary}",
            "`start`, or encoder.start: random",
        )
    if spec.kind == "transformer" and max_length > spec.positions:
        raise InputError(
            "tokens.max_length",
            f"{max_length} is more than the checkpoint's {spec.positions} positions",
            f"at most {spec.positions}",
        )
    values = spec.to_json() | {"max_length": max_length}
    if not (folder / MODULES_FILE).is_file():
        values |= {"pooling": encoder.pooling, "normalise": encoder.normalise}
    return EncoderSpec.from_json(values), weights


def read_encoder(folder: str | Path) -> tuple[EncoderSpec, Weights]:
    """Reads a sentence-transformers folder or a plain Hugging Face BERT checkpoint.

    The folder may hold a StaticEmbedding instead of a transformer. A plain checkpoint is given
    mean pooling and normalised embeddings. Weights may carry the prefix ``bert.``; poolers, heads
    and position ids are dropped.

    Raises:
        InputError: With the key ``encoder.start``, for what is not a BERT-family encoder with
            absolute positions and exact GELU, nor a static bag of token embeddings.
    """
    folder = Path(folder)
    modules = _read_modules(folder)
    if BAG_MODULE in modules:
        return read_bag(folder, modules)
    path = folder / "config.json"
    if not path.is_file():
        _refuse(folder, "has no config.json")
    model: dict[str, Any] = storage.read_json(path)
    for key, accepted in _SUPPORTED.items():
        found = model.get(key, accepted[0])
        if found not in accepted:
            _refuse(folder, f"has `{key}: {found}`")
    try:
        spec = EncoderSpec(
            vocabulary=model["vocab_size"],
            layers=model["num_hidden_layers"],
            hidden=model["hidden_size"],
            heads=model["num_attention_heads"],
            intermediate=model["intermediate_size"],
            positions=model["max_position_embeddings"],
            type_vocabulary=model.get("type_vocab_size", 2),
            layer_norm_epsilon=model.get("layer_norm_eps", 1e-12),
            pad_token_id=model.get("pad_token_id") or 0,
            max_length=_max_length(folder, model["max_position_embeddings"]),
            **_head(folder, modules),
        )
    except KeyError as error:
        _refuse(folder, f"has a config.json without {error}")
    return spec, _read_weights(folder, spec)


def write_encoder(
    folder: Path,
    spec: EncoderSpec,
    weights: Mapping[str, np.ndarray],
    tokenizer_folder: Path,
    card: str,
) -> None:
    """Writes a sentence-transformers folder, whole or not at all.

    It has the older key names, which every release since 3 reads, and a bag's every one since 3.2.

    Args:
        folder: Replaced if it exists.
        spec: The shape.
        weights: fp32, in canonical names.
        tokenizer_folder: Holds the tokenizer's files.
        card: The model card, Markdown.
    """
    check_weights(spec, weights)
    write_modules = write_bag if spec.kind == "bag" else _write_transformer
    with storage.new_folder(folder) as aside:
        modules = write_modules(aside, spec, weights, tokenizer_folder)
        if spec.normalise:
            modules["Normalize"] = f"{len(modules)}_Normalize"
            (aside / modules["Normalize"]).mkdir()
        storage.write_json(aside / MODULES_FILE, list(_listed(modules)))
        storage.write_json(
            aside / "config_sentence_transformers.json",
            {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
        )
        storage.write_text(aside / "README.md", card)


def _configured_spec(config: Config, vocabulary_size: int) -> EncoderSpec:
    encoder, max_length = config.encoder, config.tokens.max_length
    if encoder.kind == "bag":
        return EncoderSpec.bag(
            vocabulary=vocabulary_size,
            hidden=encoder.hidden,
            normalise=encoder.normalise,
            max_length=max_length,
        )
    return EncoderSpec(
        vocabulary=vocabulary_size,
        layers=encoder.layers,
        hidden=encoder.hidden,
        heads=encoder.heads,
        intermediate=encoder.intermediate or 4 * encoder.hidden,
        pooling=encoder.pooling,
        normalise=encoder.normalise,
        max_length=max_length,
    )


def _write_transformer(
    folder: Path, spec: EncoderSpec, weights: Mapping[str, np.ndarray], tokenizer_folder: Path
) -> dict[str, str]:
    """Writes transformer and pooling; returns the paths of the modules, by their classes."""
    for name, value in _descriptions(spec).items():
        storage.write_json(folder / name, value)
    copy_tokenizer(tokenizer_folder, folder, spec.max_length)
    save_weights(folder / WEIGHT_FILE, {**weights, **_unused_pooler(spec)})
    return {"Transformer": "", "Pooling": "1_Pooling"}


def _refuse(folder: Path, problem: str) -> NoReturn:
    raise InputError(
        KEY,
        f"{folder} {problem}",
        "a BERT checkpoint with absolute positions and GELU, in safetensors",
    )


def _max_length(folder: Path, positions: int) -> int:
    """What the folder says about the tokens of a text, in the older or the newer place."""
    places = (
        ("sentence_bert_config.json", "max_seq_length"),
        ("tokenizer_config.json", "model_max_length"),
    )
    for name, key in places:
        path = folder / name
        value = storage.read_json(path).get(key) if path.is_file() else None
        if value:
            return int(min(value, positions))
    return positions


def _read_modules(folder: Path) -> dict[str, str]:
    """The path of each module, by its class; nothing for a plain checkpoint."""
    path = folder / MODULES_FILE
    modules = storage.read_json(path) if path.is_file() else []
    return {module["type"].rpartition(".")[2]: module["path"] for module in modules}


def _head(folder: Path, modules: Mapping[str, str]) -> dict[str, Any]:
    """Pooling and normalising, as the modules do them; nothing for a plain checkpoint."""
    if not modules:
        return {}
    unknown = sorted(set(modules) - {"Transformer", "Pooling", "Normalize"})
    if unknown or "Pooling" not in modules or modules.get("Transformer") != "":
        _refuse(folder, f"has the modules {', '.join(modules)}")
    pooling = storage.read_json(folder / modules["Pooling"] / "config.json")
    modes = [
        _OLD_POOLING_KEYS.get(key, key)
        for key, chosen in pooling.items()
        if key.startswith("pooling_mode_") and chosen
    ]
    named = pooling.get("pooling_mode", modes)
    modes = [named] if isinstance(named, str) else list(named)
    if len(modes) != 1 or modes[0] not in _POOLING_MODES:
        _refuse(folder, f"pools by {' and '.join(modes) or 'nothing'}, not by mean or cls")
    return {"pooling": _POOLING_MODES[modes[0]], "normalise": "Normalize" in modules}


def _read_weights(folder: Path, spec: EncoderSpec) -> Weights:
    path = folder / WEIGHT_FILE
    if not path.is_file():
        _refuse(folder, f"has no {WEIGHT_FILE}")
    found = {name.removeprefix("bert."): value for name, value in load_weights(path).items()}
    names = [name for name in weight_shapes(spec) if name in found]
    weights = {name: np.ascontiguousarray(found[name], dtype=np.float32) for name in names}
    try:
        check_weights(spec, weights)
    except ValueError as error:
        _refuse(folder, f"does not fit its config.json: {error}")
    return weights


def _unused_pooler(spec: EncoderSpec) -> Weights:
    """Zeros that no embedding depends on; without them transformers reports missing weights."""
    return {
        "pooler.dense.weight": np.zeros((spec.hidden, spec.hidden), np.float32),
        "pooler.dense.bias": np.zeros(spec.hidden, np.float32),
    }


def _descriptions(spec: EncoderSpec) -> dict[str, Any]:
    """The JSON files of transformer and pooling."""
    return {
        "config.json": {
            "architectures": ["BertModel"],
            "model_type": "bert",
            "vocab_size": spec.vocabulary,
            "num_hidden_layers": spec.layers,
            "hidden_size": spec.hidden,
            "num_attention_heads": spec.heads,
            "intermediate_size": spec.intermediate,
            "max_position_embeddings": spec.positions,
            "type_vocab_size": spec.type_vocabulary,
            "layer_norm_eps": spec.layer_norm_epsilon,
            "pad_token_id": spec.pad_token_id,
            "hidden_act": "gelu",
            "position_embedding_type": "absolute",
            "attention_probs_dropout_prob": 0.1,
            "hidden_dropout_prob": 0.1,
            "initializer_range": INITIAL_DEVIATION,
            "torch_dtype": "float32",
        },
        "sentence_bert_config.json": {"max_seq_length": spec.max_length, "do_lower_case": False},
        "1_Pooling/config.json": {
            "word_embedding_dimension": spec.hidden,
            "pooling_mode_cls_token": spec.pooling == "cls",
            "pooling_mode_mean_tokens": spec.pooling == "mean",
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
            "pooling_mode_weightedmean_tokens": False,
            "pooling_mode_lasttoken": False,
            "include_prompt": True,
        },
    }


def _listed(modules: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The entries of modules.json."""
    for index, (kind, path) in enumerate(modules.items()):
        yield {
            "idx": index,
            "name": str(index),
            "path": path,
            "type": f"{_SENTENCE_MODULES}.{kind}",
        }
