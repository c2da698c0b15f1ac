"""Encoders of the library `transformers`: their shape, their folders, and their division.

The library's plan for a model's type divides it: some matrices by rows, others by columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np

from pipelines.errors import InputError
from pipelines.files import records, storage
from pipelines.models.adaptation import layer_of
from pipelines.models.architecture import (
    Architecture,
    Division,
    FolderFormat,
    Lengths,
    Modules,
    Shapes,
)
from pipelines.models.sentence_modules import (
    CONFIG_FILE,
    KEY,
    read_head,
    stored_length,
    transformer_home,
    whole_weights,
    write_head,
)
from pipelines.models.spec import UNLIMITED, DropoutRates, EncoderSpec, Pooling
from pipelines.models.weights import Weights
from pipelines.settings import EncoderSettings, TrainingSettings
from pipelines.tokens.model_files import TRANSFORMER
from pipelines.tokens.start import read_prompts
from pipelines.tokens.vocabulary import copy_tokenizer

_OF_A_FILE = (
    "_name_or_path",
    "architectures",
    "auto_map",
    "dtype",
    "torch_dtype",
    "transformers_version",
)
"""Keys of config.json that describe the checkpoint and not the model's shape."""
_ROPE, _THETA, _SCALING = "rope_parameters", "rope_theta", "rope_scaling"
_PARTIAL = "partial_rotary_factor"
_ROPE_OF_LAYERS: Mapping[str, tuple[str, str]] = {
    "modernbert": ("global_rope_theta", "local_rope_theta"),
    "gemma3_text": (_THETA, "rope_local_base_freq"),
}
"""Earlier keys of the rotary positions in layers of full and of sliding attention, by type."""


@dataclass(frozen=True, kw_only=True)
class HfSpec(EncoderSpec):
    """An encoder of `transformers`, or a decoder used as one.

    Its config.json is JSON text with sorted keys. ``largest_dropout`` is the largest of its own
    dropout at any place.
    """

    kind: ClassVar[str] = "hf"

    config: str
    pooling: Pooling = "mean"
    largest_dropout: float = 0.0

    @property
    def own_dropout(self) -> DropoutRates | None:
        """The encoder's own dropout in training; None without."""
        share = self.largest_dropout
        return DropoutRates(share, share, own=True) if share else None

    @property
    def described_config(self) -> Mapping[str, Any]:
        """The config.json, as a mapping."""
        config: Mapping[str, Any] = json.loads(self.config)
        return config


def config_text(config: Mapping[str, Any]) -> str:
    """Return the text of a config.json; equal models have equal texts."""
    repeated = earlier_rope(config)
    kept = {
        key: config[key]
        for key in sorted(config)
        if key not in _OF_A_FILE and (key not in repeated or config[key] != repeated[key])
    }
    return json.dumps(kept)


def earlier_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of rotary positions by the keys of `transformers` before release 5.

    Those releases overlook the newer key, and compute with defaults. Empty without that key.
    """
    found = config.get(_ROPE)
    if not isinstance(found, Mapping):
        return {}
    if _THETA in found:
        return _earlier_keys(found, _THETA)
    full, sliding = (found.get(f"{kind}_attention") for kind in ("full", "sliding"))
    names = _ROPE_OF_LAYERS.get(str(config.get("model_type")))
    if names is None or not isinstance(full, Mapping) or not isinstance(sliding, Mapping):
        return {}
    if _THETA not in full or _THETA not in sliding:
        return {}
    return _earlier_keys(full, names[0]) | {names[1]: sliding[_THETA]}


def _earlier_keys(found: Mapping[str, Any], theta: str) -> dict[str, Any]:
    keys = {theta: found[_THETA]}
    if _PARTIAL in found:
        keys[_PARTIAL] = found[_PARTIAL]
    if found.get("rope_type", "default") != "default":
        keys[_SCALING] = {
            key: value for key, value in found.items() if key not in (_THETA, _PARTIAL)
        }
    return keys


def recognises(folder: Path, modules: Modules) -> bool:
    """Return whether a folder holds a transformer with a type in config.json."""
    if modules and modules[0][0] != TRANSFORMER:
        return False
    path = (folder / modules[0][1] if modules else folder) / CONFIG_FILE
    return path.is_file() and isinstance(records.read_object(path).get("model_type"), str)


def read(folder: Path, modules: Modules) -> tuple[HfSpec, Weights]:
    """Read a checkpoint by the library, with the modules around it.

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
        max_length=stored_length(home, shape.positions or UNLIMITED),
        prompts=read_prompts(folder),
        **read_head(folder, modules),
    )
    return spec, whole_weights(folder, modules, spec, library.read_weights(home, spec))


