"""Static embeddings in PyTorch; see :class:`pipelines.models.frameworks.torch.Form`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn import functional

from pipelines.models.frameworks.torch import Encode
from pipelines.models.frameworks.torch_batch import Batch
from pipelines.models.frameworks.torch_division import WHOLE, Part
from pipelines.models.frameworks.torch_dropout import DropoutMasks, dropped
from pipelines.models.static.architecture import StaticSpec
from pipelines.models.weights import WORDS


class StaticEncoder(Encode):
    """Means of token vectors; see :class:`pipelines.models.frameworks.torch.Encode`.

    There are no matrix products, so all of it is fp32, and no layers to checkpoint.
    """

    def __init__(
        self,
        spec: StaticSpec,
        weights: Mapping[str, torch.Tensor],
        dtype: torch.dtype,
        part: Part = WHOLE,
    ) -> None:
        self._words = weights[WORDS]

    def hidden_states(
        self,
        batch: Batch,
        masks: DropoutMasks | None,
        *,
        activation_checkpointing: bool = False,
        sparse_words: bool = False,
    ) -> torch.Tensor:
        """Return the token vectors under dropout, fp32 [tokens, hidden]."""
        words = functional.embedding(batch.token_ids, self._words, sparse=sparse_words)
        return dropped(masks, 0, words)

    def pooled(self, hidden_states: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return fp32 [texts, hidden]."""
        # Without [CLS] and [SEP], as the StaticEmbedding module, which does not add them: they are
        # in every text, and would pull all embeddings together. They are blanked and not cut out,
        # since the tokens then keep their places in the batch.
        ends = torch.cat([batch.firsts, batch.firsts + batch.lengths.long() - 1])
        total = batch.sums(hidden_states.index_fill(0, ends, 0.0))
        # An empty text has nothing between the two: zeros, not a division by zero.
        return total / (batch.lengths[:, None] - 2).clamp(min=1)
