"""RetroMAE in PyTorch; see :mod:`pipelines.pretraining.retromae`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pipelines.models.bert.torch import layer_norm, norm_weights
from pipelines.models.frameworks.torch_batch import Batch, to_device
from pipelines.models.frameworks.torch_dropout import dropped
from pipelines.models.frameworks.torch_linear import linear
from pipelines.pretraining.torch_head import Wanted
from pipelines.pretraining.torch_view import View

Layer = Mapping[str, torch.Tensor]
"""The decoder's weights, under BERT's names for a layer."""
_QUERIES, _KEYS, _LAYER = 1, 2, 3
"""Parts that have dropout of their own beside the encoder."""


def loss(view: View, layer: Layer, inputs: Mapping[str, np.ndarray]) -> torch.Tensor:
    """The cross entropies of encoder and decoder, added up.

    Args:
        view: Of the encoder.
        layer: The decoder's weights.
        inputs: Of :func:`pipelines.pretraining.retromae.noise`.
    """
    lengths, targets = inputs["lengths"], inputs["targets"]
    batch = view.batch(inputs["token_ids"], lengths)
    states = view.hidden_states(batch)
    vectors = view.vectors(states, batch)
    originals = view.batch(targets, lengths)
    decoder = (view, layer, originals, vectors, visible(inputs, batch.width, view.encoder.device))
    if view.activation_checkpointing:
        found = checkpoint(decode, *decoder, use_reentrant=False, preserve_rng_state=False)
    else:
        found = decode(*decoder)
    of_encoder = view.wanted(targets, inputs["encoder_shares"], lengths)
    of_decoder = view.wanted(targets, inputs["decoder_shares"], lengths)
    # One head and one loss for both: the gradient of the words is made once.
    parts = zip((states, found), (of_encoder, of_decoder), strict=True)
    rows = torch.cat([part.index_select(0, wanted.rows) for part, wanted in parts])
    joined = (torch.cat(pair) for pair in zip(of_encoder, of_decoder, strict=True))
    return view.prediction_loss(rows, Wanted(*joined))


def visible(inputs: Mapping[str, np.ndarray], width: int, device: torch.device) -> torch.Tensor:
    """Bool [texts, 1, width, width]: whether a token is predicted from the one at another place.

    The vector at the first place is seen by all, and no token by itself.
    """
    of_token = np.take_along_axis(inputs["missing"], inputs["choices"][:, :width, None], 1)
    seen = ~of_token[:, :, :width] & ~np.eye(width, dtype=bool)
    seen &= (np.arange(width) < inputs["lengths"][:, None])[:, None]
    seen[:, :, 0] = True
    return to_device(seen[:, None], device)


def decode(
    view: View, layer: Layer, batch: Batch, vectors: torch.Tensor, seen: torch.Tensor
) -> torch.Tensor:
    """fp32 [tokens, hidden]: the decoder's one layer.

    Args:
        view: Of the encoder, whose embeddings are the decoder's.
        layer: The decoder's weights.
        batch: The texts as they are.
        vectors: fp32 [texts, hidden].
        seen: Of :func:`visible`.
    """
    lengths = batch.lengths.long()
    queries = view.form.input_states(
        batch, view.masks(_QUERIES), vectors.repeat_interleave(lengths, 0)
    )
    keys = view.form.input_states(batch, view.masks(_KEYS))
    keys = keys.index_copy(0, batch.firsts, vectors)
    masks, spec = view.masks(_LAYER), view.spec

    states = queries + dropped(masks, 0, _attended(view, layer, batch, queries, keys, seen))
    states = layer_norm(spec, states, norm_weights(layer, "attention.output."))
    inner = functional.gelu(_dense(view, layer, "intermediate.dense", states))
    states = states + dropped(masks, 1, _dense(view, layer, "output.dense", inner))
    return layer_norm(spec, states, norm_weights(layer, "output."))


def _attended(
    view: View,
    layer: Layer,
    batch: Batch,
    queries: torch.Tensor,
    keys: torch.Tensor,
    seen: torch.Tensor,
) -> torch.Tensor:
    """What attention adds to the queries."""

    def heads(name: str, states: torch.Tensor) -> torch.Tensor:
        rows = batch.rectangle(_dense(view, layer, f"attention.self.{name}", states))
        return rows.view(batch.texts, batch.width, view.spec.heads, -1).transpose(1, 2)

    context = functional.scaled_dot_product_attention(
        heads("query", queries), heads("key", keys), heads("value", keys), attn_mask=seen
    )
    return _dense(view, layer, "attention.output.dense", batch.tokens(context.transpose(1, 2)))


def _dense(view: View, layer: Layer, name: str, states: torch.Tensor) -> torch.Tensor:
    """A product in the type of those of the encoder."""
    weight, bias = (layer[f"{name}.{part}"] for part in ("weight", "bias"))
    return linear(states.to(view.dtype), weight.to(view.dtype), bias.to(view.dtype))
