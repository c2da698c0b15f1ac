"""Encoders in PyTorch, shared by all architectures: a pure function over canonical weights.

Engines put in their own leaves: plain tensors, a module's parameters or gathered shards. Autograd
sees every operation. Most operations take one token at a time. So tokens form one matrix, text
after text, and no matrix product sees padding. Attention and means need a rectangle of texts x
width.

On a CPU, PyTorch multiplies fp32 matrices by MKL and bf16 ones by oneDNN. MKL uses AVX-512 only on
Intel's processors. On others with AVX-512, oneDNN's fp32 products, twice as fast, are used.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pipelines.models.architecture import form_of
from pipelines.models.frameworks.torch_division import WHOLE, Members, Part
from pipelines.models.inference.processor import (
    BF16_CAPABILITY,
    computes_in_bf16,
    mkl_ignores_avx512,
)
from pipelines.models.spec import DropoutRates, EncoderSpec, Pooling
from pipelines.models.weights import WORDS, Weights, dense_name

if TYPE_CHECKING:
    from pipelines.models.inference.batches import TokenEmbedder

_ATTENTION_MASK = -1e9
"""Added to the scores of padding: its probability becomes exactly zero in fp32."""


@dataclass(frozen=True, kw_only=True)
class Padding:
    """The padding of a batch.

    Attributes:
        places: int64 [tokens], the place of each token in the rectangle of texts x width.
        sources: int64 [texts x width], the token of each place; any token for padding.
        attention_bias: fp32 [texts, 1, 1, width], added to attention's scores.
    """

    places: torch.Tensor
    sources: torch.Tensor
    attention_bias: torch.Tensor

    @classmethod
    def of(cls, is_token: np.ndarray, device: torch.device) -> Padding:
        """Return the padding of bool [texts, width], true for tokens."""
        places = np.flatnonzero(is_token)
        sources = np.zeros(is_token.size, np.int64)
        sources[places] = np.arange(len(places))
        bias = np.where(is_token, 0.0, _ATTENTION_MASK).astype(np.float32)
        return cls(
            places=to_device(places, device),
            sources=to_device(sources, device),
            attention_bias=to_device(bias[:, None, None, :], device),
        )


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch of texts, as the encoder takes it.

    Attributes:
        width: Tokens of the longest text.
        token_ids: int64 [tokens], of all texts without padding.
        positions: int64 [tokens], of each token in its text.
        lengths: fp32 [texts], tokens of each text.
        firsts: int64 [texts], where each text begins.
        bounds: int32 [texts + 1], ``firsts`` and the end of the last text.
        padding: None if all texts are equally long.
    """

    texts: int
    width: int
    token_ids: torch.Tensor
    positions: torch.Tensor
    lengths: torch.Tensor
    firsts: torch.Tensor
    bounds: torch.Tensor
    padding: Padding | None

    @classmethod
    def of(cls, token_ids: np.ndarray, lengths: np.ndarray, device: torch.device) -> Batch:
        """Remove the padding, on the host.

        Token ids: int32 [texts, any width], padded with any valid id. Lengths: int32 [texts], at
        least 1.
        """
        texts, width = len(lengths), int(lengths.max())
        is_token = np.arange(width) < lengths[:, None]
        bounds = np.zeros(texts + 1, np.int64)
        np.cumsum(lengths, out=bounds[1:])
        return cls(
            texts=texts,
            width=width,
            token_ids=to_device(token_ids[:, :width][is_token].astype(np.int64), device),
            positions=to_device(np.nonzero(is_token)[1], device),
            lengths=to_device(lengths.astype(np.float32), device),
            firsts=to_device(bounds[:-1], device),
            bounds=to_device(bounds.astype(np.int32), device),
            padding=None if is_token.all() else Padding.of(is_token, device),
        )

    def rectangle(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [tokens, any width] as [texts, width, any width], zero where there is padding."""
        if self.padding is not None:
            empty = rows.new_zeros(self.texts * self.width, rows.shape[1])
            rows = empty.index_copy_(0, self.padding.places, rows)
        return rows.view(self.texts, self.width, -1)

    def tokens(self, rectangle: torch.Tensor) -> torch.Tensor:
        """Return the inverse of :meth:`rectangle`, for [texts, width, ...]."""
        rows = rectangle.reshape(self.texts * self.width, -1)
        return rows if self.padding is None else rows.index_select(0, self.padding.places)


def pool(pooling: Pooling, hidden_states: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return one hidden state of each text, [texts, hidden], from those of its tokens."""
    return _POOLINGS[pooling](hidden_states, batch)


def _mean(hidden_states: torch.Tensor, batch: Batch) -> torch.Tensor:
    # Padding is zero in the rectangle, and the mean is over the tokens that are there.
    return batch.rectangle(hidden_states).sum(1) / batch.lengths[:, None]


def _weighted_mean(hidden_states: torch.Tensor, batch: Batch) -> torch.Tensor:
    weighted = hidden_states * (batch.positions[:, None] + 1)
    # The sum of the places 1 to n.
    total = batch.lengths * (batch.lengths + 1) / 2
    return batch.rectangle(weighted).sum(1) / total[:, None]


def _first(hidden_states: torch.Tensor, batch: Batch) -> torch.Tensor:
    return hidden_states.index_select(0, batch.firsts)


def _last(hidden_states: torch.Tensor, batch: Batch) -> torch.Tensor:
    return hidden_states.index_select(0, batch.firsts + batch.lengths.long() - 1)


_POOLINGS: Mapping[Pooling, Callable[[torch.Tensor, Batch], torch.Tensor]] = {
    "mean": _mean,
    "cls": _first,
    "lasttoken": _last,
    "weightedmean": _weighted_mean,
}


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return an array as a tensor: on a CPU in the same memory, on a GPU without waiting for it."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


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


class DropoutMasks:
    """Dropout masks by nothing but the seed and the number of the place.

    PyTorch's global generators play no part. A granule gets the same masks on any worker, and when
    its layers are recomputed. Masks differ between CPU and GPU, and may between kinds of GPU.

    Rates are shares of dropped values, in steps of 1/65536 for masks drawn before use.
    """

    def __init__(self, rates: DropoutRates, seed: Sequence[int], device: torch.device) -> None:
        self.rates = rates
        self._seed = tuple(int(number) for number in seed)
        self._device = device

    def state(self, site: int) -> int:
        """Return a seed for the generator of one place."""
        (state,) = np.random.SeedSequence([*self._seed, site]).generate_state(1, np.uint64)
        return int(state)

    def drop(self, site: int, values: torch.Tensor) -> torch.Tensor:
        """Return values under the mask of a place.

        On a GPU, PyTorch's kernel draws the mask, multiplies, and keeps a byte for each value. The
        draw depends on the values' type there, so all are made fp32 first.
        """
        if self._device.type == "cpu":
            return values * self.mask(site, values.shape)
        with self.seeded(site):
            return functional.dropout(values.float(), self.rates.hidden)

    @contextmanager
    def seeded(self, site: int, *, host: bool = False) -> Iterator[None]:
        """Seed the device's generator for a place, and restore it afterwards.

        With `host`, do the same with the CPU's generator.
        """
        generators = [_own_generator(self._device)]
        if host and self._device.type != "cpu":
            generators.append(torch.default_generator)
        kept = [generator.get_state() for generator in generators]
        for generator in generators:
            generator.manual_seed(self.state(site))
        try:
            yield
        finally:
            for generator, state in zip(generators, kept, strict=True):
                generator.set_state(state)

    def mask(self, site: int, shape: Sequence[int], *, attention: bool = False) -> torch.Tensor:
        """Return the fp32 factors of a mask: 0, or the reciprocal of the kept share.

        Sixteen random bits decide about a value: torch's dropout draws several times as long.
        """
        share = self.rates.attention if attention else self.rates.hidden
        dropped = min(round(share * 2**16), 2**16 - 1)
        # A generator of its own for each place, so that a layer that is computed once more, or in
        # another order, has the same mask.
        generator = torch.Generator(self._device).manual_seed(self.state(site))
        count = math.prod(shape)
        words = torch.empty(-(-count // 4), dtype=torch.int64, device=self._device)
        # All 64 bits are random: a word decides about four values.
        words.random_(-(2**63), None, generator=generator)
        kept = words.view(torch.int16)[:count].view(*shape) >= dropped - 2**15
        return kept.to(torch.float32).mul_(2**16 / (2**16 - dropped))


def dropout_masks(
    spec: EncoderSpec, share: float | None, seed: Sequence[int] | None, device: torch.device
) -> DropoutMasks | None:
    """Return the masks of a forward pass; None without dropout.

    A share of None is the encoder's own dropout. Dropout needs a seed.
    """
    rates = spec.dropout(share)
    if rates is None:
        return None
    if seed is None:
        raise ValueError("dropout needs a seed")
    return DropoutMasks(rates, seed, device)


def dropped(masks: DropoutMasks | None, site: int, values: torch.Tensor) -> torch.Tensor:
    """Return values under the mask of a place; unchanged without dropout."""
    return values if masks is None else masks.drop(site, values)


def _own_generator(device: torch.device) -> Any:
    """Return the generator of PyTorch's operations."""
    if device.type == "cpu":
        return torch.default_generator
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


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

    def embed_batch(token_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            embeddings: np.ndarray = embed(encoder, token_ids, lengths).cpu().numpy()
        return embeddings

    return embed_batch
