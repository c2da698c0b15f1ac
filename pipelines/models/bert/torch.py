"""BERT in PyTorch: attention, encoder, decoder, and modules gathered layer by layer.

An encoder may be whole, or one worker's part of it. :mod:`pipelines.models.frameworks.torch` and
:mod:`pipelines.models.frameworks.torch_module` call these classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from pipelines.models.architecture import Shapes
from pipelines.models.bert.spec import (
    DIVISION,
    POSITIONS,
    PROJECTION,
    RELATIVE_BIAS,
    SEGMENTS,
    BertSpec,
    layer_prefix,
    relative_buckets,
    weight_shapes,
)
from pipelines.models.frameworks.torch import (
    PRECISIONS,
    StageEncode,
    cast_together,
    linear,
    run_checkpointed,
    summed_linear,
)
from pipelines.models.frameworks.torch_batch import Batch, by_segment, pool, to_device
from pipelines.models.frameworks.torch_compile import compiled, compiles, of_any_length
from pipelines.models.frameworks.torch_division import ALONE, WHOLE, Members, Part
from pipelines.models.frameworks.torch_dropout import DrawnMask, DropoutMasks, dropped
from pipelines.models.frameworks.torch_module import EncoderModule, Inputs, Unit
from pipelines.models.weights import WORDS, part_bounds, part_shape
from pipelines.settings import TrainingSettings

LONGEST_EXPLICIT = 128
"""Longer texts, in tokens, use torch's fused attention; see :func:`attend`."""

FLASH_CAPABILITY = (8, 0)
"""NVIDIA's least compute capability for which PyTorch has FlashAttention: Ampere."""
FLASH_WIDTH, FLASH_STEP = 192, 8
"""The widest head with a gradient on all of these GPUs, and the step of head widths."""


@dataclass(frozen=True)
class Heads:
    """The attention heads that a worker computes, of all heads of the encoder."""

    total: int
    first: int
    count: int

    @classmethod
    def of(cls, total: int, members: Members = ALONE) -> Heads:
        """Return the heads of one member."""
        first, last = part_bounds(total, members.size, members.member)
        return cls(total, first, last - first)


