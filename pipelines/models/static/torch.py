"""Static embeddings in PyTorch; see :class:`pipelines.models.frameworks.torch.Form`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn import functional

from pipelines.models.frameworks.torch import Batch, DropoutMasks, dropped
from pipelines.models.static.spec import StaticSpec
from pipelines.models.weights import WORDS


class StaticEncoder:
    """Means of token vectors; see :class:`pipelines.models.frameworks.torch.Encode`.

    There are no matrix products, so all of it is fp32, and no layers whose activations could be
    checkpointed.

    Args:
        spec: The shape.
        weights: fp32, in canonical names.
        dtype: Of matrix products.
    """

    def __init__(
        self, spec: StaticSpec, weights: Mapping[str, torch.Tensor], dtype: torch.dtype
    ) -> None:
        self._words = weights[WORDS]

    def __call__(
        self,
        batch: Batch,
        masks: DropoutMasks | None,
        *,
        activation_checkpointing: bool = False,
        sparse_words: bool = False,
    ) -> torch.Tensor:
        """fp32 [texts, hidden]; dropout takes values of the token vectors."""
        words = functional.embedding(batch.token_ids, self._words, sparse=sparse_words)
        vectors = dropped(masks, 0, words)
        # Without [CLS] and [SEP], as the StaticEmbedding module, which does not add them: they are
        # in every text, and would pull all embeddings together. They are blanked and not cut out,
        # since the tokens then keep their places in the batch.
        ends = torch.cat([batch.firsts, batch.firsts + batch.lengths.long() - 1])
        total = batch.rectangle(vectors.index_fill(0, ends, 0.0)).sum(1)
        # An empty text has nothing between the two: zeros, not a division by zero.
        return total / (batch.lengths[:, None] - 2).clamp(min=1)
