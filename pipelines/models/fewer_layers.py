"""A smaller encoder that begins with some of the layers of a larger one.

Source: Sanh, Debut, Chaumond and Wolf, "DistilBERT, a distilled version of BERT", 2019,
arXiv:1910.01108, section 3, whose student takes one layer of two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from pipelines.errors import InputError
from pipelines.models.bert.spec import BertSpec
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import Weights

KEY = "encoder.keep_layers"

_LAYER = re.compile(r"^encoder\.layer\.(\d+)\.")


def chosen_layers(layers: int, count: int) -> list[int]:
    """The numbers of some layers, evenly spaced, with the first and the last among them.

    One alone is the last, whose hidden states are pooled.
    """
    if count == 1:
        return [layers - 1]
    return [round(number * (layers - 1) / (count - 1)) for number in range(count)]


def with_layers(
    spec: EncoderSpec, weights: Mapping[str, np.ndarray], count: int
) -> tuple[EncoderSpec, Weights]:
    """The encoder without the layers that :func:`chosen_layers` leaves out.

    Args:
        spec: The shape.
        weights: In canonical names and order.
        count: Layers to keep, at least 1.

    Raises:
        InputError: See :func:`with_fewer_layers`.
    """
    whole = _layered(spec, count)
    places = {layer: place for place, layer in enumerate(chosen_layers(whole.layers, count))}
    kept = {}
    for name, value in weights.items():
        found = _LAYER.match(name)
        if found is None:
            kept[name] = value
        elif (layer := int(found[1])) in places:
            kept[f"encoder.layer.{places[layer]}.{name[found.end() :]}"] = value
    return replace(whole, layers=count), kept


def with_fewer_layers(spec: EncoderSpec, count: int) -> BertSpec:
    """The shape of the encoder that keeps so many layers.

    Raises:
        InputError: It has no layers that could be left out, or fewer.
    """
    return replace(_layered(spec, count), layers=count)


def _layered(spec: EncoderSpec, count: int) -> BertSpec:
    """The encoder's shape, if it has so many layers."""
    if not isinstance(spec, BertSpec):
        raise InputError(KEY, f"architecture {spec.kind} keeps all it has", "leave it out")
    if count > spec.layers:
        raise InputError(KEY, f"the start has {spec.layers} layers", f"at most {spec.layers}")
    return spec
