"""Word prediction in PyTorch, without a table of all words by all tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from pipelines.models.bert.torch import layer_norm, norm_weights
from pipelines.models.frameworks.torch import (
    Encoder,
    linear,
    multiplied,
    run_checkpointed,
    with_dense,
)
from pipelines.models.frameworks.torch_batch import Batch, to_device
from pipelines.models.frameworks.torch_dropout import DropoutMasks, dropout_masks, dropped
from pipelines.models.weights import WORDS
from pipelines.pretraining.start import HEAD

LOGITS = 2**24
"""Logits held at once, unless ``FEWEST`` tokens have more: 64 MiB in fp32."""
FEWEST = 256
"""Tokens whose logits are computed at once, at least, so that a product pays for its start."""
_EPSILON = 1e-12
"""BERT's, for specs without a number of their own."""


class Wanted(NamedTuple):
    """The words to predict: rows and targets, int64 [words], and weights in the loss, fp32 [words].

    Rows number their tokens among all of a batch; targets are their ids.
    """

    rows: torch.Tensor
    targets: torch.Tensor
    shares: torch.Tensor

    @classmethod
    def of(
        cls, targets: np.ndarray, shares: np.ndarray, lengths: np.ndarray, device: torch.device
    ) -> Wanted:
        """Return the words to predict in a batch without padding.

        Targets are int32 and shares fp32 [texts, width], with share 0 for unpredicted tokens.
        Lengths are int32 [texts].
        """
        is_token = np.arange(targets.shape[1]) < lengths[:, None]
        of_tokens = shares[is_token]
        rows = np.flatnonzero(of_tokens)
        words = targets[is_token][rows].astype(np.int64)
        return cls(*(to_device(array, device) for array in (rows, words, of_tokens[rows])))


class _CrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    """Cross entropy over a vocabulary, some tokens at a time.

    The logits of all tokens and their gradient would be the largest arrays of a step. Here the
    logits of some tokens give their part of all gradients at once, and are freed.

    Source: Hsu et al., "Liger Kernel: Efficient Triton Kernels for LLM Training", 2024,
    arXiv:2410.10989, section 3.2 (FusedLinearCrossEntropy).
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        words: torch.Tensor,
        bias: torch.Tensor,
        targets: torch.Tensor,
        shares: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """Return the sum of the losses weighted by shares; compute the gradients too."""
        rows, matrix = states.to(dtype), words.to(dtype)
        total = states.new_zeros(())
        at_states, at_bias = torch.zeros_like(states), torch.zeros_like(bias)
        at_words = torch.zeros_like(words) if ctx.needs_input_grad[1] else None
        for part in _parts(len(states), len(words)):
            logits = multiplied(rows[part], matrix, bias.to(dtype)).float()
            norm = torch.logsumexp(logits, 1)
            right = logits.gather(1, targets[part, None])[:, 0]
            total += ((norm - right) * shares[part]).sum()
            # The gradient of the logits, in their place.
            slopes = logits.sub_(norm[:, None]).exp_().mul_(shares[part, None])
            slopes.scatter_add_(1, targets[part, None], -shares[part, None])
            at_bias.add_(slopes.sum(0))
            small = slopes.to(dtype)
            at_states[part] = multiplied(small, matrix.T).float()
            if at_words is not None:
                at_words.add_(multiplied(small.T, rows[part].T))
        ctx.save_for_backward(at_states, at_words, at_bias)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        states, words, bias = ctx.saved_tensors
        at_words = None if words is None else words * slope
        return states * slope, at_words, bias * slope, None, None, None


def _parts(tokens: int, vocabulary: int) -> Iterator[slice]:
    """Yield slices of tokens with ``LOGITS`` logits in all, or of ``FEWEST`` tokens."""
    size = max(LOGITS // vocabulary, FEWEST)
    for first in range(0, tokens, size):
        yield slice(first, first + size)


_BESIDE = 1 << 20
"""Beyond an encoder's places of dropout, which follow upon the same seeds."""


