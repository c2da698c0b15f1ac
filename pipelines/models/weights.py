"""Weights by canonical names, and their division between the workers that hold an encoder.

Weights are numpy arrays in fp32, by the names of Hugging Face's BERT without prefix. The
architecture determines an encoder's weights. If it can be divided, its :class:`Division` gives, by
the names of weights, the layers and the axes of the division. Each worker's part follows from it,
for any library.

Query, key, value and the wide layer of a transformer are divided by rows, the layers after them by
columns, the words by rows; source: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter
Language Models Using Model Parallelism", 2019, arXiv:1909.08053.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from safetensors.numpy import load_file, safe_open

from pipelines.errors import InputError
from pipelines.models.architecture import Division, Shapes, architecture_of
from pipelines.models.arrays import write_arrays
from pipelines.models.spec import EncoderSpec
from pipelines.settings import Config
from pipelines.settings.training import Place, Placement, layers_of_stage

Weights: TypeAlias = dict[str, np.ndarray]
Rows: TypeAlias = Callable[[int], slice]

WORDS = "embeddings.word_embeddings.weight"
"""The word embedding, which every encoder has."""
TERMS = "lsa.vectors"
"""The vectors of terms beside an encoder; see :mod:`pipelines.models.lsa`."""
WEIGHT_FILE = "model.safetensors"
INITIAL_DEVIATION = 0.02
"""Standard deviation of fresh matrices; source: BERT's `initializer_range`."""


def weight_shapes(spec: EncoderSpec) -> Shapes:
    """Return the shape of every weight, in canonical order; matrices are [out, in] as in torch."""
    shapes = architecture_of(spec).weight_shapes(spec)
    terms = {TERMS: (spec.vocabulary, spec.lsa)} if spec.lsa else {}
    return {**shapes, **dense_shapes(spec), **terms}


def dense_shapes(spec: EncoderSpec) -> Shapes:
    """Return shapes of the dense layers after pooling, the same in all architectures."""
    shapes: Shapes = {}
    width = spec.hidden
    for number, layer in enumerate(spec.dense):
        shapes[dense_name(number, "weight")] = (layer.width, width)
        if layer.bias:
            shapes[dense_name(number, "bias")] = (layer.width,)
        width = layer.width
    return shapes


def dense_name(number: int, part: str) -> str:
    """Return the name of `weight` or `bias` of a dense layer after pooling."""
    return f"dense.{number}.{part}"


def random_weights(spec: EncoderSpec, seed: int) -> Weights:
    """Return fresh weights; the same seed and spec give the same arrays on every machine."""
    return architecture_of(spec).random_weights(spec, seed)


def normal_weights(spec: EncoderSpec, seed: int) -> Weights:
    """Return fresh weights as BERT's: normal matrices, zero biases, layer norms of one."""
    weights = fresh_arrays(weight_shapes(spec), seed)
    # As in transformers: BERT's embedding of padding is zero.
    weights[WORDS][spec.pad_token_id] = 0.0
    return weights


def fresh_arrays(shapes: Shapes, *seed: int) -> Weights:
    """Return normal matrices, zero biases, and layer norms of one, drawn in the order of shapes.

    Names are as BERT's. The arrays depend only on the seed.
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
    """Raise a ValueError for the first missing or unknown weight, or a wrong shape or type."""
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
    """Write a safetensors file that torch and transformers read too."""
    write_arrays(path, weights)


def stored_shapes(path: Path) -> Shapes:
    """Return the shapes of a safetensors file's arrays, without reading the arrays."""
    with safe_open(str(path), framework="numpy") as file:
        # The file is no mapping.
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def load_weights(path: Path, rows: Rows | None = None) -> Weights:
    """Read a safetensors file; the arrays keep their type.

    ``rows`` maps an array's number of rows to a slice of them; an empty one leaves the array out.
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


def part_bounds(size: int, members: int, member: int) -> tuple[int, int]:
    """Return the bounds of a member's part of an axis; parts differ by one at most."""
    return size * member // members, size * (member + 1) // members


def part_of(array: np.ndarray, axis: int, placement: Placement, place: Place) -> np.ndarray:
    """Return a view of a member's part of a weight."""
    first, last = part_bounds(array.shape[axis], placement.members, place.member)
    return array[(slice(None),) * axis + (slice(first, last),)]


def part_shape(
    shape: Sequence[int], axis: int | None, members: int, member: int
) -> tuple[int, ...]:
    """Return the shape of a member's part of a weight; whole without an axis."""
    if axis is None:
        return tuple(shape)
    first, last = part_bounds(shape[axis], members, member)
    return (*shape[:axis], last - first, *shape[axis + 1 :])


def stage_of(division: Division, spec: EncoderSpec, name: str, placement: Placement) -> int:
    """Return a weight's stage; the last stage also holds the dense layers after pooling."""
    if name in dense_shapes(spec):
        return placement.stages - 1
    layer = division.layer_of(name)
    if layer is None:
        return 0
    stages = range(placement.stages)
    held = (layer in layers_of_stage(division.layers(spec), len(stages), stage) for stage in stages)
    return next(stage for stage, holds in zip(stages, held, strict=True) if holds)


def check_division(division: Division | None, spec: EncoderSpec, config: Config) -> None:
    """Refuse an unsupported division, by an InputError with key and remedy."""
    placement = config.training.placement
    if not placement.is_divided:
        return
    key = "training.model_parallel" if placement.members > 1 else "training.pipeline_parallel"
    if division is None:
        raise InputError(
            key,
            f"workers cannot divide an encoder of the architecture {spec.kind}",
            "Leave it at 1; `training.sharding: parameters` shards the weights of any encoder",
        )
    division.check(spec, key, config.training)
    _check_evenly(division.evenly(spec), placement.members)
    if placement.stages > 1:
        _check_stages(division, spec, placement.stages)


def _check_evenly(numbers: Mapping[str, int], members: int) -> None:
    largest = math.gcd(*numbers.values())
    fitting = [str(n) for n in range(1, largest + 1) if largest % n == 0]
    for name, number in numbers.items():
        if number % members:
            raise InputError(
                "training.model_parallel",
                f"{members} does not divide the {number} {name} of the encoder",
                f"Choose one of {', '.join(fitting)}; "
                "`training.sharding: parameters` takes any number",
            )


def _check_stages(division: Division, spec: EncoderSpec, stages: int) -> None:
    layers, why = division.layers(spec), division.check_stages(spec)
    if why is not None:
        raise InputError("training.pipeline_parallel", why, "Leave it at 1")
    if stages > layers:
        raise InputError(
            "training.pipeline_parallel",
            f"the encoder has {layers} layers for {stages} stages",
            f"Set it to at most {layers}",
        )
