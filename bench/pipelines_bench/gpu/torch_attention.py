"""The forms of attention on a device: whether they agree, and what each takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from pipelines.models.bert.torch import (
    Heads,
    attend,
    explicit_attention,
    fused_attention,
    has_flash,
    unpadded_attention,
)
from pipelines.models.frameworks.torch_batch import Batch
from pipelines.models.frameworks.torch_dropout import DropoutMasks
from pipelines.models.spec import DropoutRates
from pipelines_bench.gpu.checks import Finding, Place
from pipelines_bench.gpu.torch_figures import shape_of
from pipelines_bench.gpu.torch_peak import seconds_of
from pipelines_bench.gpu.torch_samples import cosine, granule, on_host, same, texts

EXACT = 1e-4
"""Of what is one thing in two orders of summing, in fp32, over the largest number."""
BF16_COSINE = 0.999
HEADS, SIZE = 4, 16
DROPPED = 0.1
DRAWS, FAR = 400, 0.05
"""So many masks of dropout leave of their mean what is so far from the result without."""
LENGTHS = (3, 17, 9, 32, 8)
TIMES = 20

Form = Callable[[torch.Tensor, Batch, int], torch.Tensor]
"""Takes queries, keys and values [tokens, 3 x hidden], queries scaled already; the texts; heads."""


def agree(place: Place) -> Finding:
    """All forms, with a bias by distance and without; and what is dropped of them."""
    device = torch.device(place.device)
    batch = _batch(LENGTHS, device)
    bias = torch.randn(HEADS, batch.width, batch.width, device=device)
    apart = []
    for one in (None, bias):
        (left, left_pull), (right, right_pull) = (
            _with_gradient(form, batch)
            for form in (partial(_explicit, bias=one), partial(fused_attention, bias=one))
        )
        apart.append(same("attention", on_host(right), on_host(left), EXACT))
        apart.append(same("its gradient", on_host(right_pull), on_host(left_pull), EXACT))
    told = [f"explicit and fused {max(apart):.1e} apart"]
    expected, expected_pull = _with_gradient(_explicit, batch)
    if has_flash(device):
        found, pull = _with_gradient(unpadded_attention, batch, torch.bfloat16)
        least = min(
            cosine(on_host(found), on_host(expected)), cosine(on_host(pull), on_host(expected_pull))
        )
        if least < BF16_COSINE:
            raise AssertionError(f"without padding in bf16: a cosine of {least:.5f}")
        told.append(f"without padding in bf16: cosine {least:.5f}")
    far = max(_far_in_the_mean(batch, expected, dtype) for dtype in (torch.float32, torch.bfloat16))
    for dtype in (torch.float32, torch.bfloat16):
        once, again = (_with_gradient(_dropped(7), batch, dtype) for _ in range(2))
        if not torch.equal(once[0], again[0]):
            raise AssertionError(f"the same seed drops other probabilities in {dtype}")
        near = EXACT if dtype == torch.float32 else FAR
        same("the gradient under dropout once more", on_host(again[1]), on_host(once[1]), near)
    told.append(f"the mean under dropout {far:.1e} apart")
    return Finding(", ".join(told))


def times(place: Place, shape: str) -> Finding:
    """Milliseconds forward and back of one layer's attention in bf16, by form."""
    spec, device = shape_of(place, shape), torch.device(place.device)
    size = 512 if place.on_gpu and not place.short else 8
    side = granule(7, examples=size, longest=128, vocabulary=spec.vocabulary).anchor
    batch = Batch.of(side.token_ids, side.lengths, device)
    mask = torch.ones(batch.texts, spec.heads, batch.width, batch.width, device=device)

    forms: dict[str, Form] = {
        "explicit in fp32": _explicit,
        "explicit in fp32 with dropout's masks": partial(_explicit, mask=mask),
        "fused with a bias for padding": partial(fused_attention, bias=None),
        "fused with dropout": partial(fused_attention, bias=None, dropout=DROPPED),
    }
    if has_flash(device):
        forms |= {"without padding": unpadded_attention, "the same with dropout": _dropped(1)}
    figures: dict[str, Any] = {}
    for name, form in forms.items():
        qkv = torch.randn(
            len(batch.token_ids), 3 * spec.hidden, device=device, dtype=torch.bfloat16
        ).requires_grad_()
        work = partial(_there_and_back, form, qkv, batch, spec.heads)
        seconds = seconds_of(work, place.device, times=TIMES if place.on_gpu else 1)
        figures[f"{name}: ms"] = 1e3 * seconds
    return Finding(", ".join(f"{name} {value:.3f}" for name, value in figures.items()), figures)


def _far_in_the_mean(batch: Batch, expected: torch.Tensor, dtype: torch.dtype) -> float:
    """How far the mean under dropout is from the result without."""
    qkv = _qkv(batch).to(dtype)
    several = [_dropped(number)(qkv, batch, HEADS).float() for number in range(DRAWS)]
    mean = torch.stack(several).mean(0)
    return same(f"the mean under dropout in {dtype}", on_host(mean), on_host(expected), FAR)


def _explicit(
    qkv: torch.Tensor,
    batch: Batch,
    heads: int,
    bias: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    return explicit_attention(qkv, batch, heads, mask, bias)


def _dropped(number: int) -> Form:
    """As the encoder attends under dropout."""

    def form(qkv: torch.Tensor, batch: Batch, heads: int) -> torch.Tensor:
        masks = DropoutMasks(DropoutRates(DROPPED, DROPPED), (17, number), qkv.device)
        return attend(qkv, batch, Heads.of(heads), masks, 0, None)

    return form


def _there_and_back(form: Form, qkv: torch.Tensor, batch: Batch, heads: int) -> None:
    form(qkv, batch, heads).sum().backward()


def _with_gradient(
    form: Form, batch: Batch, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a form gives for fixed numbers, and the gradient of a sum of it."""
    qkv = _qkv(batch).to(dtype).requires_grad_()
    result = form(qkv, batch, HEADS)
    (result.float() * torch.linspace(0.5, 1.5, result.shape[1], device=qkv.device)).sum().backward()
    return result.detach(), qkv.grad


def _qkv(batch: Batch) -> torch.Tensor:
    tokens = len(batch.token_ids)
    fixed = torch.sin(torch.arange(tokens * 3 * HEADS * SIZE, dtype=torch.float32) * 0.37)
    return fixed.view(tokens, -1).to(batch.token_ids.device)


def _batch(lengths: tuple[int, ...], device: torch.device) -> Batch:
    return Batch.of(*texts(lengths), device)
