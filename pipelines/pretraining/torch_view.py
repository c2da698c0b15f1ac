"""What an objective that reconstructs texts computes with in PyTorch. Runs on executors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pipelines.models.frameworks.torch import Encoder, TokenEncode, with_dense
from pipelines.models.frameworks.torch_batch import Batch
from pipelines.models.frameworks.torch_dropout import DropoutMasks, dropout_masks
from pipelines.models.weights import WORDS
from pipelines.pretraining.torch_head import Wanted, prediction_loss, word_loss

_BESIDE = 1 << 20
"""Beyond the places of dropout that an encoder has, which follow upon the same seeds."""


@dataclass(frozen=True, kw_only=True)
class View:
    """An encoder, and an objective's own weights, for some texts.

    Attributes:
        encoder: Made by the form that the objective asks for.
        own: The objective's weights by name.
        dtype: Of matrix products.
        dropout: Share of activations that is dropped; None: the encoder's own.
        seed: Whole numbers that the masks of dropout follow from.
        activation_checkpointing: See :func:`pipelines.models.frameworks.torch.embed`.
    """

    encoder: Encoder
    own: Mapping[str, torch.Tensor]
    dtype: torch.dtype
    dropout: float | None
    seed: tuple[int, ...]
    activation_checkpointing: bool

    @property
    def spec(self) -> Any:
        """Of the encoder's architecture."""
        return self.encoder.spec

    @property
    def form(self) -> Any:
        """What the architecture's form made."""
        return self.encoder.encode

    @property
    def _tokens(self) -> TokenEncode:
        """What every form has that an objective may ask for; a decoder is of some alone."""
        encode: TokenEncode = self.form
        return encode

    def batch(self, token_ids: np.ndarray, lengths: np.ndarray) -> Batch:
        """Texts as the encoder takes them."""
        return Batch.of(token_ids, lengths, self.encoder.device)

    def masks(self, *part: int) -> DropoutMasks | None:
        """Those of dropout, if there is any.

        Args:
            part: Number of a part beside the encoder, which has masks of its own.
        """
        seed = (*self.seed, *(_BESIDE + number for number in part))
        return dropout_masks(self.spec, self.dropout, seed, self.encoder.device)

    def hidden_states(self, batch: Batch) -> torch.Tensor:
        """fp32 [tokens, hidden]."""
        return self._tokens.hidden_states(
            batch,
            self.masks(),
            activation_checkpointing=self.activation_checkpointing,
            sparse_words=True,
        )

    def vectors(self, hidden_states: torch.Tensor, batch: Batch) -> torch.Tensor:
        """fp32 [texts, embedding width], not scaled to length 1."""
        pooled = self._tokens.pooled(hidden_states, batch)
        return with_dense(self.spec, self.encoder.weights, pooled)

    def wanted(self, targets: np.ndarray, shares: np.ndarray, lengths: np.ndarray) -> Wanted:
        """See :meth:`pipelines.pretraining.torch_head.Wanted.of`."""
        return Wanted.of(targets, shares, lengths, self.encoder.device)

    def prediction_loss(self, states: torch.Tensor, wanted: Wanted) -> torch.Tensor:
        """See :func:`pipelines.pretraining.torch_head.prediction_loss`."""
        # Of the layer norms of the encoder, where its spec tells.
        epsilon = getattr(self.spec, "layer_norm_epsilon", None)
        words = self.encoder.weights[WORDS]
        return prediction_loss(states, wanted, self.own, words, dtype=self.dtype, epsilon=epsilon)

    def word_loss(self, states: torch.Tensor, wanted: Wanted) -> torch.Tensor:
        """See :func:`pipelines.pretraining.torch_head.word_loss`."""
        return word_loss(states, wanted, self.encoder.weights[WORDS], dtype=self.dtype)
