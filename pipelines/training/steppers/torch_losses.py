"""Losses of embeddings in PyTorch, and their gradients. Runs on executors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from pipelines.losses.candidates import Picks
from pipelines.losses.targets import Targets
from pipelines.models.frameworks.torch_batch import to_device


def on_device(targets: Targets, device: torch.device) -> Any:
    """What a loss compares with, as tensors."""
    if isinstance(targets, Picks):
        guide = [to_device(vectors, device) for vectors in targets.guide]
        return Picks(to_device(targets.own, device), to_device(targets.excluded, device), guide)
    if isinstance(targets, list):
        return [to_device(vectors, device) for vectors in targets]
    # A copy: the array may be a part of a lane file, which a tensor could write to.
    return to_device(np.array(targets), device)


def gradients_of_loss(
    loss_of: Callable[[Sequence[torch.Tensor], Any], torch.Tensor],
    sides: Sequence[torch.Tensor],
    targets: Targets,
    share: float,
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """A loss times a share, and its gradients; see :data:`.step_negatives.GradientsOf`."""
    leaves = [side.detach().requires_grad_() for side in sides]
    loss = loss_of(leaves, on_device(targets, sides[0].device)) * share
    return loss.detach(), torch.autograd.grad(loss, leaves)


def pulled_loss(sides: Sequence[torch.Tensor], pulls: Sequence[torch.Tensor]) -> torch.Tensor:
    """A number whose gradients on the embeddings of sides are given ones."""
    return torch.stack([(side * pull).sum() for side, pull in zip(sides, pulls, strict=True)]).sum()
