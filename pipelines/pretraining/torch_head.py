"""Predicting words from hidden states in PyTorch, with no table of all words for all tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from pipelines.models.frameworks.torch_batch import to_device
from pipelines.models.frameworks.torch_linear import linear, multiplied
from pipelines.pretraining.head import HEAD

LOGITS = 2**24
"""Logits that are held at once, if they are those of ``FEWEST`` tokens: 64 MiB in fp32."""
FEWEST = 256
"""Tokens whose logits are computed at once at least, so that a product is worth its start."""
_EPSILON = 1e-12


class Wanted(NamedTuple):
    """The words that are to be found.

    Attributes:
        rows: int64 [words], their tokens among all of a batch.
        targets: int64 [words], what they are.
        shares: fp32 [words], what each counts in the loss.
    """

    rows: torch.Tensor
    targets: torch.Tensor
    shares: torch.Tensor

    @classmethod
    def of(
        cls, targets: np.ndarray, shares: np.ndarray, lengths: np.ndarray, device: torch.device
    ) -> Wanted:
        """Those of a batch without padding.

        Args:
            targets: int32 [texts, width].
            shares: fp32 [texts, width]; 0 for what is not to be found.
            lengths: int32 [texts], tokens of each text.
            device: Where they are wanted.
        """
        is_token = np.arange(targets.shape[1]) < lengths[:, None]
        of_tokens = shares[is_token]
        rows = np.flatnonzero(of_tokens)
        words = targets[is_token][rows].astype(np.int64)
        return cls(*(to_device(one, device) for one in (rows, words, of_tokens[rows])))


def prediction_loss(
    states: torch.Tensor,
    wanted: Wanted,
    own: Mapping[str, torch.Tensor],
    words: torch.Tensor,
    *,
    dtype: torch.dtype,
    epsilon: float | None = None,
) -> torch.Tensor:
    """The cross entropy of the words that are to be found, summed by their shares; a scalar.

    Args:
        states: fp32 [words, hidden], of the tokens that stand for them.
        wanted: What they are.
        own: The head's weights, see :mod:`pipelines.pretraining.head`.
        words: The word embedding.
        dtype: Of the matrix products.
        epsilon: Of the layer norm, unless BERT's.
    """
    weight, bias = (own[f"{HEAD}dense.{part}"].to(dtype) for part in ("weight", "bias"))
    inner = functional.gelu(linear(states.to(dtype), weight, bias)).float()
    scale, shift = (own[f"{HEAD}LayerNorm.{part}"] for part in ("weight", "bias"))
    inner = functional.layer_norm(inner, inner.shape[1:], scale, shift, epsilon or _EPSILON)
    loss: torch.Tensor = _CrossEntropy.apply(
        inner, words, own[f"{HEAD}bias"], wanted.targets, wanted.shares, dtype
    )
    return loss


def word_loss(
    states: torch.Tensor, wanted: Wanted, words: torch.Tensor, *, dtype: torch.dtype
) -> torch.Tensor:
    """The same without a head: the word embedding is the output matrix, and there is no bias.

    Args:
        states: fp32 [words, hidden], of the tokens that stand for them.
        wanted: What they are.
        words: The word embedding.
        dtype: Of the matrix products.
    """
    no_bias = words.new_zeros(len(words))
    loss: torch.Tensor = _CrossEntropy.apply(
        states, words, no_bias, wanted.targets, wanted.shares, dtype
    )
    return loss


class _CrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    """Cross entropy over a vocabulary, some tokens at a time.

    The logits of all tokens and their gradient would be the largest arrays of a step. Those of some
    tokens give their part of all gradients at once, and are let go.

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
        """The sum; see :func:`prediction_loss`. Computes the gradients too."""
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
        """The gradients of states, words and bias."""
        states, words, bias = ctx.saved_tensors
        at_words = None if words is None else words * slope
        return states * slope, at_words, bias * slope, None, None, None


def _parts(tokens: int, vocabulary: int) -> Iterator[slice]:
    """As many tokens at a time as have ``LOGITS``, or ``FEWEST``."""
    size = max(LOGITS // vocabulary, FEWEST)
    for first in range(0, tokens, size):
        yield slice(first, first + size)
