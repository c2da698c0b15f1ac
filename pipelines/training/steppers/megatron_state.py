"""AdamW's moments in Megatron's distributed optimiser. Runs on executors.

The optimiser of a worker has a piece of what the worker holds: the workers that hold the same part
of the encoder, one of each replica, share it out, as one row of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as processes

from pipelines.runs.checkpoint import Checkpoint
from pipelines.training.steppers.sharded import KINDS


class _Piece(NamedTuple):
    """What this worker's optimiser has of a weight.

    Attributes:
        numbers: Which of the numbers of the worker's part they are.
        values: fp32 [numbers], which the optimiser updates in place.
    """

    numbers: slice
    values: torch.Tensor


class Moments:
    """The moments of this worker's part, from and to checkpoints.

    Args:
        optimiser: Megatron's, of one model.
        weights: The parameters of this worker, by canonical name.
        group: The workers that hold the same part.
    """

    def __init__(
        self, optimiser: Any, weights: Mapping[str, torch.nn.Parameter], group: Any
    ) -> None:
        (self._optimiser,) = optimiser.chained_optimizers
        self._weights, self._group = weights, group
        names = {parameter: name for name, parameter in weights.items()}
        self._pieces = {names[parameter]: piece for parameter, piece in self._found()}

    def take(self, part: Checkpoint) -> None:
        """Gives the optimiser its state, which it would begin at its first update.

        Args:
            part: This worker's part of a checkpoint; without moments it is a start.
        """
        for group in self._optimiser.param_groups:
            # Where Transformer Engine or Apex is installed, their AdamW counts updates here.
            group["step"] = part.step
        for name, piece in self._pieces.items():
            state = {"step": torch.tensor(float(part.step), device=piece.values.device)}
            for kind, key in KINDS.items():
                own = torch.zeros_like(piece.values)
                if part.moments:
                    flat = np.ascontiguousarray(part.moments[f"{kind}/{name}"]).reshape(-1)
                    own.copy_(torch.from_numpy(flat[piece.numbers]))
                state[key] = own
            self._optimiser.optimizer.state[piece.values] = state

    def whole(self, key: str) -> torch.Tensor:
        """One of the moments of the part, with the first replica; all replicas call it at once.

        It is the sum of the pieces, with zeros around them, which is exact.

        Args:
            key: Its kind, a slash, and the name of the weight.
        """
        kind, _, name = key.partition("/")
        whole = torch.zeros_like(self._weights[name])
        if (piece := self._pieces.get(name)) is not None:
            own = self._optimiser.optimizer.state[piece.values][KINDS[kind]]
            whole.view(-1)[piece.numbers] = own
        processes.reduce(whole, dst=processes.get_global_rank(self._group, 0), group=self._group)
        return whole

    def _found(self) -> Iterator[tuple[torch.nn.Parameter, _Piece]]:
        """The pieces, by the library's own books."""
        parameters = chain.from_iterable(self._optimiser.model_fp32_groups)
        pieces = chain.from_iterable(self._optimiser.shard_fp32_groups)
        for parameter, values in zip(parameters, pieces, strict=True):
            own = self._optimiser._get_model_param_range_map(parameter)["param"]
            yield parameter, _Piece(slice(own.start, own.end), values)
