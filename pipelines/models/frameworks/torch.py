"""What the architectures share in PyTorch: a pure function over weights in canonical names.

Any engine can put its own leaves in: plain tensors, a module's parameters, gathered shards. All
that it does is seen by autograd, so their gradients come as those of any module.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn import functional

from pipelines.models.architecture import form_of
from pipelines.models.frameworks.torch_batch import Batch
from pipelines.models.frameworks.torch_dropout import DropoutMasks, dropout_masks
from pipelines.models.frameworks.torch_linear import linear
from pipelines.models.inference.processor import BF16_CAPABILITY, computes_in_bf16
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import WORDS, dense_name

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
KEPT_KERNELS = 64
"""Compiled kernels that oneDNN and ideep each keep. Every number of rows has its own, and they
would keep 1,024: more than 1 GB after 300 steps of ever other lengths. To compile one again takes
less time than it takes to have so much memory."""


class Encode(Protocol):
    """The forward pass of an architecture, over weights that are ready for it."""

    def __call__(
        self,
        batch: Batch,
        masks: DropoutMasks | None,
        *,
        activation_checkpointing: bool = False,
        sparse_words: bool = False,
    ) -> torch.Tensor:
        """fp32 [texts, hidden], before dense layers; see :func:`embed` for the arguments."""
        ...


class TokenEncode(Encode, Protocol):
    """What an architecture's form `torch_tokens` makes: its hidden states can be had too."""

    def hidden_states(
        self,
        batch: Batch,
        masks: DropoutMasks | None,
        *,
        activation_checkpointing: bool = False,
        sparse_words: bool = False,
    ) -> torch.Tensor:
        """fp32 [tokens, hidden], those of the last layer; see :func:`embed` for the arguments."""
        ...

    def pooled(self, hidden_states: torch.Tensor, batch: Batch) -> torch.Tensor:
        """fp32 [texts, hidden], from those; both together are what a call gives."""
        ...


class Form(Protocol):
    """What an architecture registers for `torch`."""

    def __call__(
        self, spec: Any, weights: Mapping[str, torch.Tensor], dtype: torch.dtype
    ) -> Encode:
        """Makes weights ready, once for the several forward passes of a granule.

        Args:
            spec: Of the architecture.
            weights: fp32 on one device, in canonical names.
            dtype: Of the matrix products.
        """
        ...


@dataclass(frozen=True)
class Encoder:
    """Weights that are ready for forward passes; see :func:`prepare`.

    Attributes:
        spec: The shape.
        weights: In canonical names.
        encode: The architecture's forward pass.
    """

    spec: EncoderSpec
    weights: Mapping[str, torch.Tensor]
    encode: Encode

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.weights[WORDS].device


def configure_threads(threads: int) -> None:
    """Gives PyTorch so many threads in this process.

    Numbers that are too small for fp32's full precision become zero: the moments of words that
    have not been seen for long pass through them, and CPUs are slow there.
    """
    # Threads take this over from the one that starts them, so it comes first.
    torch.set_flush_denormal(True)
    torch.set_num_threads(threads)


def bound_kernel_caches() -> None:
    """Has PyTorch keep :data:`KEPT_KERNELS` in memory; to be called before it computes anything.

    By the variables of oneDNN ("Primitive Cache" in its developer guide) and of ideep, which
    stands between PyTorch and it. One that is set already stays.
    """
    for variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(variable, str(KEPT_KERNELS))


def has_bf16(device: torch.device) -> bool:
    """Whether a device has instructions for matrix products in bf16, and need not emulate them."""
    if device.type == "cuda":
        return bool(torch.cuda.get_device_capability(device) >= BF16_CAPABILITY)
    return computes_in_bf16()


