"""How an encoder is divided between the workers that hold it together.

An architecture that can be divided declares a :class:`Division`, in terms of its weights' names
alone: which of them the members of a stage have parts of, and which belongs to which layer. From it
follows what each worker holds, whatever library computes.

Query, key, value and the wide layer of a transformer are divided by their rows, what follows each
by its columns, the words by rows; source: Shoeybi et al., "Megatron-LM: Training Multi-Billion
Parameter Language Models Using Model Parallelism", 2019, arXiv:1909.08053.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from pipelines.catalog import LOSSES
from pipelines.errors import InputError
from pipelines.models.architecture import Division
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import dense_shapes
from pipelines.settings import Config
from pipelines.settings.training import Place, Placement, layers_of_stage


def part_bounds(size: int, members: int, member: int) -> tuple[int, int]:
    """First and last of a member's part of an axis; the parts differ by one at most."""
    return size * member // members, size * (member + 1) // members


def part_of(array: np.ndarray, axis: int, placement: Placement, place: Place) -> np.ndarray:
    """A member's part of a weight; a view."""
    first, last = part_bounds(array.shape[axis], placement.members, place.member)
    return array[(slice(None),) * axis + (slice(first, last),)]


def part_shape(
    shape: Sequence[int], axis: int | None, members: int, member: int
) -> tuple[int, ...]:
    """The shape of a member's part of a weight.

    Args:
        shape: Of the whole.
        axis: Along which it is divided; None if each member has the whole.
        members: How many there are.
        member: Which of them.
    """
    if axis is None:
        return tuple(shape)
    first, last = part_bounds(shape[axis], members, member)
    return (*shape[:axis], last - first, *shape[axis + 1 :])


def stage_of(division: Division, spec: EncoderSpec, name: str, placement: Placement) -> int:
    """The stage that holds a weight: the last one holds what comes behind the layers."""
    if name in dense_shapes(spec):
        return placement.stages - 1
    layer = division.layer_of(name)
    if layer is None:
        return 0
    stages = range(placement.stages)
    held = (layer in layers_of_stage(division.layers(spec), len(stages), one) for one in stages)
    return next(stage for stage, holds in zip(stages, held, strict=True) if holds)


def check_division(division: Division | None, spec: EncoderSpec, config: Config) -> None:
    """Refuses to divide what cannot be divided; does nothing where nothing is.

    Args:
        division: Of the spec's architecture, if it has one.

    Raises:
        InputError: Naming the key, and what would do.
    """
    placement = config.training.placement
    if not placement.is_divided:
        return
    keys = {
        "training.model_parallel": placement.members,
        "training.pipeline_parallel": placement.stages,
    }
    key = next(key for key, parts in keys.items() if parts > 1)
    if division is None:
        raise InputError(
            key,
            f"an encoder of the architecture {spec.kind} cannot be divided",
            "leave it 1; training.sharding: parameters shares out the weights of any encoder",
        )
    division.check(spec, key, config.training)
    if config.encoder.lora.rank:
        raise InputError(
            key, "LoRA's small matrices are not divided", "leave it 1, or encoder.lora.rank: 0"
        )
    if placement.stages > 1 and config.encoder.freeze.is_on:
        raise InputError(
            "training.pipeline_parallel",
            "a stage of frozen layers has no gradient to pass on",
            "leave it 1, or leave encoder.freeze out",
        )
    for objective in {one.objective.name for one in config.by_source()}:
        _check_objective(key, objective)
    _check_evenly(division.evenly(spec), placement.members)
    if placement.stages > 1:
        _check_stages(division, spec, placement)


def _check_evenly(numbers: Mapping[str, int], members: int) -> None:
    largest = math.gcd(*numbers.values())
    fitting = [str(n) for n in range(1, largest + 1) if largest % n == 0]
    for what, number in numbers.items():
        if number % members:
            raise InputError(
                "training.model_parallel",
                f"{members} does not divide the {number} {what} of the encoder",
                f"one of {', '.join(fitting)}; training.sharding: parameters takes any number",
            )


def _check_objective(key: str, name: str) -> None:
    if LOSSES.load(name).reconstruction is not None:
        raise InputError(
            key,
            f"`{name}` has texts written out again by weights that are not divided",
            "leave it 1, or take another objective.name",
        )


def _check_stages(division: Division, spec: EncoderSpec, placement: Placement) -> None:
    layers, why = division.layers(spec), division.check_stages(spec)
    if why is not None:
        raise InputError("training.pipeline_parallel", why, "leave it 1")
    if placement.stages > layers:
        raise InputError(
            "training.pipeline_parallel",
            f"the encoder has {layers} layers for {placement.stages} stages",
            f"at most {layers}",
        )