def attend(
    qkv: torch.Tensor,
    batch: Batch,
    heads: Heads,
    masks: DropoutMasks | None,
    site: int,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """Mix the values in the fastest form for the device; [tokens, hidden] in the type of ``qkv``.

    On a CPU thread, batched matrix products are fastest for short texts. Milliseconds forward and
    back, of 1,536 tokens and 12 heads of 32, explicit and fused, in fp32: 9 and 13 at 24 tokens a
    text, 15 and 17 at 64, 26 and 27 at 128, 45 and 42 at 256. In bf16, on a CPU without bf16 units:
    9 and 25 at 24, 15 and 48 at 64, 26 and 92 at 128. With bf16 units the fused operation was the
    slow choice for 24 tokens too. It never holds the scores of all heads, which counts for long
    texts. Each segment has its own rectangle.

    On a GPU, FlashAttention takes all texts without padding, where it exists. Otherwise the fused
    operation takes one rectangle of all texts.

    Both draw dropout themselves, from a generator with the segment's seed: one operation for each
    segment. On a CPU their order depends on the threads, and where workers divide the heads they
    cannot draw their parts of the whole mask. In both cases masks are drawn beforehand.

    Args:
        qkv: [tokens, 3 x hidden]: queries, scaled already, keys and values of this worker's heads.
        site: Number of the place of dropout.
        bias: fp32 [heads, width, width], added to the scores of every text.
    """
    drops = masks is not None and masks.rates.attention > 0
    if len(batch.texts_of_segments) == 1 or not (drops or by_segment(qkv.device)):
        return _attend(qkv, batch, heads, masks if drops else None, site, bias)
    noise = iter(masks.segments if masks is not None and drops else [None] * len(batch.segments))
    return batch.by_segment(
        lambda rows, segment: _attend(
            rows,
            segment,
            heads,
            next(noise),
            site,
            None if bias is None else bias[:, : segment.width, : segment.width],
        ),
        qkv,
    )


def _attend(
    qkv: torch.Tensor,
    batch: Batch,
    heads: Heads,
    masks: DropoutMasks | None,
    site: int,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """Do as :func:`attend`, for texts whose noise has one seed; None without noise."""
    is_cpu = qkv.device.type == "cpu"
    if masks is None:
        if is_cpu and batch.width <= LONGEST_EXPLICIT:
            return explicit_attention(qkv, batch, heads.count, None, bias)
        return _fastest(qkv, batch, heads.count, bias)
    if is_cpu or heads.count < heads.total:
        mask = _mask(masks, site, batch, heads)
        return explicit_attention(qkv, batch, heads.count, mask, bias)
    with masks.seeded(site):
        return _fastest(qkv, batch, heads.count, bias, masks.rates.attention)


def _fastest(
    qkv: torch.Tensor, batch: Batch, heads: int, bias: torch.Tensor | None, dropout: float = 0.0
) -> torch.Tensor:
    if bias is None and _suits_flash(qkv, heads):
        return unpadded_attention(qkv, batch, heads, dropout)
    return fused_attention(qkv, batch, heads, bias, dropout)


def _mask(masks: DropoutMasks, site: int, batch: Batch, heads: Heads) -> torch.Tensor:
    """Return fp32 [texts, heads, width, width]: each head has the mask of the undivided encoder."""
    undivided = masks.attention_mask(site, batch.texts, heads.total, batch.width)
    return undivided.narrow(1, heads.first, heads.count).contiguous()


def _suits_flash(qkv: torch.Tensor, heads: int) -> bool:
    """Return whether FlashAttention exists for these numbers on their device."""
    width = qkv.shape[1] // (3 * heads)
    fits = width <= FLASH_WIDTH and width % FLASH_STEP == 0
    return qkv.dtype == torch.bfloat16 and fits and has_flash(qkv.device)


def has_flash(device: torch.device) -> bool:
    """Return whether PyTorch has FlashAttention for a device."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    capability: tuple[int, int] = torch.cuda.get_device_capability(device)
    return capability >= FLASH_CAPABILITY


def unpadded_attention(
    qkv: torch.Tensor, batch: Batch, heads: int, dropout: float = 0.0
) -> torch.Tensor:
    """Attend by FlashAttention over concatenated texts.

    Source: Dao, "FlashAttention-2", ICLR 2024, arXiv:2307.08691.
    """
    query, key, value = qkv.view(len(qkv), 3, heads, -1).unbind(1)
    texts = (batch.bounds, batch.bounds, batch.width, batch.width)
    context: torch.Tensor
    # Scale 1: the query's weights are scaled already.
    if dropout:
        # What `varlen_attn` calls, which has no dropout itself.
        attention = torch.ops.aten._flash_attention_forward
        context, *_ = attention(query, key, value, *texts, dropout, False, False, scale=1.0)
    else:
        # Not where there is no GPU: the module registers its operations while it is imported.
        from torch.nn.attention.varlen import varlen_attn

        context = varlen_attn(query, key, value, *texts, scale=1.0)
    return context.reshape(len(qkv), -1)


def fused_attention(
    qkv: torch.Tensor,
    batch: Batch,
    heads: int,
    bias: torch.Tensor | None,
    dropout: float = 0.0,
) -> torch.Tensor:
    """Attend by PyTorch's fused operation; see :func:`attend`."""
    split = batch.rectangle(qkv).view(batch.texts, batch.width, 3, heads, -1)
    query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
    padding = None if batch.padding is None else batch.padding.attention_bias
    added = padding if bias is None else bias[None] if padding is None else bias + padding
    attention_bias = None if added is None else added.to(qkv.dtype)
    # Scale 1: the query's weights are scaled already.
    context = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_bias, scale=1.0, dropout_p=dropout
    )
    return batch.tokens(context.transpose(1, 2))


def explicit_attention(
    qkv: torch.Tensor,
    batch: Batch,
    heads: int,
    mask: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """Attend by matrix products; see :func:`attend`.

    Probabilities are multiplied by the mask, fp32 [texts, heads, width, width].
    """
    context: torch.Tensor = _ExplicitAttention.apply(qkv, batch, heads, mask, bias)
    return context


class _ExplicitAttention(torch.autograd.Function):  # type: ignore[misc]
    """Attention by batched matrix products, with its gradient written out.

    A derived gradient would copy queries, keys and values once more. Matrix products have the
    input's type. Scores and probabilities are fp32: bf16 has too few digits for a sum over many
    tokens, and a CPU is several times slower in it at masking and at softmax's gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        qkv: torch.Tensor,
        batch: Batch,
        heads: int,
        mask: torch.Tensor | None,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        """See :func:`explicit_attention`; keep what the gradient needs."""
        texts, width, size = batch.texts, batch.width, qkv.shape[1] // (3 * heads)
        # What stands in the padding gets no share below, so it need not be zero.
        padding = batch.padding
        rows = qkv if padding is None else qkv.index_select(0, padding.sources)
        split = qkv.new_empty(3, texts, heads, width, size)
        split.copy_(rows.view(texts, width, 3, heads, size).permute(2, 0, 3, 1, 4))
        query, key, value = split.view(3, texts * heads, width, size)
        scores = torch.bmm(query, key.transpose(1, 2)).float()
        if bias is not None:
            scores.view(texts, heads, width, width).add_(bias)
        if padding is not None:
            scores.view(texts, heads, width, width).add_(padding.attention_bias)
        # Rows of padding get shares too, of their text's tokens. They are finite, and left out of
        # the result, which costs less than to select the rows of tokens before.
        probs = torch.softmax(scores, -1)
        flat = None if mask is None else mask.view_as(probs)
        used_probs = probs if flat is None else probs * flat
        context = torch.bmm(used_probs.to(qkv.dtype), value)
        ctx.save_for_backward(split, probs, flat)
        ctx.batch = batch
        result = qkv.new_empty(texts, width, heads, size)
        result.copy_(context.view(texts, heads, width, size).transpose(1, 2))
        return batch.tokens(result)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of ``qkv`` and of the bias."""
        split, probs, mask = ctx.saved_tensors
        batch: Batch = ctx.batch
        _, texts, heads, width, size = split.shape
        query, key, value = split.view(3, texts * heads, width, size)
        # Zero in the padding, so that its rows add nothing to keys and values.
        grad_context = split.new_empty(texts, heads, width, size)
        grad_context.copy_(
            batch.rectangle(grad_output).view(texts, width, heads, size).transpose(1, 2)
        )
        grad_context = grad_context.view_as(query)

        grad_split = torch.empty_like(split)
        grad_query, grad_key, grad_value = grad_split.view(3, texts * heads, width, size)
        used_probs = (probs if mask is None else probs * mask).to(split.dtype)
        torch.bmm(used_probs.transpose(1, 2), grad_context, out=grad_value)
        grad_probs = torch.bmm(grad_context, value.transpose(1, 2)).float()
        if mask is not None:
            grad_probs *= mask
        # The gradient of a softmax, in one pass; what autograd itself calls.
        grad_scores = torch.ops.aten._softmax_backward_data(grad_probs, probs, -1, probs.dtype)
        pulls = grad_scores.to(split.dtype)
        torch.bmm(pulls, key, out=grad_query)
        torch.bmm(pulls.transpose(1, 2), query, out=grad_key)
        grad_qkv = grad_output.new_empty(texts, width, 3, heads, size)
        grad_qkv.copy_(grad_split.permute(1, 3, 0, 2, 4))
        # Rows of padding have a gradient of zero, and add nothing.
        has_bias = ctx.needs_input_grad[4]
        grad_bias = grad_scores.view(texts, heads, width, width).sum(0) if has_bias else None
        return batch.tokens(grad_qkv), None, None, None, grad_bias


_SITES_PER_LAYER = 3
"""Places of dropout in a layer: attention's probabilities, and the addend of either residual."""
_CROSS_SITES = 1 << 16
"""Beyond the encoder's places of dropout."""
_LATER_SCORE = -1e9
"""Added to the scores of later tokens: their probability becomes exactly zero in fp32."""


class Dense(NamedTuple):
    """A matrix [out, in] and its bias [out], or the scale and shift of a layer norm."""

    weight: torch.Tensor
    bias: torch.Tensor


class Layer(NamedTuple):
    """The weights of a layer, cast for its matrix products; the norms are fp32.

    ``qkv`` is one matrix, with the query scaled by the root of the head's width. The two norms
    follow the two residuals. ``intermediate`` leads into the wide part of the feed-forward block,
    ``output`` out of it.
    """

    qkv: Dense
    attention_output: Dense
    attention_norm: Dense
    intermediate: Dense
    output: Dense
    output_norm: Dense


class CrossAttention(NamedTuple):
    """A decoder layer's attention to the one vector of a text, fp32.

    A single vector gets all of the attention, whatever the query and the key. So there is neither,
    and every token of a text gets the same addend.
    """

    value: Dense
    output: Dense
    norm: Dense


class BertEncoder(StageEncode):
    """Forward passes of BERT, or of a part of it; see :class:`.StageEncode`.

    Casts are explicit: ``torch.autocast`` inspects every operation, casts activations needlessly,
    and on a CPU changes which operations are fp32.
    """

    def __init__(
        self,
        spec: BertSpec,
        weights: Mapping[str, torch.Tensor],
        dtype: torch.dtype,
        part: Part = WHOLE,
    ) -> None:
        self._spec = spec
        self._weights = weights
        self._members = part.members
        layers = range(spec.layers) if part.layers is None else part.layers
        self._layers = {number: layer_weights(spec, weights, number, dtype) for number in layers}

    def first_states(
        self,
        batch: Batch,
        masks: DropoutMasks | None,
        vectors: torch.Tensor | None = None,
        *,
        sparse_words: bool = False,
    ) -> torch.Tensor:
        """Return fp32 [tokens, hidden], the first layer's input; the same on all members.

        Vectors, fp32 [tokens, width of words], may replace those of the words.
        """
        if vectors is None:
            vectors = self._members.look_up(
                self._weights[WORDS], batch.token_ids, self._spec.vocabulary, sparse=sparse_words
            )
        return embedded_inputs(self._spec, self._weights, vectors, batch, masks)

    def run_layers(
        self,
        states: torch.Tensor,
        batch: Batch,
        masks: DropoutMasks | None,
        *,
        activation_checkpointing: bool = False,
    ) -> torch.Tensor:
        """Return fp32 [tokens, hidden]."""
        bias = relative_bias(self._spec, self._weights, batch)
        if masks is not None and not activation_checkpointing:
            firsts = map(first_dropout_site, self._layers)
            masks.plan([first + place for first in firsts for place in (1, 2)])
        for number in self._layers:
            states = run_checkpointed(
                self.run_layer,
                *(number, states, batch, masks, bias),
                checkpointed=activation_checkpointing,
            )
        return states

    def run_layer(
        self,
        number: int,
        states: torch.Tensor,
        batch: Batch,
        masks: DropoutMasks | None,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        """Run one layer: attention, then the feed-forward block, each with a residual.

        Hidden states and layer norms are fp32 even with bf16 matrix products: rounding would
        add up over the layers, and a norm's mean and variance are sums over the whole width. The
        states, fp32 [tokens, hidden], are the same on all members. The bias is that of
        :func:`relative_bias`, for this member's heads.
        """
        states = self._run_attention(number, states, batch, masks, bias)
        return self._run_feed_forward(number, states, masks)

    def _run_attention(
        self,
        number: int,
        states: torch.Tensor,
        batch: Batch,
        masks: DropoutMasks | None,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        """Run attention, the first half of a layer."""
        layer, members, site = self._layers[number], self._members, first_dropout_site(number)
        qkv = linear(members.enter(states).to(layer.qkv.weight.dtype), *layer.qkv)
        # BERT drops probabilities and not scores: a text then misses a token, as with a word left
        # out.
        context = attend(qkv, batch, Heads.of(self._spec.heads, members), masks, site, bias)
        return self._compute(
            _add_attention,
            *(masks, site + 1, states, context, layer.attention_output, layer.attention_norm),
        )

    def _run_feed_forward(
        self, number: int, states: torch.Tensor, masks: DropoutMasks | None
    ) -> torch.Tensor:
        layer, site = self._layers[number], first_dropout_site(number)
        return self._compute(
            _feed_forward,
            *(masks, site + 2, states, layer.intermediate, layer.output, layer.output_norm),
        )

    def _compute(
        self,
        part: Callable[..., torch.Tensor],
        masks: DropoutMasks | None,
        site: int,
        states: torch.Tensor,
        *rest: torch.Tensor | Dense,
    ) -> torch.Tensor:
        """Run a part of a layer, compiled if this process compiles and has the whole layer."""
        if not compiles() or self._members.size > 1:
            return part(self._spec, self._members, masks, site, states, *rest)
        drawn = None if masks is None else masks.mask_of(site, states)
        of_any_length(states, *rest, None if drawn is None else drawn.kept)
        # The place is no constant of the compiled code, which all layers share.
        return compiled(part)(self._spec, ALONE, drawn, 0, states, *rest)

    def pooled(self, hidden_states: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return fp32 [texts, hidden]."""
        return pool(self._spec.pooling, hidden_states, batch)

    def decode(
        self,
        batch: Batch,
        vectors: torch.Tensor,
        crosses: Sequence[CrossAttention],
        masks: DropoutMasks | None,
        *,
        activation_checkpointing: bool = False,
    ) -> torch.Tensor:
        """Run the same layers as a decoder: a token sees only the tokens before it.

        Vectors are fp32 [texts, any width], ``crosses`` one for each layer. Each of the returned
        states, fp32 [tokens, hidden], depends on the tokens up to it and the vector of its text.
        """
        states = self.first_states(batch, masks)
        bias = self._causal_bias(batch)
        texts = torch.arange(batch.texts, device=states.device)
        of_tokens = texts.repeat_interleave(batch.lengths.long())
        for number, cross in zip(self._layers, crosses, strict=True):
            states = run_checkpointed(
                self._decode_layer,
                *(number, cross, states, vectors, of_tokens, batch, masks, bias),
                checkpointed=activation_checkpointing,
            )
        return states

    def _decode_layer(
        self,
        number: int,
        cross: CrossAttention,
        states: torch.Tensor,
        vectors: torch.Tensor,
        of_tokens: torch.Tensor,
        batch: Batch,
        masks: DropoutMasks | None,
        bias: torch.Tensor,
    ) -> torch.Tensor:
        """Run one layer, with attention to the vectors between its halves."""
        states = self._run_attention(number, states, batch, masks, bias)
        addend = linear(linear(vectors, *cross.value), *cross.output).index_select(0, of_tokens)
        addend = dropped(masks, _CROSS_SITES + first_dropout_site(number), addend)
        states = layer_norm(self._spec, states + addend, cross.norm)
        return self._run_feed_forward(number, states, masks)

    def _causal_bias(self, batch: Batch) -> torch.Tensor:
        """Return the addend of the scores, fp32 [heads, width, width], that hides later tokens."""
        later = torch.full((batch.width, batch.width), _LATER_SCORE, device=batch.lengths.device)
        hidden = later.triu(1).expand(self._spec.heads, -1, -1)
        relative = relative_bias(self._spec, self._weights, batch)
        return hidden if relative is None else hidden + relative


def _add_attention(
    spec: BertSpec,
    members: Members,
    masks: DropoutMasks | DrawnMask | None,
    site: int,
    states: torch.Tensor,
    context: torch.Tensor,
    output: Dense,
    norm: Dense,
) -> torch.Tensor:
    """Return the states, fp32 [tokens, hidden], with what attention has mixed."""
    attended = summed_linear(members, context, *output)
    # Post-norm: the norm comes behind the sum. Pre-norm weights would not fit here.
    return layer_norm(spec, states + dropped(masks, site, attended), norm)


def _feed_forward(
    spec: BertSpec,
    members: Members,
    masks: DropoutMasks | DrawnMask | None,
    site: int,
    states: torch.Tensor,
    intermediate: Dense,
    output: Dense,
    norm: Dense,
) -> torch.Tensor:
    """Return the states, fp32 [tokens, hidden], after the feed-forward block."""
    entered = members.enter(states).to(intermediate.weight.dtype)
    # Exact GELU, by erf: checkpoints were trained with it, and the tanh form is off by up to 5e-4.
    wide = functional.gelu(linear(entered, *intermediate))
    added = dropped(masks, site, summed_linear(members, wide, *output))
    return layer_norm(spec, states + added, norm)


def layer_weights(
    spec: BertSpec, weights: Mapping[str, torch.Tensor], number: int, dtype: torch.dtype
) -> Layer:
    """Return the weights of a layer, cast, with query, key and value as one matrix.

    One product of three times the width is faster than three: it reads the hidden states once.
    """
    prefix = layer_prefix(number)
    # Scores are divided by the root of the head's width. Scaling the query's weights gives the
    # same, and costs nothing for each token.
    scale = 1 / math.sqrt(spec.hidden // spec.heads)

    def qkv(part: str) -> torch.Tensor:
        query, key, value = (
            weights[f"{prefix}attention.self.{name}.{part}"] for name in ("query", "key", "value")
        )
        return torch.cat([query * scale, key, value])

    names = ("attention.output.dense", "intermediate.dense", "output.dense")
    dense = (weights[f"{prefix}{name}.{part}"] for name in names for part in ("weight", "bias"))
    cast = cast_together([qkv("weight"), qkv("bias"), *dense], dtype)
    joined, attention_output, intermediate, output = (
        Dense(*cast[place : place + 2]) for place in range(0, len(cast), 2)
    )
    return Layer(
        qkv=joined,
        attention_output=attention_output,
        attention_norm=norm_weights(weights, f"{prefix}attention.output."),
        intermediate=intermediate,
        output=output,
        output_norm=norm_weights(weights, f"{prefix}output."),
    )


def embedded_inputs(
    spec: BertSpec,
    weights: Mapping[str, torch.Tensor],
    words: torch.Tensor,
    batch: Batch,
    masks: DropoutMasks | None,
) -> torch.Tensor:
    """Return the first layer's input, fp32 [tokens, hidden]: normalised, with places and segment.

    The words are fp32 [tokens, width of words]: their vectors, or replacements.
    """
    positions, places = weights[POSITIONS][: batch.width], batch.positions
    if spec.placeless_token is not None:
        places = _places(spec.placeless_token, batch)
        positions = functional.pad(positions, (0, 0, 0, 1))
    if spec.type_vocabulary:
        # A single sentence is all of the first segment: its one vector is added to the few
        # positions, and not to every token.
        positions = positions + weights[SEGMENTS][0]
    total = words + functional.embedding(places, positions)
    states = dropped(masks, 0, layer_norm(spec, total, norm_weights(weights, "embeddings.")))
    if not spec.projects:
        return states
    return linear(states, weights[f"{PROJECTION}.weight"], weights[f"{PROJECTION}.bias"])


def _places(token: int, batch: Batch) -> torch.Tensor:
    """Return rows of the position table, int64 [tokens]; the row after its last for ``token``."""
    is_placeless = batch.token_ids == token
    before = is_placeless.cumsum(0) - is_placeless.long()
    firsts = torch.arange(len(before), device=before.device) - batch.positions
    places = batch.positions - (before - before[firsts])
    return torch.where(is_placeless, batch.width, places)


def relative_bias(
    spec: BertSpec, weights: Mapping[str, torch.Tensor], batch: Batch
) -> torch.Tensor | None:
    """Return the relative bias of the scores, fp32 [heads, width, width]; None without one."""
    if not spec.relative_buckets:
        return None
    buckets = relative_buckets(spec.relative_buckets, batch.width)
    table = functional.embedding(to_device(buckets, batch.token_ids.device), weights[RELATIVE_BIAS])
    return table.permute(2, 0, 1).contiguous()


def first_dropout_site(layer: int) -> int:
    """Return the first place of dropout in a layer; place 0 is before the first layer."""
    return 1 + _SITES_PER_LAYER * layer


def norm_weights(weights: Mapping[str, torch.Tensor], prefix: str) -> Dense:
    """Return the layer norm of a block."""
    return Dense(weights[f"{prefix}LayerNorm.weight"], weights[f"{prefix}LayerNorm.bias"])


def layer_norm(spec: BertSpec, values: torch.Tensor, norm: Dense) -> torch.Tensor:
    """Normalise values [..., width] to mean 0 and variance 1; scale and shift them."""
    return functional.layer_norm(values, norm.weight.shape, *norm, spec.layer_norm_epsilon)


class EmbeddingUnit(Unit):
    """The embeddings, and the relative bias that all layers share."""

    def __init__(self, spec: BertSpec, shapes: Shapes, members: Members) -> None:
        super().__init__(shapes)
        self._spec = spec
        self._part = Part(range(0), members)

    def forward(
        self, sides: Sequence[Inputs]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
        """Return fp32 [tokens, hidden] and the bias of the scores, of each side."""
        encoder = BertEncoder(self._spec, self.weights, torch.float32, self._part)
        return (
            [encoder.first_states(*side) for side in sides],
            [relative_bias(self._spec, self.weights, side.batch) for side in sides],
        )


class LayerUnit(Unit):
    """A layer of an encoder, whole or one member's part of it."""

    def __init__(
        self,
        spec: BertSpec,
        shapes: Shapes,
        number: int,
        training: TrainingSettings,
        members: Members,
    ) -> None:
        super().__init__(shapes)
        self._spec = spec
        self._number = number
        self._part = Part(range(number, number + 1), members)
        self._dtype = PRECISIONS[training.precision]
        self._checkpointed = training.activation_checkpointing

    def forward(
        self,
        hidden_states: Sequence[torch.Tensor],
        sides: Sequence[Inputs],
        biases: Sequence[torch.Tensor | None],
    ) -> list[torch.Tensor]:
        """Return fp32 [tokens, hidden] of each side, from the same.

        With checkpointed activations the cast and joined weights are not kept either, so only one
        layer is whole at a time.
        """
        return run_checkpointed(
            self._run, hidden_states, sides, biases, checkpointed=self._checkpointed
        )

    def _run(
        self,
        hidden_states: Sequence[torch.Tensor],
        sides: Sequence[Inputs],
        biases: Sequence[torch.Tensor | None],
    ) -> list[torch.Tensor]:
        encoder = BertEncoder(self._spec, self.weights, self._dtype, self._part)
        return [
            encoder.run_layer(self._number, states, *side, bias)
            for states, side, bias in zip(hidden_states, sides, biases, strict=True)
        ]


class BertModule(EncoderModule):
    """BERT, gathered layer by layer; see :func:`.encoder_module` for the arguments."""

    def __init__(self, spec: BertSpec, training: TrainingSettings, members: Members) -> None:
        super().__init__(spec)
        self._pooling = spec.pooling
        axes = DIVISION.axes(spec)
        shapes = {
            name: part_shape(shape, axes.get(name), members.size, members.member)
            for name, shape in weight_shapes(spec).items()
        }
        layers = [
            {name: shapes.pop(name) for name in [*shapes] if name.startswith(layer_prefix(number))}
            for number in range(spec.layers)
        ]
        self.embeddings = EmbeddingUnit(spec, shapes, members)
        self.layers = torch.nn.ModuleList(
            LayerUnit(spec, layer, number, training, members) for number, layer in enumerate(layers)
        )

    def own_units(self) -> Iterator[Unit]:
        """Yield the embeddings, then the layers."""
        return chain([self.embeddings], self.layers)

    @property
    def own_weights(self) -> dict[str, torch.Tensor]:
        """The weights of all units."""
        return {name: value for unit in self.own_units() for name, value in unit.weights.items()}

    def encode(self, sides: Sequence[Inputs]) -> list[torch.Tensor]:
        """Return fp32 [texts, hidden] of each side, before dense layers."""
        hidden_states, biases = self.embeddings(sides)
        for layer in self.layers:
            hidden_states = layer(hidden_states, sides, biases)
        return [
            pool(self._pooling, states, side.batch)
            for states, side in zip(hidden_states, sides, strict=True)
        ]
