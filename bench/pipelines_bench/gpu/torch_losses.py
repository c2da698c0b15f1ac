"""Every loss on a device, against the CPU: its value, and its gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from pipelines.catalog import LOSSES
from pipelines.lanes.files import Granule
from pipelines.losses.candidates import granule_targets
from pipelines.losses.loss import LABELS, Loss, configured_loss
from pipelines.settings.objective import objective
from pipelines.training.steppers.torch import gradients_of_loss
from pipelines_bench.gpu.checks import Finding, Place
from pipelines_bench.gpu.torch_encoders import EXACT, GRADIENTS
from pipelines_bench.gpu.torch_samples import PAIR, WIDTH, granule, on_host, same

SEVERAL = (*PAIR, "negative_0", "negative_1")
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "in_batch_negatives, hard": {"name": "in_batch_negatives", "hardness_strength": 2.0},
    "in_batch_negatives, guided": {
        "name": "in_batch_negatives",
        "guide": "teacher",
        "false_negative_margin": 0.1,
    },
    "in_batch_negatives, cut": {"name": "in_batch_negatives", "dimensions": [24, 8]},
}
"""Further settings of losses that take other paths."""


def losses(place: Place) -> Finding:
    """All that compare embeddings; those that write texts out again are among the steps."""
    comparing = [name for name in LOSSES if LOSSES.load(name).token_loss is None]
    apart = {}
    for label, keys in {**{name: {"name": name} for name in comparing}, **VARIANTS}.items():
        apart[label] = _compared(place, label, dict(keys))
    worst = max(apart, key=lambda label: apart[label])
    return Finding(f"{len(apart)} losses, {worst} is {apart[worst]:.1e} apart")


def _compared(place: Place, label: str, keys: dict[str, Any]) -> float:
    loss = LOSSES.load(keys["name"])
    settings = objective(keys.pop("name"), **keys)
    sides = _sides(loss)
    targets = granule_targets(settings, _labelled(loss, granule(3, SEVERAL)), sides)
    generator = np.random.default_rng(5)
    vectors = generator.normal(size=(len(sides), 8, WIDTH)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    results: list[tuple[np.ndarray, np.ndarray]] = []
    for device in ("cpu", place.device):
        own = [torch.tensor(side, device=device) for side in vectors]
        value, pulls = gradients_of_loss(configured_loss(settings, "torch"), own, targets, 1.0)
        results.append((on_host(value), on_host(torch.stack(pulls))))
    (expected, expected_pulls), (found, found_pulls) = results
    same(f"{label}, value", found, expected, EXACT)
    return same(f"{label}, gradients", found_pulls, expected_pulls, GRADIENTS)


def _sides(loss: Loss) -> tuple[str, ...]:
    """Those of a granule with hard negatives that a loss embeds, in its order."""
    named = {"anchor": PAIR[:1], "positive": PAIR[1:], "negative": SEVERAL[2:]}
    return tuple(side for name in loss.sides for side in named[name])


def _labelled(loss: Loss, one: Granule) -> Granule:
    """A granule whose scores are what a loss needs."""
    if not loss.labels:
        return one
    assert one.scores is not None, f"{LABELS} are there"
    return replace(one, scores=(one.scores > 0.5).astype(np.float32))
