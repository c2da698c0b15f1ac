"""Tiny encoders of every architecture, texts and granules for them, and how results compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from pipelines.catalog import ARCHITECTURES
from pipelines.lanes.files import Granule, Side
from pipelines.models.bert.spec import BertSpec
from pipelines.models.spec import Dense, EncoderSpec
from pipelines.models.weights import Weights, random_weights

VOCABULARY = 500
POSITIONS = 256
PAIR = ("anchor", "positive")
WIDTH = 24
"""Of a teacher's vectors."""
_LIVELY = 5.0
"""Fresh matrices are so small that attention would be the same everywhere."""
_TRANSFORMER = {
    "vocabulary": VOCABULARY,
    "layers": 2,
    "hidden": 64,
    "heads": 4,
    "intermediate": 128,
    "positions": POSITIONS,
}
_LEAST_SCALE = 0.02
"""Over the largest number of all arrays, of what one of them is held against."""
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "bert": _TRANSFORMER | {"dense": (Dense(width=48),)},
    "roberta": _TRANSFORMER,
    "distilbert": _TRANSFORMER,
    "electra": _TRANSFORMER | {"embedding_size": 32},
    "mpnet": _TRANSFORMER,
    "static": {"vocabulary": VOCABULARY, "hidden": 64},
}
"""By architecture, what is told of its spec."""


def tiny(kind: str, **changes: Any) -> tuple[EncoderSpec, Weights]:
    """A small encoder of an architecture, whose weights are large enough to matter."""
    spec: EncoderSpec = ARCHITECTURES.load(kind).spec(**{**SHAPES[kind], **changes})
    return spec, lively(random_weights(spec, 2))


def lively(weights: Weights) -> Weights:
    """The same with larger matrices."""
    return {name: value * _LIVELY if value.ndim == 2 else value for name, value in weights.items()}


def step_spec() -> BertSpec:
    """The encoder that steps are made with: one layer, so that they take milliseconds."""
    return BertSpec(
        vocabulary=VOCABULARY, layers=1, hidden=32, heads=2, intermediate=64, positions=POSITIONS
    )


def texts(lengths: Sequence[int], seed: int = 1, padding: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Token ids [texts, longest] of some lengths, and the lengths."""
    several = np.array(lengths, np.int32)
    ids = np.random.default_rng(seed).integers(
        5, VOCABULARY, (len(several), int(several.max())), np.int32
    )
    ids[np.arange(ids.shape[1]) >= several[:, None]] = padding
    return ids, several


def granule(
    number: int,
    sides: Sequence[str] = PAIR,
    examples: int = 8,
    longest: int = 12,
    vocabulary: int = VOCABULARY,
) -> Granule:
    """Of random texts with all that a loss may ask for; some are equal, as in a corpus."""
    generator = np.random.default_rng(number)
    several: dict[str, Side] = {}
    for name in sides:
        lengths = generator.integers(3, longest + 1, examples).astype(np.int32)
        ids = generator.integers(5, vocabulary, (examples, longest)).astype(np.int32)
        lengths[1], ids[1] = 4, 7
        several[name] = Side(ids * (np.arange(longest) < lengths[:, None]), lengths)
    vectors = generator.normal(size=(len(sides), examples, WIDTH)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    return Granule(
        number=number,
        groups=np.arange(examples) + (number % 2) * 2**62,
        scores=generator.random(examples).astype(np.float32),
        candidate_scores=generator.random((examples, len(sides) - 1)).astype(np.float32),
        teacher=dict(zip(sides, vectors, strict=True)),
        negatives=tuple(side for name, side in several.items() if name not in PAIR),
        **{name: side for name, side in several.items() if name in PAIR},
    )


def tensors(weights: Weights, device: str, *, gradients: bool = False) -> dict[str, torch.Tensor]:
    """Weights on a device, as a stepper holds them."""
    return {
        name: torch.tensor(value, device=device, requires_grad=gradients)
        for name, value in weights.items()
    }


def difference(found: np.ndarray, expected: np.ndarray, least: float = 0.0) -> float:
    """The largest difference, over the largest number that was expected, or the least scale."""
    scale = max(float(np.abs(expected).max(initial=0.0)), least)
    largest = float(np.abs(found - expected).max(initial=0.0))
    return largest / scale if scale else largest


def same(
    what: str, found: np.ndarray, expected: np.ndarray, tolerance: float, least: float = 0.0
) -> float:
    """Holds arrays against one another; gives their :func:`difference`.

    Raises:
        AssertionError: They differ by more, or in shape, or are not finite.
    """
    if found.shape != expected.shape:
        raise AssertionError(f"{what}: {found.shape} instead of {expected.shape}")
    if not np.isfinite(found).all():
        raise AssertionError(f"{what}: not all numbers are finite")
    apart = difference(found, expected, least)
    if apart > tolerance:
        raise AssertionError(f"{what}: {apart:.2g} apart, more than {tolerance:.2g}")
    return apart


def all_same(
    what: str, found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], tolerance: float
) -> float:
    """The same of several arrays by name; gives the largest difference."""
    if found.keys() != expected.keys():
        raise AssertionError(f"{what}: {sorted(found)} instead of {sorted(expected)}")
    # What is zero but for rounding, or nearly so, is held against the others.
    least = _LEAST_SCALE * max(float(np.abs(one).max(initial=0.0)) for one in expected.values())
    return max(
        same(f"{what}, {name}", found[name], one, tolerance, least)
        for name, one in expected.items()
    )


def cosine(found: np.ndarray, expected: np.ndarray) -> float:
    """Between two arrays as vectors."""
    left, right = found.ravel().astype(np.float64), expected.ravel().astype(np.float64)
    return float(left @ right / (np.linalg.norm(left) * np.linalg.norm(right)))


def on_host(tensor: torch.Tensor) -> np.ndarray:
    """A copy as an array."""
    array: np.ndarray = tensor.detach().float().cpu().numpy()
    return array


def gradients_of(
    function: Callable[[Mapping[str, torch.Tensor]], torch.Tensor], weights: Weights, device: str
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """What a function of the weights gives on a device, and the gradients of its sum.

    The sum is one in which each number has a weight of its own, so that none can be exchanged.
    """
    leaves = tensors(weights, device, gradients=True)
    result = function(leaves)
    direction = torch.linspace(0.5, 1.5, result.numel(), device=device).view_as(result)
    (result * direction).sum().backward()
    found = {
        name: on_host(leaf.grad.to_dense() if leaf.grad.is_sparse else leaf.grad)
        for name, leaf in leaves.items()
        if leaf.grad is not None
    }
    return on_host(result), found