@dataclass(frozen=True, kw_only=True)
class View:
    """An encoder and an objective's own weights, for some texts.

    The type is that of matrix products. A dropout of None is the encoder's own; its masks follow
    from the seed.
    """

    encoder: Encoder
    own: Mapping[str, torch.Tensor]
    dtype: torch.dtype
    dropout: float | None
    seed: tuple[int, ...]
    activation_checkpointing: bool

    @property
    def spec(self) -> Any:
        """The encoder's spec, of its architecture's class."""
        return self.encoder.spec

    @property
    def bert(self) -> Any:
        """The :class:`.BertEncoder`, for objectives that need a decoder."""
        return self.encoder.encode

    def batch(self, token_ids: np.ndarray, lengths: np.ndarray) -> Batch:
        """Return texts as the encoder takes them."""
        return Batch.of(token_ids, lengths, self.encoder.device)

    def masks(self, *part: int) -> DropoutMasks | None:
        """Return the dropout masks of the encoder, or of a part beside it; None without dropout."""
        seed = (*self.seed, *(_BESIDE + number for number in part))
        return dropout_masks(self.spec, self.dropout, seed, self.encoder.device)

    def hidden_states(self, batch: Batch) -> torch.Tensor:
        """Return fp32 [tokens, hidden]."""
        return self.encoder.encode.hidden_states(
            batch,
            self.masks(),
            activation_checkpointing=self.activation_checkpointing,
            sparse_words=True,
        )

    def vectors(self, hidden_states: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return fp32 [texts, embedding width], not scaled to length 1."""
        pooled = self.encoder.encode.pooled(hidden_states, batch)
        return with_dense(self.spec, self.encoder.weights, pooled)

    def wanted(self, targets: np.ndarray, shares: np.ndarray, lengths: np.ndarray) -> Wanted:
        """See :meth:`Wanted.of`."""
        return Wanted.of(targets, shares, lengths, self.encoder.device)

    def prediction_loss(self, states: torch.Tensor, wanted: Wanted) -> torch.Tensor:
        """Return the prediction head's cross entropy of the wanted words, summed by their shares.

        The states are fp32 [words, hidden].
        """
        head = self.own
        weight, bias = (head[f"{HEAD}dense.{part}"].to(self.dtype) for part in ("weight", "bias"))
        inner = functional.gelu(linear(states.to(self.dtype), weight, bias)).float()
        scale, shift = (head[f"{HEAD}LayerNorm.{part}"] for part in ("weight", "bias"))
        # As in the encoder's layer norms, if its spec has the number.
        epsilon = getattr(self.spec, "layer_norm_epsilon", _EPSILON)
        inner = functional.layer_norm(inner, inner.shape[1:], scale, shift, epsilon)
        return self._cross_entropy(inner, wanted, head[f"{HEAD}bias"])

    def word_loss(self, states: torch.Tensor, wanted: Wanted) -> torch.Tensor:
        """Return the cross entropy by the word embedding as output matrix, without head or bias."""
        words = self.encoder.weights[WORDS]
        return self._cross_entropy(states, wanted, words.new_zeros(len(words)))

    def _cross_entropy(
        self, states: torch.Tensor, wanted: Wanted, bias: torch.Tensor
    ) -> torch.Tensor:
        words = self.encoder.weights[WORDS]
        loss: torch.Tensor = _CrossEntropy.apply(
            states, words, bias, wanted.targets, wanted.shares, self.dtype
        )
        return loss


Layer = Mapping[str, torch.Tensor]
"""The decoder's weights, under BERT's names for a layer."""
_QUERIES, _KEYS, _LAYER = 1, 2, 3
"""Parts beside the encoder that have dropout of their own."""


def retromae_loss(view: View, layer: Layer, inputs: Mapping[str, np.ndarray]) -> torch.Tensor:
    """Return the sum of both cross entropies, encoder's and decoder's; `layer` is the decoder's."""
    lengths, targets = inputs["lengths"], inputs["targets"]
    batch = view.batch(inputs["token_ids"], lengths)
    states = view.hidden_states(batch)
    vectors = view.vectors(states, batch)
    originals = view.batch(targets, lengths)
    seen = visible(inputs, batch.width, view.encoder.device)
    found = run_checkpointed(
        decode,
        *(view, layer, originals, vectors, seen),
        checkpointed=view.activation_checkpointing,
    )
    of_encoder = view.wanted(targets, inputs["encoder_shares"], lengths)
    of_decoder = view.wanted(targets, inputs["decoder_shares"], lengths)
    # One head and one loss for both: the gradient of the words is made once.
    parts = zip((states, found), (of_encoder, of_decoder), strict=True)
    rows = torch.cat([part.index_select(0, wanted.rows) for part, wanted in parts])
    joined = (torch.cat(pair) for pair in zip(of_encoder, of_decoder, strict=True))
    return view.prediction_loss(rows, Wanted(*joined))


def visible(inputs: Mapping[str, np.ndarray], width: int, device: torch.device) -> torch.Tensor:
    """Return bool [texts, 1, width, width]: whether each token's prediction sees a place.

    All tokens see the vector at the first place; none sees itself.
    """
    of_token = np.take_along_axis(inputs["missing"], inputs["choices"][:, :width, None], 1)
    seen = ~of_token[:, :, :width] & ~np.eye(width, dtype=bool)
    seen &= (np.arange(width) < inputs["lengths"][:, None])[:, None]
    seen[:, :, 0] = True
    return to_device(seen[:, None], device)


def decode(
    view: View, layer: Layer, batch: Batch, vectors: torch.Tensor, seen: torch.Tensor
) -> torch.Tensor:
    """Run the decoder's one layer over the original texts; fp32 [tokens, hidden].

    It shares the encoder's embeddings. Vectors: fp32 [texts, hidden]; ``seen``: :func:`visible`.
    """
    lengths = batch.lengths.long()
    queries = view.bert.first_states(
        batch, view.masks(_QUERIES), vectors.repeat_interleave(lengths, 0)
    )
    keys = view.bert.first_states(batch, view.masks(_KEYS))
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
    """Return attention's addend of the queries."""

    def heads(name: str, states: torch.Tensor) -> torch.Tensor:
        rows = batch.rectangle(_dense(view, layer, f"attention.self.{name}", states))
        return rows.view(batch.texts, batch.width, view.spec.heads, -1).transpose(1, 2)

    context = functional.scaled_dot_product_attention(
        heads("query", queries), heads("key", keys), heads("value", keys), attn_mask=seen
    )
    return _dense(view, layer, "attention.output.dense", batch.tokens(context.transpose(1, 2)))


def _dense(view: View, layer: Layer, name: str, states: torch.Tensor) -> torch.Tensor:
    """Return a product in the type of the encoder's products."""
    weight, bias = (layer[f"{name}.{part}"] for part in ("weight", "bias"))
    return linear(states.to(view.dtype), weight.to(view.dtype), bias.to(view.dtype))
