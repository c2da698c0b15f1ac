"""Encoders in PyTorch, shared by all architectures: a pure function over canonical weights.

Engines put in their own leaves: plain tensors, a module's parameters or gathered shards. Autograd
sees every operation. Most operations take one token at a time. So tokens form one matrix, text
after text, and no matrix product sees padding; see :mod:`.torch_batch`.

On a CPU, PyTorch multiplies fp32 matrices by MKL and bf16 ones by oneDNN. MKL uses AVX-512 only on
Intel's processors. On others with AVX-512, oneDNN's fp32 products, twice as fast, are used.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pipelines.models.architecture import form_of
from pipelines.models.frameworks.torch_batch import Batch
from pipelines.models.frameworks.torch_division import WHOLE, Members, Part
from pipelines.models.frameworks.torch_dropout import DropoutMasks, dropout_masks
from pipelines.models.inference.processor import (
    BF16_CAPABILITY,
    computes_in_bf16,
    mkl_ignores_avx512,
)
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import WORDS, Weights, dense_name

if TYPE_CHECKING:
    from pipelines.models.inference.batches import TokenEmbedder


def linear(
    states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Return :func:`torch.nn.functional.linear`, equal up to rounding."""
    if not _is_for_onednn(states, weight):
        return functional.linear(states, weight, bias)
    product: torch.Tensor = _Linear.apply(states, weight, bias)
    return product


