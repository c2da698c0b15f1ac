"""What is random in the reconstruction of texts: which tokens are hidden, replaced or deleted.

It follows from (seed, epoch, granule) alone, by numpy's Philox, which is specified to the bit: it
is the same on any number of workers, on any machine, and when a step is made once more.
"""

from __future__ import annotations

import math

import numpy as np

from pipelines.lanes.files import Side
from pipelines.lanes.plan import noise_seed
from pipelines.tokens.vocabulary import SpecialIds

_SITE = 1 << 20
"""Tells this noise apart from that of dropout, which has a site for each side of an example."""
_AT_ONCE = 1 << 18
"""Elements for which :func:`some_of` holds keys and ranks, about."""
MASKED, REPLACED = 0.8, 0.1
"""Of the tokens that are to be predicted: those that become the mask token, and those that become
any other. The rest is left, so that the encoder cannot tell which tokens are as they were.

Source: Devlin et al., arXiv:1810.04805, section 3.1."""


def generator(seed: int, epoch: int, granule: int) -> np.random.Generator:
    """Draws what is random in a granule.

    Args:
        seed: ``training.seed``.
        epoch: Of the step.
        granule: Its number.
    """
    return np.random.Generator(np.random.Philox(noise_seed(seed, epoch, granule, _SITE)))


def is_token(side: Side) -> np.ndarray:
    """Bool [texts, width], false for padding."""
    found: np.ndarray = np.arange(side.token_ids.shape[1]) < side.lengths[:, None]
    return found


def are_words(side: Side, ids: SpecialIds) -> np.ndarray:
    """Bool [texts, width], true for what is neither padding nor special."""
    return is_token(side) & ~np.isin(side.token_ids, ids.special)


def some_of(candidates: np.ndarray, share: float, draw: np.random.Generator) -> np.ndarray:
    """Chooses a share of what is true in each row; at least one where there are any.

    Args:
        candidates: Bool [..., width].
        share: Of each row's, rounded to a whole number.
        draw: The noise.

    Returns:
        Bool [..., width].
    """
    # Keys and ranks take 24 times the memory of what is returned. Numbers are drawn in the order of
    # the rows, so those of one part after the other are those of all at once.
    rows = max(1, _AT_ONCE // max(1, math.prod(candidates.shape[1:])))
    chosen = np.empty(candidates.shape, bool)
    for first in range(0, len(candidates), rows):
        part = slice(first, first + rows)
        chosen[part] = _chosen(candidates[part], share, draw)
    return chosen


def _chosen(candidates: np.ndarray, share: float, draw: np.random.Generator) -> np.ndarray:
    keys = np.where(candidates, draw.random(candidates.shape), np.inf)
    ranks = keys.argsort(axis=-1, kind="stable").argsort(axis=-1, kind="stable")
    count = candidates.sum(axis=-1, keepdims=True)
    wanted = np.minimum(np.maximum(np.rint(share * count), 1), count)
    chosen: np.ndarray = ranks < wanted
    return chosen


def masked(
    side: Side, chosen: np.ndarray, ids: SpecialIds, draw: np.random.Generator
) -> np.ndarray:
    """Token ids [texts, width] in which chosen ones are masked, replaced or left.

    Args:
        side: The texts.
        chosen: Bool [texts, width].
        ids: With a mask token.
        draw: The noise.
    """
    assert ids.mask is not None, "the driver has seen that there is one"
    fates = draw.random(chosen.shape)
    others = draw.integers(0, ids.vocabulary, chosen.shape, np.int32)
    hidden = np.where(fates < MASKED, np.int32(ids.mask), side.token_ids)
    replaced = (fates >= MASKED) & (fates < MASKED + REPLACED)
    return np.where(chosen, np.where(replaced, others, hidden), side.token_ids)


def kept(side: Side, stays: np.ndarray) -> Side:
    """Texts without some of their tokens.

    Args:
        side: The texts.
        stays: Bool [texts, width], false for what is deleted; at least one of each text stays.
    """
    lengths = stays.sum(axis=1).astype(np.int32)
    token_ids = np.zeros_like(side.token_ids)
    token_ids[np.arange(token_ids.shape[1]) < lengths[:, None]] = side.token_ids[stays]
    return Side(token_ids, lengths)


def following(tokens: np.ndarray) -> np.ndarray:
    """At the place of each token what stands at the next one; 0, or false, at the last.

    Args:
        tokens: [texts, width].
    """
    found = np.zeros_like(tokens)
    found[:, :-1] = tokens[:, 1:]
    return found


def repeated(tokens: np.ndarray, count: int) -> np.ndarray:
    """The rows [texts, width] ``count`` times each: [texts, count, width], which is read alone."""
    texts, width = tokens.shape
    return np.broadcast_to(tokens[:, None], (texts, count, width))


def shares(chosen: np.ndarray) -> np.ndarray:
    """What each prediction counts in a mean over all that are chosen, fp32, 0 for others."""
    return chosen.astype(np.float32) / np.float32(max(int(chosen.sum()), 1))
