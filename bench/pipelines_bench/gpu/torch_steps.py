"""Steps of a worker of PyTorch, made in this process: a device gives the curve of the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from pipelines.catalog import LOSSES
from pipelines.errors import InputError
from pipelines.models.adaptation import split
from pipelines.models.frameworks.torch_compile import compile_layers, compile_nothing
from pipelines.models.spec import EncoderSpec
from pipelines.models.static.architecture import StaticSpec
from pipelines.models.weights import random_weights
from pipelines.pretraining.start import fresh_weights
from pipelines.runs.checkpoint import Checkpoint
from pipelines.settings.load import parse
from pipelines.tokens.vocabulary import SpecialIds
from pipelines.training.collectives.base import SingleProcess
from pipelines.training.steppers.base import StepWork
from pipelines.training.steppers.torch import TorchStepper
from pipelines_bench.gpu.checks import Finding, Place, SkippedError
from pipelines_bench.gpu.torch_machine import workers_on
from pipelines_bench.gpu.torch_samples import (
    PAIR,
    VOCABULARY,
    all_same,
    granule,
    step_spec,
)

MADE, GRANULES, RATE = 6, 2, 3e-3
PACKED = 5
"""Granules of a forward pass."""
CURVE = 1e-3
"""Relative, of a loss: what engines are held to, see `tests/engines/test_contract.py`."""
BF16_CURVE = 2e-2
FIRST = 1e-5
"""Relative, of the loss before the first update in fp32."""
DROPPED = 0.1
_SINGLE: Mapping[str, Any] = {"corpus": {"pairs": "single"}}


@dataclass(frozen=True, kw_only=True)
class Way:
    """Settings with which steps take another path.

    Attributes:
        settings: By section; those of training and of the encoder have defaults.
        spec: Of the encoder.
        tolerance: Of losses, relative.
        first: The same of the first.
        moved: Of weights, by how far they have moved: AdamW takes a step of the same size whether a
            gradient is large or rounding has decided about its sign.
    """

    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    spec: EncoderSpec = field(default_factory=step_spec)
    tolerance: float = CURVE
    first: float = FIRST
    moved: float = 0.02


WAYS: Mapping[str, Way] = {
    "plain": Way(settings={"training": {"weight_decay": 0.1, "clip_norm": 0.5}}),
    "bf16": Way(
        settings={"training": {"precision": "bf16"}},
        tolerance=BF16_CURVE,
        first=BF16_CURVE,
        moved=0.3,
    ),
    "negatives of the step": Way(settings={"objective": {"negatives": "step"}}),
    "micro-batches": Way(settings={"training": {"tokens_per_forward": 24}}),
    "average of weights": Way(settings={"training": {"ema": 0.9}}),
    "lora": Way(
        settings={"encoder": {"lora": {"rank": 2, "alpha": 8.0}, "freeze": {"embeddings": True}}}
    ),
    "static": Way(spec=StaticSpec(vocabulary=VOCABULARY, hidden=32)),
    **{
        name: Way(settings={"objective": {"name": name}, **_SINGLE})
        for name in ("mlm", "tsdae", "retromae")
    },
}


@dataclass(frozen=True)
class Made:
    """What steps came to.

    Attributes:
        losses: Of each step.
        norm: Of the last gradient.
        first: The state before them.
        last: The state after them.
    """

    losses: np.ndarray
    norm: float
    first: Checkpoint
    last: Checkpoint


def steps(place: Place, name: str) -> Finding:
    """A curve, the last gradient's norm and the state after it, as on the CPU."""
    way = WAYS[name]
    expected, found = made(way, "cpu"), made(way, place.device)
    _close(f"the losses {found.losses}", found.losses, expected.losses, way.tolerance)
    _close("the first loss", found.losses[:1], expected.losses[:1], way.first)
    _close("the gradient's norm", found.norm, expected.norm, 20 * way.tolerance)
    apart = _moved_apart(found, expected)
    if apart > way.moved:
        raise AssertionError(f"after {MADE} steps weights are {apart:.2g} of their way apart")
    most = np.abs(found.losses / expected.losses - 1).max()
    return Finding(f"losses at most {most:.1e} apart, weights {apart:.1e} of their way")


def under_dropout(place: Place) -> Finding:
    """Masks differ between devices: two runs on one are the same, and learn as on the CPU."""
    way = Way(settings={"training": {"dropout": DROPPED}})
    again = Way(settings={"training": {"dropout": DROPPED, "activation_checkpointing": True}})
    first, second, checkpointed = (made(one, place.device) for one in (way, way, again))
    _close("the losses once more", second.losses, first.losses, FIRST)
    _close("with checkpointed activations", checkpointed.losses, first.losses, FIRST)
    _close("the CPU's mean loss", first.losses.mean(), made(way, "cpu").losses.mean(), 0.2)
    return Finding(f"the same twice, and with checkpointed activations: {first.losses[-1]:.4f}")


