"""What Orca's Estimator is given, which it calls in its workers. Runs on executors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from bigdl.orca.learn.pytorch.callbacks import Callback
from torch.nn import functional

from pipelines.files.prepared_folder import PreparedFolder
from pipelines.lanes.files import LaneManifest
from pipelines.losses.in_batch_negatives import InBatchNegativesSettings
from pipelines.models.folder import start_encoder
from pipelines.models.frameworks.torch import embed, prepare
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import Weights
from pipelines.settings import Config
from pipelines_bench.peers.lines import StepLines
from pipelines_bench.peers.pairs import PADDING, Pair, padded, random_pairs

Settings = Mapping[str, Config]
"""Orca's `config`, which holds the settings of the training as `settings`."""


class PairEncoder(torch.nn.Module):  # type: ignore[misc] # torch is not followed
    """Embeds both texts of each pair: int32 [pairs, 2, width] to two of fp32 [pairs, embedding].

    Args:
        spec: Of the encoder.
        weights: To begin with.
        precision: Of the matrix products.
        dropout: As ``training.dropout`` has it.
    """

    def __init__(
        self, spec: EncoderSpec, weights: Weights, precision: str, dropout: float | None
    ) -> None:
        super().__init__()
        self._spec, self._precision, self._dropout = spec, precision, dropout
        self._names = {name: name.replace(".", "/") for name in weights}
        for name, own in self._names.items():
            # PyTorch allows no dots in the name of a parameter.
            self.register_parameter(own, torch.nn.Parameter(torch.from_numpy(weights[name].copy())))

    def forward(self, texts: torch.Tensor) -> Sequence[torch.Tensor]:
        """Embeddings of length 1, of the anchors and of their positives."""
        weights = {name: self.get_parameter(own) for name, own in self._names.items()}
        encoder = prepare(self._spec, weights, self._precision)
        flat = texts.flatten(0, 1)
        embeddings = embed(
            encoder,
            flat.clamp(min=0).numpy(),
            (flat != PADDING).sum(-1, dtype=torch.int32).numpy(),
            dropout=self._dropout if self.training else 0.0,
            seed=torch.randint(2**31 - 1, (2,)).tolist(),
        )
        pairs = functional.normalize(embeddings, dim=-1).unflatten(0, (-1, 2))
        anchors, positives = pairs.unbind(1)
        return anchors, positives


class InBatchLoss(torch.nn.Module):  # type: ignore[misc] # torch is not followed
    """Each anchor picks its positive among those of its granule, by scaled cosines.

    Args:
        granule: Examples of one.
        scale: Of the cosines.
    """

    def __init__(self, granule: int, scale: float) -> None:
        super().__init__()
        self._granule, self._scale = granule, scale

    def forward(
        self, anchors: torch.Tensor, positives: torch.Tensor, own: torch.Tensor
    ) -> torch.Tensor:
        """The mean cross-entropy; ``own`` is the place of each positive in its granule."""
        anchors, positives = (
            side.unflatten(0, (-1, self._granule)) for side in (anchors, positives)
        )
        logits = self._scale * anchors @ positives.transpose(1, 2)
        return functional.cross_entropy(logits.flatten(0, 1), own)


def model_creator(config: Settings) -> torch.nn.Module:
    """The start encoder."""
    training = config["settings"].training
    spec, weights = start_encoder(config["settings"], _manifest(config).vocabulary)
    return PairEncoder(spec, weights, training.precision, training.dropout)


def optimizer_creator(model: torch.nn.Module, config: Settings) -> torch.optim.Optimizer:
    """AdamW."""
    training = config["settings"].training
    return torch.optim.AdamW(
        model.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay
    )


def loss_creator(config: Settings) -> torch.nn.Module:
    """The in-batch loss."""
    objective = config["settings"].objective
    assert isinstance(objective, InBatchNegativesSettings), "peers train nothing else"
    return InBatchLoss(_manifest(config).granule, 1 / objective.temperature)


def train_loader_creator(config: Settings, batch_size: int) -> torch.utils.data.DataLoader:
    """Random batches of the pairs, of which Orca has each worker see a part.

    Args:
        config: Orca's.
        batch_size: Of a worker.
    """
    settings, manifest = config["settings"], _manifest(config)
    workers, steps = settings.training.workers, settings.training.max_steps or 1
    pairs = random_pairs(settings, steps * batch_size * workers)
    places = torch.arange(batch_size) % manifest.granule

    def collated(batch: Sequence[Pair]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(padded(batch)), places

    return torch.utils.data.DataLoader(
        pairs,  # type: ignore[arg-type] # a list is a data set
        batch_size=batch_size,
        shuffle=True,
        collate_fn=collated,
        drop_last=True,
    )


def _manifest(config: Settings) -> LaneManifest:
    return LaneManifest.load(PreparedFolder.of(config["settings"]).lanes.path)


class WrittenSteps(Callback):  # type: ignore[misc] # the library has no types
    """Writes the lines of the steps, which all workers make together.

    Args:
        lines: Of the run.
    """

    def __init__(self, lines: StepLines) -> None:
        self._lines = lines

    def before_run(self, runner: Any) -> None:
        """The first step begins."""
        self._lines.begin()

    def after_train_iter(self, runner: Any) -> None:
        """A step is done."""
        if runner.rank == 0:
            self._lines.add(runner.global_step, runner.metrics_stats["train_loss"])
