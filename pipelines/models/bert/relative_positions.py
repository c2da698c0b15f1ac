"""How far apart two tokens of a text are, as attention with a learnt bias tells it."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

_FARTHEST = 128
"""Tokens from which on all distances are one."""


@lru_cache(maxsize=64)
def relative_buckets(buckets: int, width: int) -> np.ndarray:
    """The bucket of each query and key, int64 [width, width].

    Half of the buckets are for keys behind the query. Of either half the first half are for one
    distance each, and the others grow by a factor.

    Source: Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
    Transformer", JMLR 2020, arXiv:1910.10683, section 2.1; rounded as `transformers` does for
    MPNet, in fp32.

    Args:
        buckets: How many there are.
        width: Tokens of a text.
    """
    places = np.arange(width)
    ahead = places[None, :] - places[:, None]
    half, distance = buckets // 2, np.abs(ahead)
    exact = half // 2
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / exact)
    grown = exact + (ratio / math.log(_FARTHEST / exact) * (half - exact)).astype(np.int64)
    near = np.where(distance < exact, distance, np.minimum(grown, half - 1))
    found: np.ndarray = near + half * (ahead > 0)
    return found
