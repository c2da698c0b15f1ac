"""The weights and AdamW's moments in Megatron's distributed optimiser. Runs on executors.

The optimiser of a worker has a piece of what the worker holds: the workers that hold the same part
of the encoder, one of each replica, share it out, as one row of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as processes

from pipelines.models.division import part_of
from pipelines.models.weights import Weights
from pipelines.runs.checkpoint import Checkpoint
from pipelines.settings.placement import Place, Placement
from pipelines.training.steppers.sharded import KINDS
from pipelines.training.steppers.torch import to_numpy


class _Piece(NamedTuple):
    """What this worker's optimiser has of a weight.

    Attributes:
        shape: Of the worker's part of the weight.
        numbers: Which of the part's numbers they are.
        values: fp32 [numbers], which the optimiser updates in place.
    """

    shape: Sequence[int]
    numbers: slice
    values: torch.Tensor


class OptimiserState:
    """The state of this worker's part, from and to checkpoints of the whole encoder.

    Args:
        optimiser: Megatron's, of one model.
        weights: The parameters of this worker, by canonical name.
    """

    def __init__(self, optimiser: Any, weights: Mapping[str, torch.nn.Parameter]) -> None:
        (self._optimiser,) = optimiser.chained_optimizers
        names = {parameter: name for name, parameter in weights.items()}
        self._pieces = {names[parameter]: piece for parameter, piece in self._found()}

    def take(self, part: Checkpoint) -> None:
        """Gives the optimiser its moments, and how many updates came before.

        Args:
            part: This worker's part of a checkpoint; without moments it is a start.
        """
        for name, piece in self._pieces.items():
            state = {"step": torch.tensor(float(part.step))}
            for kind, key in KINDS.items():
                own = torch.zeros_like(piece.values)
                if part.moments:
                    flat = np.ascontiguousarray(part.moments[f"{kind}/{name}"]).reshape(-1)
                    own.copy_(torch.from_numpy(flat[piece.numbers]))
                state[key] = own
            self._optimiser.optimizer.state[piece.values] = state

    def whole(self, shapes: Mapping[str, Sequence[int]], holder: Holder) -> tuple[Weights, Weights]:
        """Weights and moments of the whole encoder, on rank 0; all workers call it at once.

        Each array is the sum of what the workers have of it, and zero elsewhere: whose pieces they
        are need not be known, and a sum with zeros is exact.

        Args:
            shapes: Of all weights of the encoder.
            holder: What this worker has of them.
        """
        weights: Weights = {}
        moments: Weights = {}
        for name, shape in shapes.items():
            piece = self._pieces.get(name) if holder.counts(name) else None
            state = {} if piece is None else self._optimiser.optimizer.state[piece.values]
            told = {"": None if piece is None else piece.values}
            told |= {kind: state.get(key) for kind, key in KINDS.items()}
            for kind, values in told.items():
                array = np.zeros(shape, np.float32)
                if piece is not None and values is not None:
                    own = np.zeros(piece.shape, np.float32)
                    own.reshape(-1)[piece.numbers] = to_numpy(values)
                    holder.part(array, name)[...] = own
                self._add_up(array)
                if holder.is_first:
                    (moments if kind else weights)[f"{kind}/{name}" if kind else name] = array
        return weights, {key: moments[key] for kind in KINDS for key in _of(kind, moments)}

    def _add_up(self, array: np.ndarray) -> None:
        """Replaces rank 0's array by the sum of all workers'."""
        device = next(iter(self._pieces.values())).values.device
        total = torch.from_numpy(array).to(device)
        processes.reduce(total, dst=0)
        if device.type != "cpu":
            array[...] = to_numpy(total)

    def _found(self) -> Iterator[tuple[torch.nn.Parameter, _Piece]]:
        """The pieces, by the library's own books."""
        parameters = chain.from_iterable(self._optimiser.model_fp32_groups)
        pieces = chain.from_iterable(self._optimiser.shard_fp32_groups)
        for parameter, values in zip(parameters, pieces, strict=True):
            own = self._optimiser._get_model_param_range_map(parameter)["param"]
            yield parameter, _Piece(tuple(parameter.shape), slice(own.start, own.end), values)


class Holder:
    """What a worker has of the arrays of the whole encoder.

    Args:
        axes: Along which members divide a weight, by name.
        placement: Of the workers.
        place: Of this one.
    """

    def __init__(self, axes: Mapping[str, int], placement: Placement, place: Place) -> None:
        self._axes, self._placement, self._place = axes, placement, place
        self.is_first = placement.rank(place) == 0

    def counts(self, name: str) -> bool:
        """Whether its numbers are needed: each member has the weights that are not divided."""
        return name in self._axes or self._place.member == 0

    def part(self, array: np.ndarray, name: str) -> np.ndarray:
        """Its part of a whole array; a view."""
        axis = self._axes.get(name)
        return array if axis is None else part_of(array, axis, self._placement, self._place)


def _of(kind: str, moments: Weights) -> list[str]:
    return [key for key in moments if key.startswith(f"{kind}/")]
