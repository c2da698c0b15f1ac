"""What training and embedding make on a device: tokens a second, and of its peak which share."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias
from unittest.mock import patch

import numpy as np
import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from pipelines.models.bert import torch as torch_attention
from pipelines.models.bert.spec import BertSpec
from pipelines.models.frameworks.torch_batch import Batch
from pipelines.models.frameworks.torch_dropout import DropoutMasks
from pipelines.models.inference.embedder import load_embedder
from pipelines.models.weights import random_weights
from pipelines.training.steppers.base import StepWork
from pipelines.training.steppers.torch import TorchStepper
from pipelines_bench.gpu.checks import Finding, Place
from pipelines_bench.gpu.models import sentences, write_model
from pipelines_bench.gpu.torch_machine import wait_for, workers_on
from pipelines_bench.gpu.torch_peak import measured_peak, seconds_of
from pipelines_bench.gpu.torch_samples import granule
from pipelines_bench.gpu.torch_steps import RATE, Way, compiling, new_stepper, one_by_one

LONGEST = 128
TIMES, WARM_UP = 12, 3
TEXTS = 20_000
VOCABULARY = 30_522
SHAPES: Mapping[str, BertSpec] = {
    "MiniLM": BertSpec(vocabulary=VOCABULARY, layers=6, hidden=384, heads=12, intermediate=1536),
    "BERT-base": BertSpec(
        vocabulary=VOCABULARY, layers=12, hidden=768, heads=12, intermediate=3072
    ),
}
"""Of all-MiniLM-L6-v2, and of bert-base-uncased."""
SIZES = ((64, 1), (64, 8), (512, 1))
"""Pairs of a granule, and granules of a step: as they are by default, and enough to fill a GPU in
two ways."""
FLASH_TOKENS = 16_384
"""Tokens from which a batch was attended without padding before."""
DROPOUTS = (0.0, 0.1)
Forms: TypeAlias = Mapping[str, Callable[[TorchStepper], AbstractContextManager[None]]]
"""Forms of a step, by what stands before the names of their figures."""
_LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")


def training(place: Place, shape: str) -> Finding:
    """Steps in bf16, with and without dropout, each beside the form of before."""
    spec = shape_of(place, shape)
    peak = measured_peak(place.device)
    figures: dict[str, Any] = {}
    forms: Forms = {"": lambda stepper: nullcontext(), "before: ": form_of_before}
    for size, granules in ((8, 1), (8, 4)) if place.short or not place.on_gpu else SIZES:
        for dropout in DROPOUTS:
            figures |= _steps_of(place, spec, size, granules, dropout, peak, forms)
    best = max(value for name, value in figures.items() if name.endswith("share of the peak"))
    return Finding(f"up to {best:.1%} of the measured peak", figures)


def compiled_training(place: Place, shape: str) -> Finding:
    """Steps in bf16 with compiled layers, beside those without; compiling takes a while."""
    spec = shape_of(place, shape)
    peak = measured_peak(place.device)
    forms: Forms = {
        "": lambda stepper: nullcontext(),
        "compiled: ": lambda stepper: compiling(place),
    }
    figures: dict[str, Any] = {}
    for size in (64, 512) if place.on_gpu and not place.short else (8,):
        figures |= _steps_of(place, spec, size, 1, DROPOUTS[-1], peak, forms)
    best = max(
        value for name, value in figures.items() if name.endswith("compiled: share of the peak")
    )
    return Finding(f"up to {best:.1%} of the measured peak", figures)


@contextmanager
def form_of_before(stepper: TorchStepper) -> Iterator[None]:
    """While a stepper computes as before it packed granules.

    One side of one granule after the other. PyTorch's kernels draw dropout from a seeded generator.
    Attention has a rectangle, unless the side is large and nothing is dropped.
    """

    def drop(masks: DropoutMasks, site: int, values: torch.Tensor) -> torch.Tensor:
        with masks.seeded(site):
            dropped: torch.Tensor = functional.dropout(values.float(), masks.rates.hidden)
        return dropped

    def fastest(
        qkv: torch.Tensor, batch: Batch, heads: int, bias: Any, dropout: float = 0.0
    ) -> torch.Tensor:
        is_large = bias is None and not dropout and len(qkv) >= FLASH_TOKENS
        if is_large and torch_attention._suits_flash(qkv, heads):
            return torch_attention.unpadded_attention(qkv, batch, heads)
        return torch_attention.fused_attention(qkv, batch, heads, bias, dropout)

    with (
        one_by_one(stepper),
        patch.object(DropoutMasks, "drop", drop),
        patch.object(torch_attention, "_fastest", fastest),
    ):
        yield


def embedding(place: Place, shape: str) -> Finding:
    """Texts to vectors, from strings on and from token ids on."""
    spec = shape_of(place, shape)
    folder = write_model(place.folder / f"embedder-{shape}", spec, random_weights(spec, 1))
    count = 64 if spec.vocabulary < VOCABULARY else TEXTS
    lengths = np.random.default_rng(4).integers(8, LONGEST - 2, count)
    texts = sentences(lengths.tolist(), spec.vocabulary)
    embedder = load_embedder(folder, backend="torch", precision="bf16", device=place.device)
    embedder(texts[:2000])
    seconds_in_model, compute = [0.0], embedder._embed_tokens

    def timed(ids: np.ndarray, of_texts: np.ndarray) -> np.ndarray:
        began = time.perf_counter()
        vectors = compute(ids, of_texts)
        seconds_in_model[0] += time.perf_counter() - began
        return vectors

    embedder._embed_tokens = timed
    began = time.perf_counter()
    embedder(texts)
    seconds, tokens = time.perf_counter() - began, int(lengths.sum()) + 2 * count
    work = flops(spec, lengths + 2)
    figures = {
        "tokens/s from texts": tokens / seconds,
        "tokens/s from token ids": tokens / seconds_in_model[0],
        "share of the peak": work / seconds_in_model[0] / measured_peak(place.device) / 1e12,
    }
    return Finding(f"{figures['tokens/s from texts']:,.0f} tokens/s from texts", figures)


def shape_of(place: Place, shape: str) -> BertSpec:
    """A shape, or on a CPU something tiny in its place."""
    if place.on_gpu and not place.short:
        return SHAPES[shape]
    return replace(
        SHAPES[shape], layers=1, hidden=48, heads=4, intermediate=96, vocabulary=600, positions=512
    )


def flops(spec: BertSpec, lengths: np.ndarray) -> float:
    """Multiplications and additions of matrix products of a forward pass, without padding.

    Those of words are look-ups.
    """
    of_token = 2 * (4 * spec.hidden**2 + 2 * spec.hidden * spec.intermediate)
    of_attention = 4 * spec.hidden * float((lengths.astype(np.float64) ** 2).sum())
    return spec.layers * (of_token * float(lengths.sum()) + of_attention)


def _steps_of(
    place: Place,
    spec: BertSpec,
    size: int,
    count: int,
    dropout: float,
    peak: float,
    forms: Forms,
) -> dict[str, float]:
    """Figures of steps with some granules of a size, in each form."""
    settings = {"precision": "bf16", "dropout": dropout, "granules_per_step": count, "workers": 1}
    granules = [
        granule(7 + number, examples=size, longest=LONGEST, vocabulary=spec.vocabulary)
        for number in range(count)
    ]
    work = StepWork(0, 0, granules)
    lengths = np.concatenate([side.lengths for part in granules for side in part.sides.values()])
    figures: dict[str, float] = {}
    for name_of_form, form in forms.items():
        with workers_on(place.device), _memory_of(place) as most:
            stepper, _ = new_stepper(Way(settings={"training": settings}, spec=spec))
            with form(stepper):
                seconds = seconds_of(
                    partial(stepper.step, work, RATE),
                    place.device,
                    times=TIMES if place.on_gpu else 1,
                    warm_up=WARM_UP if place.on_gpu else 1,
                )
                launches = _launches(place, stepper, work)
        found = {
            "ms a step": 1e3 * seconds,
            "tokens/s": float(lengths.sum()) / seconds,
            # Backward takes two products for each of the forward pass.
            "share of the peak": 3 * flops(spec, lengths) / seconds / peak / 1e12,
            f"{_unit(place)} a step": float(launches),
            **most,
        }
        figures |= {f"{name_of_form}{name}": value for name, value in found.items()}
    what = f"{count} x {size} pairs" if count > 1 else f"{size} pairs"
    return {f"{what}, dropout {dropout}: {name}": value for name, value in figures.items()}


@contextmanager
def _memory_of(place: Place) -> Iterator[dict[str, float]]:
    """The most of a GPU's memory that was held inside, once that was left; nothing on a CPU."""
    most: dict[str, float] = {}
    if place.on_gpu:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(place.device)
    yield most
    if place.on_gpu:
        most["GB at most"] = torch.cuda.max_memory_allocated(place.device) / 1e9


def _unit(place: Place) -> str:
    return "kernel launches" if place.on_gpu else "operators"


def _launches(place: Place, stepper: Any, work: StepWork) -> int:
    """Kernels that a step starts; on a CPU the operators that it calls."""
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if place.on_gpu else [])]
    with profile(activities=kinds) as seen:
        stepper.step(work, RATE)
        wait_for(place.device)
    counts = {event.key: event.count for event in seen.key_averages()}
    if place.on_gpu:
        return sum(counts.get(name, 0) for name in _LAUNCHES)
    return sum(count for key, count in counts.items() if key.startswith("aten::"))