def prepare(
    spec: EncoderSpec,
    weights: Mapping[str, torch.Tensor],
    precision: str = "fp32",
    form: str = "torch",
) -> Encoder:
    """Casts and joins weights, once for the several forward passes of a granule.

    Args:
        spec: The shape.
        weights: fp32 on one device, in canonical names.
        precision: ``fp32`` or ``bf16``, of the matrix products.
        form: Of the architecture: `torch`, or one that can do more.
    """
    make: Form = form_of(spec, form)
    return Encoder(spec, weights, make(spec, weights, PRECISIONS[precision]))


def forward(
    spec: EncoderSpec,
    weights: Mapping[str, torch.Tensor],
    token_ids: np.ndarray,
    lengths: np.ndarray,
    *,
    precision: str = "fp32",
    dropout: float | None = 0.0,
    seed: Sequence[int] | None = None,
) -> torch.Tensor:
    """Embeds sentences; :func:`prepare`, then :func:`embed`. Runs on an executor.

    Matrix products are in ``precision``; all else is fp32 in both, hidden states, norms and pooling
    among it. What stands in the padding has no influence on the result.

    Args:
        spec: The shape.
        weights: fp32 on one device, in canonical names.
        token_ids: int32 [batch, tokens], padded with any valid id.
        lengths: int32 [batch], tokens of each sentence, at least 1.
        precision: ``fp32`` or ``bf16``.
        dropout: Share of activations that is dropped; None: the encoder's own.
        seed: Two numbers; the masks follow from them alone. Needed with dropout.

    Returns:
        fp32 [batch, embedding width], on the device of the weights.
    """
    return embed(prepare(spec, weights, precision), token_ids, lengths, dropout=dropout, seed=seed)


def embed(
    encoder: Encoder,
    token_ids: np.ndarray,
    lengths: np.ndarray,
    *,
    dropout: float | None = 0.0,
    seed: Sequence[int] | None = None,
    activation_checkpointing: bool = False,
    sparse_words: bool = False,
) -> torch.Tensor:
    """Embeds sentences; see :func:`forward`.

    Args:
        encoder: The weights.
        token_ids: int32 [batch, tokens], padded with any valid id.
        lengths: int32 [batch], tokens of each sentence, at least 1.
        dropout: Share of activations that is dropped, at the architecture's places; None: what
            the encoder was made to be trained with.
        seed: Two numbers that the masks follow from.
        activation_checkpointing: Keeps the input of each layer only, and computes the layer once
            more for its gradient; with the same masks, as those follow from the seed.
        sparse_words: Makes the gradient of the word embeddings a sparse tensor.
    """
    batch = Batch.of(token_ids, lengths, encoder.device)
    masks = dropout_masks(encoder.spec, dropout, seed, encoder.device)
    embeddings = encoder.encode(
        batch, masks, activation_checkpointing=activation_checkpointing, sparse_words=sparse_words
    )
    return finished(encoder.spec, encoder.weights, embeddings)


def finished(
    spec: EncoderSpec, weights: Mapping[str, torch.Tensor], pooled: torch.Tensor
) -> torch.Tensor:
    """Embeddings from what an architecture gives: what is the same for all of them.

    Args:
        spec: The shape.
        weights: fp32; those of the dense layers are used.
        pooled: fp32 [texts, hidden].

    Returns:
        fp32 [texts, embedding width], of length 1 if the spec says so.
    """
    vectors = with_dense(spec, weights, pooled)
    return functional.normalize(vectors, dim=-1) if spec.normalise else vectors


def with_dense(
    spec: EncoderSpec, weights: Mapping[str, torch.Tensor], pooled: torch.Tensor
) -> torch.Tensor:
    """The same before it is scaled to length 1."""
    for number, layer in enumerate(spec.dense):
        bias = weights[dense_name(number, "bias")] if layer.bias else None
        pooled = linear(pooled, weights[dense_name(number, "weight")], bias)
        pooled = _ACTIVATIONS[layer.activation](pooled)
    return pooled


_ACTIVATIONS = {"tanh": torch.tanh, "identity": torch.nn.Identity()}
