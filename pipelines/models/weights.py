"""Weights: numpy arrays in fp32 by canonical names, those of Hugging Face's BERT without prefix.

What weights an encoder has is up to its architecture; see `weights.py` in the folder of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
from safetensors.numpy import load_file, safe_open

from pipelines.models.architecture import Shapes, architecture_of
from pipelines.models.arrays import write_arrays
from pipelines.models.spec import EncoderSpec

Weights: TypeAlias = dict[str, np.ndarray]
Rows: TypeAlias = Callable[[int], slice]

WORDS = "embeddings.word_embeddings.weight"
"""The word embedding, which every encoder has."""
TERMS = "lsa.vectors"
"""The vectors of terms that an encoder may have beside it; see :mod:`pipelines.models.lsa`."""
WEIGHT_FILE = "model.safetensors"
INITIAL_DEVIATION = 0.02
"""Standard deviation of fresh matrices; source: BERT's `initializer_range`."""


def weight_shapes(spec: EncoderSpec) -> Shapes:
    """Shape of every weight, in canonical order; matrices are [out, in] as in torch."""
    own = architecture_of(spec).weight_shapes(spec)
    return {**own, **dense_shapes(spec), **_term_shapes(spec)}


def dense_shapes(spec: EncoderSpec) -> Shapes:
    """Shapes of the dense layers behind pooling, the same in all architectures."""
    shapes: Shapes = {}
    width = spec.hidden
    for number, layer in enumerate(spec.dense):
        shapes[dense_name(number, "weight")] = (layer.width, width)
        if layer.bias:
            shapes[dense_name(number, "bias")] = (layer.width,)
        width = layer.width
    return shapes


def _term_shapes(spec: EncoderSpec) -> Shapes:
    """Shapes of the terms beside an encoder, if there are some."""
    if not spec.lsa:
        return {}
    return {TERMS: (spec.vocabulary, spec.lsa)}


def dense_name(number: int, part: str) -> str:
    """Name of `weight` or `bias` of a dense layer behind pooling."""
    return f"dense.{number}.{part}"


def random_weights(spec: EncoderSpec, seed: int) -> Weights:
    """Fresh weights; the same seed and spec give the same arrays on every machine."""
    return architecture_of(spec).random_weights(spec, seed)


def normal_weights(spec: EncoderSpec, seed: int) -> Weights:
    """Fresh weights as BERT begins: normal matrices, zero biases, layer norms of one."""
    weights = fresh_arrays(weight_shapes(spec), seed)
    weights[WORDS][spec.pad_token_id] = 0.0
    return weights


def fresh_arrays(shapes: Shapes, *seed: int) -> Weights:
    """Normal matrices, zero biases, and layer norms of one, in the order of their shapes.

    Args:
        shapes: By name, as BERT's weights are called.
        seed: One number or more; the arrays follow from them alone.
    """
    # Philox is specified to the bit, so the numbers depend on neither the machine nor the release.
    generator = np.random.Generator(np.random.Philox(seed if len(seed) > 1 else seed[0]))
    weights: Weights = {}
    for name, shape in shapes.items():
        if name.endswith("LayerNorm.weight"):
            weights[name] = np.ones(shape, np.float32)
        elif name.endswith(".bias"):
            weights[name] = np.zeros(shape, np.float32)
        else:
            values = generator.standard_normal(shape, dtype=np.float32)
            weights[name] = values * np.float32(INITIAL_DEVIATION)
    return weights


def check_weights(spec: EncoderSpec, weights: Mapping[str, np.ndarray]) -> None:
    """Makes sure that the weights are those of the spec, whole and in fp32.

    Raises:
        ValueError: Naming the first weight that is missing, too many, or of a wrong shape.
    """
    shapes = weight_shapes(spec)
    for name, shape in shapes.items():
        if name not in weights:
            raise ValueError(f"the weight {name} is missing")
        found = weights[name]
        if found.shape != shape or found.dtype != np.float32:
            raise ValueError(
                f"the weight {name} is {found.dtype}{list(found.shape)}, not float32{list(shape)}"
            )
    unknown = sorted(set(weights) - set(shapes))
    if unknown:
        raise ValueError(f"the weight {unknown[0]} is not one of this encoder")


def save_weights(path: Path, weights: Mapping[str, np.ndarray]) -> None:
    """Writes a safetensors file that torch and transformers read too."""
    write_arrays(path, weights)


def stored_shapes(path: Path) -> Shapes:
    """Reads the shapes of the arrays of a safetensors file, and none of the arrays."""
    with safe_open(str(path), framework="numpy") as file:
        # The file is no mapping.
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def load_weights(path: Path, rows: Rows | None = None) -> Weights:
    """Reads a safetensors file; the arrays keep their type.

    Args:
        path: The file.
        rows: The rows that are wanted of an array, by how many it has; no others are read, and
            arrays of which there are none are left out.
    """
    if rows is None:
        return dict(load_file(str(path)))
    weights = {}
    with safe_open(str(path), framework="numpy") as file:
        for name in file.keys():  # noqa: SIM118 - the file is no mapping
            array = file.get_slice(name)
            wanted = rows(array.get_shape()[0])
            if wanted.start < wanted.stop:
                weights[name] = array[wanted]
    return weights
