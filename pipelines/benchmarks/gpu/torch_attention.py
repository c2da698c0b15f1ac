"""The forms of attention on a device: whether they agree, and what each takes.

Beside those that the encoder uses are two that it does not use yet: without padding by PyTorch's
`varlen_attn`, and the fused operation with dropout from a generator that is seeded before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from pipelines.benchmarks.gpu.checks import Finding, Place
from pipelines.benchmarks.gpu.torch_figures import shape_of
from pipelines.benchmarks.gpu.torch_peak import seconds_of
from pipelines.benchmarks.gpu.torch_samples import cosine, granule, on_host, same, texts
from pipelines.models.bert.torch_attention import LONGEST_EXPLICIT, attention_form
from pipelines.models.frameworks.torch_batch import Batch

EXACT = 1e-4
"""Of what is one thing in two orders of summing, in fp32, over the largest number."""
BF16_COSINE = 0.999
HEADS, SIZE = 4, 16
DROPPED = 0.1
LENGTHS = (3, 17, 9, 32, 8)
TIMES = 20

Form = Callable[[torch.Tensor, Batch, int], torch.Tensor]
"""Takes queries, keys and values [tokens, 3 x hidden], queries scaled already; the texts; heads."""


def agree(place: Place) -> Finding:
    """The two forms of the encoder, with a bias by distance and without; then the other two."""
    device = torch.device(place.device)
    batch = _batch(LENGTHS, device)
    bias = torch.randn(HEADS, batch.width, batch.width, device=device)
    apart = []
    for one in (None, bias):
        (left, left_pull), (right, right_pull) = (
            _with_gradient(of_encoder(noisy=noisy, bias=one), batch) for noisy in (True, False)
        )
        apart.append(same("attention", on_host(right), on_host(left), EXACT))
        apart.append(same("its gradient", on_host(right_pull), on_host(left_pull), EXACT))
    others = _others(place, batch)
    told = ", ".join(f"{name}: {value}" for name, value in others.items())
    return Finding(f"explicit and fused {max(apart):.1e} apart; {told}", others)


def times(place: Place, shape: str) -> Finding:
    """Milliseconds forward and back of one layer's attention in bf16, by form."""
    spec, device = shape_of(place, shape), torch.device(place.device)
    size = 512 if place.on_gpu and not place.short else 8
    side = granule(7, examples=size, longest=128, vocabulary=spec.vocabulary).anchor
    batch = Batch.of(side.token_ids, side.lengths, device)
    masks = torch.ones(batch.texts, spec.heads, batch.width, batch.width, device=device)

    forms: Mapping[str, Form] = {
        "explicit in fp32": of_encoder(noisy=True),
        "explicit in fp32 with dropout's masks": of_encoder(noisy=True, masks=masks),
        "fused with a bias for padding": of_encoder(noisy=False),
        "fused with seeded dropout": seeded,
        "without padding": unpadded,
    }
    figures: dict[str, Any] = {}
    for name, form in forms.items():
        qkv = torch.randn(
            len(batch.token_ids), 3 * spec.hidden, device=device, dtype=torch.bfloat16
        ).requires_grad_()
        work = partial(_there_and_back, form, qkv, batch, spec.heads)
        try:
            seconds = seconds_of(work, place.device, times=TIMES if place.on_gpu else 1)
            figures[f"{name}: ms"] = 1e3 * seconds
        except (RuntimeError, ImportError, TypeError, ValueError) as error:
            figures[f"{name}: ms"] = _line(error)
    return Finding(", ".join(f"{name} {_shown(value)}" for name, value in figures.items()), figures)


def of_encoder(
    *, noisy: bool, bias: torch.Tensor | None = None, masks: torch.Tensor | None = None
) -> Form:
    """The form that the encoder takes for long texts, with dropout or without.

    Args:
        noisy: Whether probabilities are dropped.
        bias: By distance.
        masks: Of dropout.
    """

    def attend(qkv: torch.Tensor, batch: Batch, heads: int) -> torch.Tensor:
        form = attention_form(LONGEST_EXPLICIT + 1, qkv.device, noisy=noisy)
        return form(qkv, batch, heads, masks, bias)

    return attend


def fused(qkv: torch.Tensor, batch: Batch, heads: int, dropout: float = 0.0) -> torch.Tensor:
    """The encoder's form for GPUs, but with dropout of the process's generator."""
    split = batch.rectangle(qkv).view(batch.texts, batch.width, 3, heads, -1)
    query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
    bias = None if batch.padding is None else batch.padding.attention_bias.to(qkv.dtype)
    context = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=bias, scale=1.0, dropout_p=dropout
    )
    return batch.tokens(context.transpose(1, 2))


def seeded(qkv: torch.Tensor, batch: Batch, heads: int) -> torch.Tensor:
    """The same under dropout that follows from a seed, which leaves the generators as they were."""
    devices = [qkv.device] if qkv.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(17)
        return fused(qkv, batch, heads, DROPPED)


def unpadded(qkv: torch.Tensor, batch: Batch, heads: int) -> torch.Tensor:
    """Attention of texts that stand one behind the other, in bf16 on a GPU only."""
    from torch.nn.attention.varlen import varlen_attn

    tokens, size = len(qkv), qkv.shape[1] // (3 * heads)
    query, key, value = qkv.view(tokens, 3, heads, size).unbind(1)
    ends = batch.lengths.long().cumsum(0).to(torch.int32)
    bounds = functional.pad(ends, (1, 0))
    # The operation divides by the root of the head's width, as the query is already.
    scaled = query * size**0.5
    context = varlen_attn(scaled, key, value, bounds, bounds, batch.width, batch.width)
    context = context[0] if isinstance(context, tuple) else context
    return context.reshape(tokens, heads * size)


def _others(place: Place, batch: Batch) -> dict[str, str]:
    """What becomes of the forms that are not in use, in words."""
    results = {}
    expected, expected_pull = _with_gradient(fused, batch)
    for name, form, precise in (("without padding", unpadded, True), ("seeded", seeded, False)):
        try:
            found, pull = _with_gradient(form, batch, torch.bfloat16)
            again, _ = _with_gradient(form, batch, torch.bfloat16)
        except (RuntimeError, ImportError, TypeError, ValueError) as error:
            results[name] = _line(error)
            continue
        least = min(
            cosine(on_host(found), on_host(expected)), cosine(on_host(pull), on_host(expected_pull))
        )
        repeated = torch.equal(found, again)
        good = repeated and (least > BF16_COSINE or not precise)
        results[name] = (
            f"{'usable' if good else 'not usable'} (cosine {least:.5f}, the same again: {repeated})"
        )
    return results


def _there_and_back(form: Form, qkv: torch.Tensor, batch: Batch, heads: int) -> None:
    form(qkv, batch, heads).sum().backward()


def _with_gradient(
    form: Form, batch: Batch, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a form gives for fixed numbers, and the gradient of a sum of it."""
    tokens = len(batch.token_ids)
    fixed = torch.sin(torch.arange(tokens * 3 * HEADS * SIZE, dtype=torch.float32) * 0.37)
    qkv = fixed.view(tokens, -1).to(batch.token_ids.device, dtype).requires_grad_()
    result = form(qkv, batch, HEADS)
    (result.float() * torch.linspace(0.5, 1.5, result.shape[1], device=qkv.device)).sum().backward()
    return result.detach(), qkv.grad


def _batch(lengths: tuple[int, ...], device: torch.device) -> Batch:
    return Batch.of(*texts(lengths), device)


def _line(error: Exception) -> str:
    return f"not here ({type(error).__name__}: {' '.join(str(error).split())[:120]})"


def _shown(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
