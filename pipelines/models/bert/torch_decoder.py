"""BERT in PyTorch as a decoder too: the same layers, in which a token sees those before it alone.

For objectives that write a text out again from its one vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.utils.checkpoint import checkpoint

from pipelines.models.bert.torch import (
    BertEncoder,
    Dense,
    Layer,
    embedded_inputs,
    embedding_output,
    first_dropout_site,
    layer_norm,
    relative_bias,
    run_attention,
    run_feed_forward,
)
from pipelines.models.frameworks.torch import Batch, DropoutMasks, dropped, linear

_HIDDEN_SCORE = -1e9
"""Added to the score of a later token, whose probability then is exactly zero in fp32."""
_CROSS_SITES = 1 << 16
"""Beyond the places of dropout that encoders have."""


class CrossAttention(NamedTuple):
    """A layer's attention to the one vector of a text, fp32.

    Whatever the query and the key, one vector gets all of the attention. So there is neither, and
    every token of a text gets the same.

    Attributes:
        value: From the vector.
        output: To what is added to the hidden states.
        norm: Behind the sum.
    """

    value: Dense
    output: Dense
    norm: Dense


class BertDecoder(BertEncoder):
    """BERT's encoder, and a decoder of the same weights; what `torch_decoder` makes."""

    def input_states(
        self, batch: Batch, masks: DropoutMasks | None, vectors: torch.Tensor | None = None
    ) -> torch.Tensor:
        """fp32 [tokens, hidden], as layers take them.

        Args:
            batch: The texts.
            masks: Of dropout; None without.
            vectors: fp32 [tokens, hidden] in the place of the words' own.
        """
        if vectors is None:
            return embedding_output(self._spec, self._weights, batch, masks)
        return embedded_inputs(self._spec, self._weights, vectors, batch, masks)

    def decode(
        self,
        batch: Batch,
        vectors: torch.Tensor,
        crosses: Sequence[CrossAttention],
        masks: DropoutMasks | None,
        *,
        activation_checkpointing: bool = False,
    ) -> torch.Tensor:
        """fp32 [tokens, hidden], each from the tokens up to it and the vector of its text.

        Args:
            batch: The texts.
            vectors: fp32 [texts, any width].
            crosses: Of each layer.
            masks: Of dropout; None without.
            activation_checkpointing: See :func:`pipelines.models.frameworks.torch.embed`.
        """
        states = self.input_states(batch, masks)
        bias = self._causal_bias(batch)
        lengths = batch.lengths.long()
        texts = torch.arange(batch.texts, device=states.device).repeat_interleave(lengths)
        for number, (layer, cross) in enumerate(zip(self._layers, crosses, strict=True)):
            site = first_dropout_site(number)
            inputs = (layer, cross, states, vectors, texts, batch, masks, site, bias)
            if activation_checkpointing:
                states = checkpoint(
                    self._run, *inputs, use_reentrant=False, preserve_rng_state=False
                )
            else:
                states = self._run(*inputs)
        return states

    def _run(
        self,
        layer: Layer,
        cross: CrossAttention,
        states: torch.Tensor,
        vectors: torch.Tensor,
        texts: torch.Tensor,
        batch: Batch,
        masks: DropoutMasks | None,
        site: int,
        bias: torch.Tensor,
    ) -> torch.Tensor:
        """One layer, with attention to the vectors between its halves."""
        states = run_attention(self._spec, layer, states, batch, masks, site, bias)
        told = linear(linear(vectors, *cross.value), *cross.output)
        told = dropped(masks, _CROSS_SITES + site, told.index_select(0, texts))
        states = layer_norm(self._spec, states + told, cross.norm)
        return run_feed_forward(self._spec, layer, states, masks, site + 2)

    def _causal_bias(self, batch: Batch) -> torch.Tensor:
        """What is added to the scores, fp32 [heads, width, width]."""
        later = torch.full((batch.width, batch.width), _HIDDEN_SCORE, device=batch.lengths.device)
        hidden = later.triu(1).expand(self._spec.heads, -1, -1)
        relative = relative_bias(self._spec, self._weights, batch)
        return hidden if relative is None else hidden + relative
