"""What a model gave for each item of a set: what figures, and intervals of differences, are of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, eq=False)
class Observations:
    """Numbers of a model for each item of a set.

    Attributes:
        items: [items], int64: query ids, or hashes of pairs of texts; in an order that is the same
            for all models.
        values: By name, [items], float64: figures of each query times 100, or the cosine and the
            number of each pair.
    """

    items: np.ndarray
    values: Mapping[str, np.ndarray]


class Observed(Protocol):
    """What was observed of a model on a set."""

    @property
    def observations(self) -> Observations:
        """Item by item."""
        ...