def write(
    folder: Path, spec: HfSpec, weights: Mapping[str, np.ndarray], tokenizer_folder: Path
) -> list[tuple[str, str]]:
    """Write the transformer and the modules after it; return class and path of each."""
    architecture = _library(folder).write_weights(folder, spec, weights)
    config = spec.described_config
    storage.write_json(
        folder / CONFIG_FILE,
        {**earlier_rope(config), **config, "architectures": [architecture]}
        | {"torch_dtype": "float32"},
    )
    copy_tokenizer(tokenizer_folder, folder, spec.max_length)
    return write_head(folder, spec, spec.pooling, weights)


def lengths(folder: Path, modules: Modules) -> Lengths:
    """Return the length of the model in a folder, and its positions."""
    home = transformer_home(folder, modules)
    config = records.read_object(home / CONFIG_FILE)
    positions = _library(folder).read_shape(home, config).positions or UNLIMITED
    return Lengths(stored_length(home, positions), positions)


def weight_shapes(spec: HfSpec) -> Shapes:
    """Return the shapes of the weights that an embedding depends on, the word embedding first."""
    return dict(_of_library("weight_shapes", spec.config))


def division_axes(spec: HfSpec) -> Mapping[str, int]:
    """Return the axis of each divided weight."""
    axes: Mapping[str, int] = _of_library("division_axes", spec.config)
    return axes


# Each of these functions builds a model of the library.
@lru_cache(maxsize=16)
def _of_library(function: str, config: str) -> Any:
    """Return the cached result of a function of the library's module for a config.json."""
    return getattr(_library(), function)(config)


def _library(folder: Path = Path()) -> Any:
    """Import the module that needs transformers and PyTorch, for the model in a folder."""
    try:
        return import_module("pipelines.models.hf.torch_library")
    except ImportError as error:
        raise InputError(
            KEY,
            f"the model in {folder} needs transformers, which is not installed ({error})",
            'Run `pip install "sentence-pipelines[transformers]"` on the driver and every executor',
        ) from None


def _refuse_random(*unused: Any) -> NoReturn:
    """Refuse a random start: this package's settings do not describe these models."""
    raise InputError(
        "encoder.kind",
        "`hf` starts from a checkpoint only",
        "Name its folder in encoder.start, or set encoder.kind to bert",
    )


def _check_settings(encoder: EncoderSettings) -> None:
    if encoder.start == "random":
        _refuse_random()


def _check_division(spec: HfSpec, key: str, training: TrainingSettings) -> None:
    if (why := _library().why_undivided(spec.config)) is not None:
        raise InputError(
            key,
            why,
            "Leave it at 1; `training.sharding: parameters` shards the weights of any encoder",
        )
    if spec.dropout(training.dropout) is not None:
        raise InputError(
            key,
            "transformers draws dropout itself, and a divided model would get other masks",
            "Leave it at 1, or set training.dropout to 0",
        )


# Functions, and no values: only a divided training has to import the library.
DIVISION = Division(
    axes=division_axes,
    evenly=lambda spec: _library().divided_numbers(spec.config),
    layers=lambda spec: 1 + max(n for n in map(layer_of, division_axes(spec)) if n is not None),
    layer_of=layer_of,
    check=_check_division,
    check_stages=lambda spec: "transformers runs all layers of a model",
)

HF = Architecture(
    spec=HfSpec,
    models="ModernBERT, GTE, Nomic, Qwen3, Gemma, Llama and what else transformers itself knows",
    check_settings=_check_settings,
    shape=_refuse_random,
    random_lengths=_refuse_random,
    weight_shapes=weight_shapes,
    random_weights=_refuse_random,
    folder=FolderFormat(recognises=recognises, read=read, write=write, lengths=lengths),
    described=lambda spec: (
        f"of the type {spec.described_config['model_type']} with layers of {spec.hidden}"
    ),
    described_settings=lambda encoder: "a model of transformers",
    forms={
        "torch": "pipelines.models.hf.torch:HfEncoder",
        "torch_module": "pipelines.models.hf.torch:hf_module",
    },
    division=DIVISION,
    token_losses=("tokens",),
)
