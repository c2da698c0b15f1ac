"""The shape of an encoder that `transformers` computes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from pipelines.errors import InputError
from pipelines.models.architecture import Lengths
from pipelines.models.spec import DropoutRates, EncoderSpec, Pooling
from pipelines.settings import EncoderSettings

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