def packed(place: Place) -> Finding:
    """Granules in one forward pass have the loss and the gradients of each alone."""
    told = []
    for precision, dropout in product(("fp32", "bf16"), (0.0, DROPPED)):
        way = Way(
            settings={"training": {"precision": precision, "dropout": dropout, "clip_norm": 0.0}}
        )
        with workers_on(place.device):
            stepper, sides = new_stepper(way)
            work = StepWork(0, 0, [granule(number, sides) for number in range(PACKED)])
            weights = dict(stepper.checkpoint(0).weights)
            found = stepper.gradients(work, weights)
            with one_by_one(stepper):
                expected = stepper.gradients(work, weights)
        is_exact = precision == "fp32"
        _close("the loss", found[0], expected[0], FIRST if is_exact else BF16_CURVE)
        apart = all_same("gradients", found[1], expected[1], 2e-4 if is_exact else 0.1)
        told.append(f"{precision}, dropout {dropout}: gradients {apart:.1e} apart")
    return Finding("; ".join(told))


def compiled_layers(place: Place) -> Finding:
    """Compiled layers have the loss and the gradients of the others, at any number of tokens."""
    from torch._dynamo.utils import counters

    told = []
    # Compiling takes longer than other checks, and a part has six minutes: two combinations do.
    for precision, dropout in (("fp32", 0.0), ("bf16", DROPPED)):
        way = Way(
            settings={"training": {"precision": precision, "dropout": dropout, "clip_norm": 0.0}}
        )
        counters.clear()
        with workers_on(place.device):
            stepper, sides = new_stepper(way)
            weights = dict(stepper.checkpoint(0).weights)
            is_exact = precision == "fp32"
            for count in (1, PACKED):
                work = StepWork(0, 0, [granule(number, sides) for number in range(count)])
                expected = stepper.gradients(work, weights)
                with compiling(place):
                    found = stepper.gradients(work, weights)
                _close("the loss", found[0], expected[0], FIRST if is_exact else BF16_CURVE)
                apart = all_same("gradients", found[1], expected[1], 2e-4 if is_exact else 0.1)
        if not counters["stats"]["unique_graphs"] or counters["graph_break"]:
            raise AssertionError(f"not all of a layer was compiled: {dict(counters)}")
        told.append(f"{precision}, dropout {dropout}: gradients {apart:.1e} apart")
    return Finding("; ".join(told))


@contextmanager
def compiling(place: Place) -> Iterator[None]:
    """While this process compiles layers.

    Raises:
        SkippedError: There is no compiler for the device.
    """
    try:
        compile_layers(torch.device(place.device), place.folder / "compiled")
    except InputError as error:
        raise SkippedError(str(error)) from error
    try:
        yield
    finally:
        compile_nothing()


@contextmanager
def one_by_one(stepper: TorchStepper) -> Iterator[None]:
    """While a stepper passes each side of each granule through the encoder alone."""
    with patch.object(stepper, "_enough", 1):
        yield


def made(way: Way, device: str) -> Made:
    """Makes some steps of a way on a device."""
    with workers_on(device):
        stepper, sides = new_stepper(way)
        first = stepper.checkpoint(0)
        losses = [
            stepper.step(
                StepWork(
                    index, 0, [granule(GRANULES * index + one, sides) for one in range(GRANULES)]
                ),
                RATE,
            )
            for index in range(MADE)
        ]
        assert stepper.gradient_norm is not None
        return Made(np.array(losses), stepper.gradient_norm, first, stepper.checkpoint(MADE))


def new_stepper(way: Way) -> tuple[TorchStepper, tuple[str, ...]]:
    """A stepper on the device that workers find, and the sides of its granules."""
    training = {"framework": "torch", "precision": "fp32", "granules_per_step": GRANULES}
    tree = {**way.settings, "training": {**training, **way.settings.get("training", {})}}
    config = parse(tree)
    own = LOSSES.load(config.objective.name).token_loss
    sides = PAIR if own is None else PAIR[:1]
    ids = SpecialIds(special=(0, 1, 2, 3, 4), mask=4, vocabulary=VOCABULARY)
    run = SimpleNamespace(config=config, sides=sides, special_ids=ids)
    run.by_source = (run,)
    task: Any = SimpleNamespace(run=run)
    trained, frozen = split(config.encoder, random_weights(way.spec, 3), config.training.seed)
    fresh = {} if own is None else fresh_weights(own, way.spec, config.training.seed)
    checkpoint = Checkpoint(0, way.spec, {**trained, **fresh}, {}, frozen)
    return TorchStepper(task, checkpoint, SingleProcess()), sides


def _moved_apart(found: Made, expected: Made) -> float:
    """How far weights are apart, over how far they have come."""
    # A key's bias changes no share of attention: its gradient is rounding alone.
    names = [name for name in expected.last.weights if not name.endswith(".key.bias")]
    theirs = _joined(expected.last.weights, names)
    way = np.linalg.norm(theirs - _joined(expected.first.weights, names))
    return float(np.linalg.norm(_joined(found.last.weights, names) - theirs) / way)


def _joined(arrays: Mapping[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    return np.concatenate([arrays[name].ravel() for name in names])


def _close(what: str, found: Any, expected: Any, tolerance: float) -> None:
    """Holds numbers against one another, each for itself.

    Raises:
        AssertionError: One is farther off.
    """
    apart = float(np.abs(np.asarray(found) / np.asarray(expected) - 1).max())
    if not apart <= tolerance:
        raise AssertionError(f"{what} {apart:.2g} apart, more than {tolerance:.2g}")
