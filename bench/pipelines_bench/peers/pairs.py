"""The prepared pairs as token ids, in random batches, as any library takes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipelines.files.prepared_folder import PreparedFolder
from pipelines.lanes.files import LaneManifest
from pipelines.lanes.plan import GranuleAddress
from pipelines.lanes.reader import LaneReader
from pipelines.settings import Config

PADDING = -1
"""No token has this id, so that the lengths of texts can be seen."""

Pair = tuple[np.ndarray, np.ndarray]
"""int32: the token ids of an anchor and of its positive."""


def random_pairs(config: Config, count: int) -> list[Pair]:
    """So many different pairs of the lanes in random order, or all where there are fewer.

    Args:
        config: Its seed decides which.
        count: How many.
    """
    lanes = PreparedFolder.of(config).lanes.path
    manifest = LaneManifest.load(lanes)
    generator = np.random.default_rng(config.training.seed)
    granules = generator.permutation(manifest.lanes * manifest.rows)
    reader = LaneReader(lanes, manifest, ("anchor", "positive"))
    # Examples of one granule are of like length: they come apart again.
    found = [
        pair
        for number in granules[: -(-count // manifest.granule)]
        for pair in _pairs(reader, *divmod(int(number), manifest.lanes))
    ]
    return [found[place] for place in generator.permutation(len(found))[:count]]


def _pairs(reader: LaneReader, row: int, lane: int) -> list[Pair]:
    sides = reader.granule(GranuleAddress(lane=lane, row=row)).sides
    texts = (
        [ids[:length] for ids, length in zip(side.token_ids, side.lengths, strict=True)]
        for side in (sides["anchor"], sides["positive"])
    )
    return [*zip(*texts, strict=True)]


def padded(pairs: Sequence[Pair], width: int | None = None) -> np.ndarray:
    """Pairs as one array, int32 [pairs, 2, width], padded with :data:`PADDING`.

    Args:
        pairs: One at least.
        width: Tokens of a text; of the longest by default.
    """
    longest = max(len(text) for pair in pairs for text in pair)
    array = np.full((len(pairs), 2, width or longest), PADDING, np.int32)
    for row, pair in zip(array, pairs, strict=True):
        for place, text in zip(row, pair, strict=True):
            place[: len(text)] = text
    return array
