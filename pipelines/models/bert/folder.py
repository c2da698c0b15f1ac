"""Folders of the BERT family: plain checkpoints, and transformers with Pooling."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.errors import InputError
from pipelines.files import records, storage
from pipelines.models.architecture import FolderFormat, Lengths, Modules
from pipelines.models.bert.spec import POSITIONS, BertSpec, Layout, model_type, weight_shapes
from pipelines.models.checkpoint_files import checkpoint_rows, read_checkpoint
from pipelines.models.sentence_modules import (
    CONFIG_FILE,
    KEY,
    WHOLE_COPY,
    check_heads,
    check_implementations,
    check_layers,
    check_numbers,
    check_size,
    read_head,
    refuse,
    stored_length,
    transformer_home,
    whole_weights,
    write_head,
)
from pipelines.models.weights import WEIGHT_FILE, WORDS, Weights, save_weights
from pipelines.tokens.model_files import TRANSFORMER
from pipelines.tokens.start import read_prompts
from pipelines.tokens.vocabulary import copy_tokenizer

_OLD_NAMES = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
"""Names in checkpoints converted from TensorFlow's."""


def folder_format(layout: Layout) -> FolderFormat:
    """Return the reader and the writer of a family member's folders."""
    return FolderFormat(
        recognises=partial(_recognises, layout),
        read=partial(_read, layout),
        write=partial(_write, layout),
        lengths=partial(_lengths, layout),
        stored_name=layout.stored_name,
        to_embed=partial(_to_embed, layout),
    )


def _recognises(layout: Layout, folder: Path, modules: Modules) -> bool:
    """Return whether a folder holds a transformer or plain checkpoint of the layout's types."""
    if modules and modules[0][0] != TRANSFORMER:
        return False
    path = (folder / modules[0][1] if modules else folder) / CONFIG_FILE
    return path.is_file() and model_type(records.read_object(path)) in layout.classes


def _read(layout: Layout, folder: Path, modules: Modules) -> tuple[BertSpec, Weights]:
    """Read a checkpoint with the modules around it; refuse another architecture."""
    home = transformer_home(folder, modules)
    config = _config(home)
    if model_type(config) not in layout.classes:
        refuse(folder, f"has the unsupported `model_type: {model_type(config)}`")
    for key, value in layout.unknown(config).items():
        refuse(folder, f"has the unsupported `{key}: {value}`")
    fields = _fields(layout, home, config)
    spec = layout.spec(
        **fields,
        max_length=stored_length(home, fields["positions"]),
        prompts=read_prompts(folder),
        **read_head(folder, modules),
    )
    return spec, whole_weights(folder, modules, spec, _read_weights(layout, home, spec))


def _write(
    layout: Layout,
    folder: Path,
    spec: BertSpec,
    weights: Mapping[str, np.ndarray],
    tokenizer_folder: Path,
) -> list[tuple[str, str]]:
    """Write the transformer and the modules after it; return class and path of each."""
    storage.write_json(folder / CONFIG_FILE, layout.to_config(spec))
    copy_tokenizer(tokenizer_folder, folder, spec.max_length)
    stored = {layout.stored_name(name): weights[name] for name in weight_shapes(spec)}
    skipped = layout.skipped_rows(spec.pad_token_id)
    positions = layout.stored_name(POSITIONS)
    stored[positions] = np.pad(stored[positions], ((skipped, 0), (0, 0)))
    save_weights(folder / WEIGHT_FILE, {**stored, **_unused_pooler(layout, spec)})
    return write_head(folder, spec, spec.pooling, weights)


def _lengths(layout: Layout, folder: Path, modules: Modules) -> Lengths:
    """Return the length of the model in a folder, and its positions."""
    key = layout.keys["positions"]
    home = transformer_home(folder, modules)
    path = home / CONFIG_FILE
    config = records.read_object(path) if path.is_file() else {}
    if config.get(key) is None:
        raise InputError(KEY, f"{folder} has no {CONFIG_FILE} with {key}", "Name a transformer")
    positions = _fields(layout, home, config)["positions"]
    return Lengths(stored_length(home, positions), positions)


