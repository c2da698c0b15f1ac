"""The shape of an encoder that `transformers` computes.

How models of `transformers` are divided between workers; see :mod:`pipelines.models.weights`.

By the library's own plan of a model type, which names the matrices that are divided by their rows
and those by their columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, ClassVar, NoReturn

from pipelines.errors import InputError
from pipelines.models.adaptation import layer_of
from pipelines.models.architecture import Division, Lengths
from pipelines.models.spec import DropoutRates, EncoderSpec, Pooling
from pipelines.settings import EncoderSettings, TrainingSettings

_OF_A_FILE = (
    "_name_or_path",
    "architectures",
    "auto_map",
    "dtype",
    "torch_dtype",
    "transformers_version",
)
"""What config.json says of the checkpoint that it came with, and not of the model's shape."""


@dataclass(frozen=True, kw_only=True)
class HfSpec(EncoderSpec):
    """An encoder, or a decoder that is used as one, of the library `transformers`.

    Attributes:
        config: Its config.json, as JSON text with sorted keys.
        pooling: How hidden states become an embedding.
        largest_dropout: The largest share that it was made to be trained without, anywhere in it.
    """

    kind: ClassVar[str] = "hf"

    config: str
    pooling: Pooling = "mean"
    largest_dropout: float = 0.0

    @property
    def own_dropout(self) -> DropoutRates | None:
        """What it was made to be trained with; None without dropout."""
        share = self.largest_dropout
        return DropoutRates(share, share, own=True) if share else None

    @property
    def described_config(self) -> Mapping[str, Any]:
        """The config.json, as a mapping."""
        config: Mapping[str, Any] = json.loads(self.config)
        return config


def config_text(config: Mapping[str, Any]) -> str:
    """The text of a config.json by which equal models have equal specs."""
    return json.dumps({key: config[key] for key in sorted(config) if key not in _OF_A_FILE})


def refuse_random(encoder: EncoderSettings) -> None:
    """Refuses a random start: settings of ours do not describe these models.

    Raises:
        InputError: With the key ``encoder.kind``.
    """
    if encoder.start == "random":
        _refuse_random()


def shape(encoder: EncoderSettings) -> NoReturn:
    """There is none of a random start."""
    _refuse_random()


def random_lengths(training_length: int | None) -> Lengths:
    """There are none of a random start."""
    _refuse_random()


def random_weights(spec: HfSpec, seed: int) -> NoReturn:
    """There are none."""
    _refuse_random()


def described(spec: HfSpec) -> str:
    """For the model card."""
    return f"of the type {spec.described_config['model_type']} with layers of {spec.hidden}"


def described_settings(encoder: EncoderSettings) -> str:
    """For the report of a run."""
    return "a model of transformers"


def _refuse_random() -> NoReturn:
    raise InputError(
        "encoder.kind",
        "`hf` starts from a checkpoint only",
        "name its folder in encoder.start, or encoder.kind: bert",
    )


def _axes(spec: HfSpec) -> Mapping[str, int]:
    return _axes_of(spec.config)


@lru_cache(maxsize=8)
def _axes_of(config: str) -> Mapping[str, int]:
    axes: Mapping[str, int] = _library().division_axes(config)
    return axes


def _evenly(spec: HfSpec) -> Mapping[str, int]:
    numbers: Mapping[str, int] = _library().divided_numbers(spec.config)
    return numbers


def _layers(spec: HfSpec) -> int:
    return 1 + max(number for number in map(layer_of, _axes(spec)) if number is not None)


def _check(spec: HfSpec, key: str, training: TrainingSettings) -> None:
    if (why := _library().why_undivided(spec.config)) is not None:
        raise InputError(
            key,
            why,
            "leave it 1; training.sharding: parameters shares out the weights of any encoder",
        )
    if spec.dropout(training.dropout) is not None:
        raise InputError(
            key,
            "transformers draws dropout, which would not be that of a whole model",
            "leave it 1, or training.dropout: 0",
        )


def _library() -> Any:
    """The module that imports transformers and PyTorch."""
    return import_module("pipelines.models.hf.torch_library")


DIVISION = Division(
    axes=_axes,
    evenly=_evenly,
    layers=_layers,
    layer_of=layer_of,
    check=_check,
    check_stages=lambda spec: "transformers runs all layers of a model",
)
