"""BERT encoders as folders: plain checkpoints, and the Transformer and Pooling modules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.models.architecture import NORMALISING, Lengths, Modules
from pipelines.models.bert.spec import BertSpec
from pipelines.models.bert.weights import weight_shapes
from pipelines.models.weights import (
    INITIAL_DEVIATION,
    WEIGHT_FILE,
    Weights,
    check_weights,
    load_weights,
    save_weights,
)
from pipelines.tokens.prompts import read_prompts
from pipelines.tokens.vocabulary import copy_tokenizer

CONFIG_FILE = "config.json"
MODEL_TYPE = "bert"
TRANSFORMER, POOLING = "Transformer", "Pooling"

KEY = "encoder.start"
POOLING_FOLDER = "1_Pooling"
_POOLING_MODES: dict[str, Literal["mean", "cls"]] = {"mean": "mean", "cls": "cls"}
_OLD_POOLING_KEYS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
_SUPPORTED = {
    "model_type": (MODEL_TYPE,),
    "hidden_act": ("gelu",),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
}


def recognises(folder: Path, modules: Modules) -> bool:
    """Whether a folder holds a transformer, or is a plain checkpoint, of the type `bert`."""
    if next(iter(modules), TRANSFORMER) != TRANSFORMER:
        return False
    path = folder / CONFIG_FILE
    return path.is_file() and storage.read_json(path).get("model_type", MODEL_TYPE) == MODEL_TYPE


def read(folder: Path, modules: Modules) -> tuple[BertSpec, Weights]:
    """Reads a checkpoint, with the modules around it.

    Raises:
        InputError: With the key ``encoder.start``: it is another architecture, or incomplete.
    """
    path = folder / CONFIG_FILE
    if not path.is_file():
        _refuse(folder, f"has no {CONFIG_FILE}")
    model: dict[str, Any] = storage.read_json(path)
    for key, accepted in _SUPPORTED.items():
        found = model.get(key, accepted[0])
        if found not in accepted:
            _refuse(folder, f"has `{key}: {found}`")
    try:
        spec = BertSpec(
            vocabulary=model["vocab_size"],
            layers=model["num_hidden_layers"],
            hidden=model["hidden_size"],
            heads=model["num_attention_heads"],
            intermediate=model["intermediate_size"],
            positions=model["max_position_embeddings"],
            type_vocabulary=model.get("type_vocab_size", 2),
            layer_norm_epsilon=model.get("layer_norm_eps", 1e-12),
            pad_token_id=model.get("pad_token_id") or 0,
            max_length=_told_length(folder, model["max_position_embeddings"]),
            prompts=read_prompts(folder),
            **_head(folder, modules),
        )
    except KeyError as error:
        _refuse(folder, f"has a config.json without {error}")
    return spec, _read_weights(folder, spec)


def write(
    folder: Path, spec: BertSpec, weights: Mapping[str, np.ndarray], tokenizer_folder: Path
) -> dict[str, str]:
    """Writes transformer and pooling; returns the paths of the modules, by their classes."""
    for name, value in _descriptions(spec).items():
        storage.write_json(folder / name, value)
    copy_tokenizer(tokenizer_folder, folder, spec.max_length)
    save_weights(folder / WEIGHT_FILE, {**weights, **_unused_pooler(spec)})
    return {TRANSFORMER: "", POOLING: POOLING_FOLDER}


def lengths(folder: Path, modules: Modules) -> Lengths:
    """Tokens of a text that the model in a folder reads, and its positions.

    Raises:
        InputError: With the key ``encoder.start``: there is no config.json, or no positions in it.
    """
    path = folder / CONFIG_FILE
    positions = storage.read_json(path).get("max_position_embeddings") if path.is_file() else None
    if positions is None:
        raise InputError(
            KEY, f"{folder} has no {CONFIG_FILE} with max_position_embeddings", "a BERT checkpoint"
        )
    return Lengths(_told_length(folder, positions), positions)


def _refuse(folder: Path, problem: str) -> NoReturn:
    raise InputError(
        KEY,
        f"{folder} {problem}",
        "a BERT checkpoint with absolute positions and GELU, in safetensors",
    )


def _told_length(folder: Path, positions: int) -> int:
    """Tokens of a text that the folder of a transformer tells, in the older or the newer place."""
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


def _head(folder: Path, modules: Modules) -> dict[str, Any]:
    """Pooling and normalising, as the modules do them; nothing for a plain checkpoint."""
    if not modules:
        return {}
    unknown = sorted(set(modules) - {TRANSFORMER, POOLING, NORMALISING})
    if unknown or POOLING not in modules or modules.get(TRANSFORMER) != "":
        _refuse(folder, f"has the modules {', '.join(modules)}")
    pooling = storage.read_json(folder / modules[POOLING] / "config.json")
    modes = [
        _OLD_POOLING_KEYS.get(key, key)
        for key, chosen in pooling.items()
        if key.startswith("pooling_mode_") and chosen
    ]
    if pooling.get("include_prompt", True) is False:
        _refuse(folder, "leaves prompts out when it pools (`include_prompt: false`)")
    named = pooling.get("pooling_mode", modes)
    modes = [named] if isinstance(named, str) else list(named)
    if len(modes) != 1 or modes[0] not in _POOLING_MODES:
        _refuse(folder, f"pools by {' and '.join(modes) or 'nothing'}, not by mean or cls")
    return {"pooling": _POOLING_MODES[modes[0]], "normalise": NORMALISING in modules}


def _read_weights(folder: Path, spec: BertSpec) -> Weights:
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


def _unused_pooler(spec: BertSpec) -> Weights:
    """Zeros that no embedding depends on; without them transformers reports missing weights."""
    return {
        "pooler.dense.weight": np.zeros((spec.hidden, spec.hidden), np.float32),
        "pooler.dense.bias": np.zeros(spec.hidden, np.float32),
    }


def _descriptions(spec: BertSpec) -> dict[str, Any]:
    """The JSON files of transformer and pooling."""
    return {
        CONFIG_FILE: {
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
        f"{POOLING_FOLDER}/config.json": {
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