def summed_linear(
    members: Members, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Multiply by a matrix with columns divided among members; the result is the same on all.

    The sum over members is in fp32. The bias is added once, after it.
    """
    if members.size == 1:
        return linear(states, weight, bias)
    total = members.add_up(linear(states, weight))
    return total if bias is None else total + bias


def multiplied(
    left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Return ``left`` times the transposed ``right``, without a gradient."""
    if not _is_for_onednn(left, right):
        return functional.linear(left, right, bias)
    return _by_onednn(left, right, bias)


def _is_for_onednn(left: torch.Tensor, right: torch.Tensor) -> bool:
    if torch.compiler.is_compiling():
        return False
    is_fp32 = left.dtype == right.dtype == torch.float32 and left.numel() > 0
    # Under autocast PyTorch itself chooses the type of a product.
    is_own = right.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    return is_fp32 and is_own and _prefers_onednn()


@lru_cache(maxsize=1)
def _prefers_onednn() -> bool:
    # PyTorch has it for the code that its compiler writes, and not in every build.
    return mkl_ignores_avx512() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _by_onednn(
    left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")
    return product


class _Linear(torch.autograd.Function):  # type: ignore[misc]
    """oneDNN's product with its gradient, which PyTorch does not derive."""

    @staticmethod
    def forward(
        ctx: Any, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """See :func:`linear`; keep only the arrays for the requested gradients."""
        needs_states, needs_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(states if needs_weight else None, weight if needs_states else None)
        return _by_onednn(states, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of states, weight and bias."""
        states, weight = ctx.saved_tensors
        needs_states, needs_weight, needs_bias = ctx.needs_input_grad
        rows = grad_output.reshape(-1, grad_output.shape[-1])
        return (
            _by_onednn(grad_output, weight.t()) if needs_states else None,
            _by_onednn(rows.t(), states.reshape(-1, states.shape[-1]).t())
            if needs_weight
            else None,
            rows.sum(0) if needs_bias else None,
        )


def cast_together(tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> Sequence[torch.Tensor]:
    """Return fp32 tensors in another type; a GPU casts them, and their gradients, in one kernel."""
    if dtype == torch.float32:
        return tensors
    cast: tuple[torch.Tensor, ...] = _Cast.apply(dtype, *tensors)
    return cast


class _Cast(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = _copies(tensors, dtype)
        _, *needs = ctx.needs_input_grad
        # Else the products of frozen weights would compute gradients for nobody.
        ctx.mark_non_differentiable(
            *(result for result, need in zip(results, needs, strict=True) if not need)
        )
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        copies = iter(_copies([one for one in gradients if one is not None], torch.float32))
        return None, *(None if one is None else next(copies) for one in gradients)


def _copies(tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    if copies:
        torch._foreach_copy_(copies, list(tensors))
    return copies


PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
KEPT_KERNELS = 64
"""Compiled kernels that oneDNN and ideep each keep. Every number of rows has its own, and by
default they keep 1,024: more than 1 GB after 300 steps of varying lengths. Compiling one again
takes less time than allocating so much memory."""

_States = TypeVar("_States")


class Encode(ABC):
    """The forward pass of an architecture, over prepared weights.

    See :func:`embed` for the keyword arguments.
    """

    def __call__(
        self,
        batch: Batch,
        masks: DropoutMasks | None,
        *,
        activation_checkpointing: bool = False,
        sparse_words: bool = False,
    ) -> torch.Tensor:
        """Return fp32 [texts, hidden], before dense layers."""
        states = self.hidden_states(
            batch,
            masks,
            activation_checkpointing=activation_checkpointing,
            sparse_words=sparse_words,
        )
        return self.pooled(states, batch)

    @abstractmethod
    def hidden_states(
        self,
        batch: Batch,
        masks: DropoutMasks | None,
        *,
        activation_checkpointing: bool = False,
        sparse_words: bool = False,
    ) -> torch.Tensor:
        """Return fp32 [tokens, hidden], the states after the last layer."""

    @abstractmethod
    def pooled(self, hidden_states: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return fp32 [texts, hidden], pooled from hidden states."""


class StageEncode(Encode):
    """The forward pass of an architecture with stages, or of one stage."""

    def hidden_states(
        self,
        batch: Batch,
        masks: DropoutMasks | None,
        *,
        activation_checkpointing: bool = False,
        sparse_words: bool = False,
    ) -> torch.Tensor:
        """Return fp32 [tokens, hidden], of an encoder of one stage."""
        states = self.first_states(batch, masks, sparse_words=sparse_words)
        return self.run_layers(
            states, batch, masks, activation_checkpointing=activation_checkpointing
        )

    @abstractmethod
    def first_states(
        self, batch: Batch, masks: DropoutMasks | None, *, sparse_words: bool = False
    ) -> torch.Tensor:
        """Return fp32 [tokens, hidden], the first layer's input; for the first stage."""

    @abstractmethod
    def run_layers(
        self,
        states: torch.Tensor,
        batch: Batch,
        masks: DropoutMasks | None,
        *,
        activation_checkpointing: bool = False,
    ) -> torch.Tensor:
        """Return fp32 [tokens, hidden], after the layers of the stage."""


Form: TypeAlias = Callable[[Any, Mapping[str, torch.Tensor], torch.dtype, Part], Encode]
"""What an architecture registers for `torch`: prepares weights once for the forward passes of a
granule.

Takes the spec of the whole encoder, fp32 weights on one device in canonical names, the type of
matrix products, and the part of the encoder (:data:`.WHOLE` without a division). An architecture
with stages returns a :class:`StageEncode`.
"""


def run_checkpointed(run: Callable[..., _States], *inputs: Any, checkpointed: bool) -> _States:
    """Run a layer; if ``checkpointed``, keep only its inputs for the gradient.

    Dropout masks have seeds of their own, so torch's generators need not be kept.
    """
    if not checkpointed:
        return run(*inputs)
    states: _States = checkpoint(run, *inputs, use_reentrant=False, preserve_rng_state=False)
    return states


@dataclass(frozen=True)
class Encoder:
    """Weights in canonical names, ready for forward passes; see :func:`prepare`."""

    spec: EncoderSpec
    weights: Mapping[str, torch.Tensor]
    encode: Encode

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.weights[WORDS].device


def configure_threads(threads: int) -> None:
    """Set PyTorch's threads in this process, and flush denormal numbers to zero.

    The moments of words not seen for long become denormal, and CPUs are slow there.
    """
    # Threads take this over from the one that starts them, so it comes first.
    torch.set_flush_denormal(True)
    torch.set_num_threads(threads)


def bound_kernel_caches() -> None:
    """Have PyTorch keep :data:`KEPT_KERNELS` in memory; call it before PyTorch computes anything.

    Sets the variables of oneDNN ("Primitive Cache" in its developer guide) and of ideep, the layer
    between PyTorch and it, unless they are set already.
    """
    for variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(variable, str(KEPT_KERNELS))


def has_bf16(device: torch.device) -> bool:
    """Return whether a device has bf16 instructions, and need not emulate them."""
    if device.type == "cuda":
        return bool(torch.cuda.get_device_capability(device) >= BF16_CAPABILITY)
    return computes_in_bf16()


def prepare(
    spec: EncoderSpec,
    weights: Mapping[str, torch.Tensor],
    precision: str = "fp32",
    part: Part = WHOLE,
) -> Encoder:
    """Cast and join weights, once for the several forward passes of a granule.

    The spec is that of the whole encoder; the weights are fp32 on one device, in canonical names.
    The precision, ``fp32`` or ``bf16``, is that of matrix products.
    """
    form: Form = form_of(spec, "torch")
    return Encoder(spec, weights, form(spec, weights, PRECISIONS[precision], part))


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
    """Embed sentences; fp32 [batch, embedding width]. Runs on an executor.

    Matrix products have the encoder's precision. All else is fp32: hidden states, norms and
    pooling. Padding has no influence on the result.

    Args:
        token_ids: int32 [batch, tokens], padded with any valid id.
        lengths: int32 [batch], tokens of each sentence, at least 1.
        dropout: Share of dropped activations; None: the encoder's own.
        seed: Two numbers, the only source of the masks; needed with dropout.
        activation_checkpointing: Keep only the input of each layer, and recompute the layer, with
            the same masks, for its gradient.
        sparse_words: Make the gradient of the word embeddings a sparse tensor.
    """
    batch = Batch.of(token_ids, lengths, encoder.device)
    masks = dropout_masks(encoder.spec, dropout, seed, encoder.device)
    return embed_batch(
        encoder,
        batch,
        masks,
        activation_checkpointing=activation_checkpointing,
        sparse_words=sparse_words,
    )


def embed_batch(
    encoder: Encoder,
    batch: Batch,
    masks: DropoutMasks | None,
    *,
    activation_checkpointing: bool = False,
    sparse_words: bool = False,
) -> torch.Tensor:
    """Embed the texts of a batch, of one or several segments; see :func:`embed`."""
    embeddings = encoder.encode(
        batch, masks, activation_checkpointing=activation_checkpointing, sparse_words=sparse_words
    )
    return finished(encoder.spec, encoder.weights, embeddings)


def finished(
    spec: EncoderSpec, weights: Mapping[str, torch.Tensor], pooled: torch.Tensor
) -> torch.Tensor:
    """Return embeddings, fp32 [texts, embedding width], from pooled states [texts, hidden].

    They have length 1 if the spec says so.
    """
    vectors = with_dense(spec, weights, pooled)
    return functional.normalize(vectors, dim=-1) if spec.normalise else vectors


def with_dense(
    spec: EncoderSpec, weights: Mapping[str, torch.Tensor], pooled: torch.Tensor
) -> torch.Tensor:
    """Return embeddings before they are scaled to length 1."""
    for number, layer in enumerate(spec.dense):
        bias = weights[dense_name(number, "bias")] if layer.bias else None
        pooled = linear(pooled, weights[dense_name(number, "weight")], bias)
        pooled = _ACTIVATIONS[layer.activation](pooled)
    return pooled


_ACTIVATIONS = {"tanh": torch.tanh, "identity": torch.nn.Identity()}


def open_backend(
    spec: EncoderSpec, weights: Weights, *, threads: int, precision: str, device: str
) -> TokenEmbedder:
    """See :func:`pipelines.models.inference.backends.token_embedder`; without padding."""
    bound_kernel_caches()
    torch.set_num_threads(threads)
    where = torch.device(device)
    with torch.inference_mode():
        tensors = {name: torch.from_numpy(value).to(where) for name, value in weights.items()}
        encoder = prepare(spec, tensors, precision)

    def embed_tokens(token_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            embeddings: np.ndarray = embed(encoder, token_ids, lengths).cpu().numpy()
        return embeddings

    return embed_tokens
