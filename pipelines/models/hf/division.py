"""How models of `transformers` are divided between workers; see :mod:`pipelines.models.division`.

By the library's own plan of a model type, which names the matrices that are divided by their rows
and those by their columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any

from pipelines.errors import InputError
from pipelines.models.adaptation import layer_of
from pipelines.models.architecture import Division
from pipelines.models.hf.spec import HfSpec
from pipelines.settings import TrainingSettings


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
    return import_module("pipelines.models.hf.torch_plan")


DIVISION = Division(
    axes=_axes,
    evenly=_evenly,
    layers=_layers,
    layer_of=layer_of,
    check=_check,
    check_stages=lambda spec: "transformers runs all layers of a model",
)
