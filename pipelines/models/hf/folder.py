"""Folders with a transformer that the library `transformers` knows and no architecture of ours."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.errors import InputError
from pipelines.files import records, storage
from pipelines.models.architecture import Lengths, Modules, Shapes
from pipelines.models.hf.spec import HfSpec, config_text
from pipelines.models.sentence_modules import (
    CONFIG_FILE,
    KEY,
    WHOLE_COPY,
    read_dense,
    read_head,
    refuse,
    told_length,
    transformer_home,
    write_head,
)
from pipelines.models.spec import UNLIMITED
from pipelines.models.weights import Weights, check_weights
from pipelines.tokens.model_files import TRANSFORMER
from pipelines.tokens.start import read_prompts
from pipelines.tokens.vocabulary import copy_tokenizer


def recognises(folder: Path, modules: Modules) -> bool:
    """Whether a folder holds a transformer that tells its type."""
    if modules and modules[0][0] != TRANSFORMER:
        return False
    path = (folder / modules[0][1] if modules else folder) / CONFIG_FILE
    return path.is_file() and isinstance(records.read_object(path).get("model_type"), str)


def read(folder: Path, modules: Modules) -> tuple[HfSpec, Weights]:
    """Reads a checkpoint by the library, with the modules around it.

    Raises:
        InputError: With the key ``encoder.start``: the library does not know it without code from
            its folder, it is no encoder, or it is incomplete.
    """
    library, home = _library(folder), transformer_home(folder, modules)
    config = records.read_object(home / CONFIG_FILE)
    shape = library.read_shape(home, config)
    spec = HfSpec(
        config=config_text(config),
        vocabulary=shape.vocabulary,
        hidden=shape.hidden,
        pad_token_id=shape.pad_token_id,
        largest_dropout=shape.dropout,
        max_length=told_length(home, shape.positions or UNLIMITED),
        prompts=read_prompts(folder),
        **read_head(folder, modules),
    )
    weights = {**library.read_weights(home, spec), **read_dense(folder, modules)}
    try:
        check_weights(spec, weights)
    except ValueError as error:
        refuse(folder, f"does not fit its config.json: {error}", WHOLE_COPY)
    return spec, weights


def write(
    folder: Path, spec: HfSpec, weights: Mapping[str, np.ndarray], tokenizer_folder: Path
) -> list[tuple[str, str]]:
    """Writes transformer and what follows it; returns class and path of the modules."""
    architecture = _library(folder).write_weights(folder, spec, weights)
    storage.write_json(
        folder / CONFIG_FILE,
        {**spec.described_config, "architectures": [architecture], "torch_dtype": "float32"},
    )
    copy_tokenizer(tokenizer_folder, folder, spec.max_length)
    return write_head(folder, spec, spec.pooling, weights)


def lengths(folder: Path, modules: Modules) -> Lengths:
    """Tokens of a text that the model in a folder reads, and the positions that it knows."""
    home = transformer_home(folder, modules)
    config = records.read_object(home / CONFIG_FILE)
    positions = _library(folder).read_shape(home, config).positions or UNLIMITED
    return Lengths(told_length(home, positions), positions)


def weight_shapes(spec: HfSpec) -> Shapes:
    """Shapes of the weights that an embedding depends on, the word embedding first."""
    return dict(_shapes(spec.config))


@lru_cache(maxsize=8)
def _shapes(config: str) -> Shapes:
    shapes: Shapes = _library(Path()).weight_shapes(config)
    return shapes


def _library(folder: Path) -> Any:
    """The module that imports transformers and PyTorch.

    Raises:
        InputError: One of them is not installed.
    """
    try:
        return import_module("pipelines.models.hf.torch_library")
    except ImportError as error:
        raise InputError(
            KEY,
            f"the model in {folder} is for transformers, which is not installed ({error})",
            'pip install "sentence-pipelines[transformers]" on the driver and every executor',
        ) from None