def _fields(layout: Layout, folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a spec from config.json, after checking them."""
    check_implementations(folder, config)
    check_numbers(folder, config)
    for key in ("pruned_heads", "quantization_config"):
        if config.get(key):
            refuse(folder, f"has the unsupported `{key}: {config[key]}`")
    for name, key in layout.keys.items():
        least = 0 if name in ("type_vocabulary", "pad_token_id") else 1
        if config.get(key) is not None and name != "layer_norm_epsilon":
            check_size(folder, key, config[key], least)
    try:
        fields = layout.fields(config)
    except KeyError as error:
        refuse(folder, f"has a config.json without {error}", WHOLE_COPY)
    check_size(folder, layout.keys["positions"], fields["positions"])
    check_heads(folder, layout.keys["heads"], fields["heads"], fields["hidden"])
    if (padding := layout.pad_token_id(config)) >= fields["vocabulary"]:
        refuse(
            folder,
            f"has `pad_token_id: {padding}`, which is no token of its vocabulary",
            WHOLE_COPY,
        )
    return fields


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    if not path.is_file():
        refuse(folder, f"has no {CONFIG_FILE}", WHOLE_COPY)
    return records.read_object(path)


def _read_weights(layout: Layout, folder: Path, spec: BertSpec) -> Weights:
    """Return the weights of the spec without dense layers; ignore others."""
    found = read_checkpoint(folder)
    if found is None:
        refuse(folder, f"has no {WEIGHT_FILE}", WHOLE_COPY)
    for old, new in _OLD_NAMES:
        found = {name.replace(old, new): value for name, value in found.items()}
    prefix = _prefix(layout, folder, found)
    # Before anything lists the shapes layer by layer: a damaged file may name 1e8 layers.
    names = [name.removeprefix(prefix) for name in found if name.startswith(prefix)]
    check_layers(folder, layout.keys["layers"], spec.layers, names)
    weights: Weights = {}
    for name in weight_shapes(spec):
        stored = f"{prefix}{layout.stored_name(name)}"
        if stored in found:
            weights[name] = np.ascontiguousarray(found[stored], dtype=np.float32)
    if POSITIONS in weights:
        skipped = layout.skipped_rows(spec.pad_token_id)
        weights[POSITIONS] = np.ascontiguousarray(weights[POSITIONS][skipped:])
    return weights


def _to_embed(
    layout: Layout, folder: Path, modules: Modules, spec: BertSpec, weights: Weights
) -> Weights:
    """Add the padding token's position to its vector, for texts that spell the token out.

    Training leaves it at zero. Objectives that predict words read the vectors unchanged.
    """
    token = spec.placeless_token
    if token is None:
        return weights
    # Models written here have zeros in this row.
    rows = checkpoint_rows(transformer_home(folder, modules), layout.stored_name(POSITIONS), token)
    if len(rows) != 1 or not rows[0].any() or rows[0].shape != weights[WORDS][token].shape:
        return weights
    words = weights[WORDS].copy()
    words[token] += rows[0].astype(np.float32)
    return weights | {WORDS: words}


def _prefix(layout: Layout, folder: Path, found: Weights) -> str:
    """Return the prefix of the encoder's names: empty, or that of a model with a head."""
    words = layout.stored_name(WORDS)
    prefixes = sorted(name.removesuffix(words) for name in found if name.endswith(words))
    for usual in ("", layout.prefix):
        if usual in prefixes:
            return usual
    if len(prefixes) > 1:
        refuse(folder, f"holds several encoders: {', '.join(prefixes)}")
    return prefixes[0] if prefixes else ""


def _unused_pooler(layout: Layout, spec: BertSpec) -> Weights:
    """Return zeros for the unused pooler; transformers would miss them."""
    if not layout.pooler:
        return {}
    return {
        "pooler.dense.weight": np.zeros((spec.hidden, spec.hidden), np.float32),
        "pooler.dense.bias": np.zeros(spec.hidden, np.float32),
    }
