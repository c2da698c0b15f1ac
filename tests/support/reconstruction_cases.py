"""Objectives that reconstruct texts, on given arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from steppers import IDS, VOCABULARY

from pipelines.catalog import LOSSES
from pipelines.lanes.files import Granule, Side
from pipelines.models.bert.spec import BertSpec
from pipelines.models.frameworks.torch import prepare
from pipelines.models.weights import Weights, weight_shapes
from pipelines.pretraining.start import generator
from pipelines.pretraining.torch_head import View
from pipelines.settings.objective import objective
from pipelines.tokens.vocabulary import SpecialIds

SPEC = BertSpec(
    vocabulary=VOCABULARY,
    layers=2,
    hidden=24,
    heads=3,
    intermediate=40,
    positions=16,
    normalise=False,
)
CLS, SEP, PAD = 2, 3, 0


def texts(examples: int = 5, width: int = 16, seed: int = 8) -> Side:
    """[CLS], words and [SEP], of several lengths; one of them is empty."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(5, width + 1, examples).astype(np.int32)
    lengths[0], lengths[1] = width, 2
    ids = generator.integers(5, VOCABULARY, (examples, width)).astype(np.int32)
    ids[:, 0] = CLS
    ids[np.arange(examples), lengths - 1] = SEP
    return Side(np.where(np.arange(width) < lengths[:, None], ids, PAD), lengths)


def lively(shapes: dict[str, tuple[int, ...]], seed: int) -> Weights:
    """Weights that are large enough to matter, none of them constant."""
    generator = np.random.default_rng(seed)
    return {
        name: (
            0.3 * generator.standard_normal(shape) + (1 if name.endswith("LayerNorm.weight") else 0)
        ).astype(np.float32)
        for name, shape in shapes.items()
    }


def weights_of(name: str, spec: BertSpec = SPEC) -> tuple[Weights, Weights]:
    """An encoder's, and those of an objective's own."""
    own = LOSSES.load(name).token_loss
    return lively(weight_shapes(spec), 1), lively(dict(own.shapes(spec)), 2)


def noised(
    name: str, side: Side, ids: SpecialIds = IDS, number: int = 3, **keys: Any
) -> dict[str, np.ndarray]:
    """What an objective makes of texts."""
    own = LOSSES.load(name).token_loss
    granule = Granule(number=number, groups=np.arange(len(side.lengths)), anchor=side)
    settings, draw = objective(name, **keys), generator(17, 0, number)
    return dict(own.inputs(granule, ["anchor"], ids, settings, draw, 16))


def loss_and_gradients(
    name: str,
    inputs: dict[str, np.ndarray],
    weights: Weights,
    own: Weights,
    spec: BertSpec = SPEC,
    precision: str = "fp32",
) -> tuple[float, Weights, Weights]:
    """Of an objective: its value, and its gradients at the encoder's weights and at its own."""
    leaves, owned = (
        {key: torch.tensor(value, requires_grad=True) for key, value in part.items()}
        for part in (weights, own)
    )
    loss = LOSSES.load(name)
    view = View(
        encoder=prepare(spec, leaves, precision),
        own=owned,
        dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[precision],
        dropout=0.0,
        seed=(1, 2),
        activation_checkpointing=False,
    )
    value = loss.form("torch")(view, inputs, objective(name))
    value.backward()
    return value.item(), *(
        {key: one.grad.to_dense().numpy() for key, one in part.items()} for part in (leaves, owned)
    )


def compare(label: str, found: float, expected: float, ours: Weights, theirs: Weights) -> None:
    """Fails unless values and gradients are equal; prints how far apart they are."""
    assert ours.keys() <= theirs.keys()
    apart = {name: float(np.abs(ours[name] - theirs[name]).max()) for name in ours}
    largest = max(float(np.abs(one).max()) for one in ours.values())
    told = f"{label} | {abs(found - expected):.1e} | {max(apart.values()):.1e} of {largest:.1e}"
    print(f"\n| {told} |", end="")
    assert abs(found - expected) < 1e-5 * max(1, abs(expected)), told
    worst = max(apart, key=lambda name: apart[name])
    assert apart[worst] < 1e-5 * max(1, largest), f"{told}: {worst}"
    assert largest > 1e-3, "there is something to compare"
