"""Texts of micro-batches as PyTorch's encoders take them. Runs on executors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipelines.models.frameworks.torch_batch import Batch
from pipelines.models.frameworks.torch_dropout import dropout_masks
from pipelines.models.frameworks.torch_sharding import Inputs
from pipelines.models.spec import EncoderSpec
from pipelines.settings import TrainingSettings
from pipelines.training.steppers.micro_batches import Texts


def device_inputs(
    sides: Sequence[Texts], spec: EncoderSpec, training: TrainingSettings, device: torch.device
) -> list[Inputs]:
    """The sides of a micro-batch, and their dropout, on the device."""
    return [
        Inputs(
            Batch.of(side.token_ids, side.lengths, device),
            dropout_masks(spec, training.dropout, side.seed, device),
        )
        for side in sides
    ]
