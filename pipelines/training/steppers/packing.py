"""The texts that PyTorch embeds together.

Runs on executors.

The encoder embeds a *batch* at once: all sides of as many granules as fit in
``training.tokens_per_forward``. If one granule has more padded tokens, a batch has a part of one
side, so that long texts fit in memory. The loss still covers the whole granule or step. A first
pass embeds the texts without a graph. A second pass embeds each batch once more, and pulls the
loss's gradient on the embeddings through it.

Source: gradient caching, Gao, Zhang, Han and Callan, "Scaling Deep Contrastive Learning Batch Size
under Memory Limited Setup", RepL4NLP 2021, arXiv:2101.06983.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from pipelines.models.spec import NoisePlace
from pipelines.settings import TrainingSettings
from pipelines.training.steppers.base import Batch, Texts

CPU_STATES = 2**20
"""Numbers of hidden states, of all tokens, from which a CPU gains nothing by more texts: its cache
holds less of them."""
GPU_TOKENS = 2**16
"""Tokens from which a GPU gains nothing by more."""
_GPU_SHARE = 4
"""The reciprocal of the share of a GPU's memory for the texts embedded together by default."""
_BYTES = {"fp32": 128, "bf16": 64}
"""Bytes for the gradient of a token, for each number of its hidden state and each layer; with room,
see `docs/concepts/training.md`."""
_INPUT_BYTES = 4
"""The same of a layer's input, which alone remains of checkpointed activations."""


def default_tokens(hidden: int, layers: int, training: TrainingSettings, memory: int | None) -> int:
    """Return the padded tokens up to which to embed granules together by default.

    Args:
        hidden: Width of the encoder.
        memory: Bytes of the worker's GPU; None on a CPU.
    """
    if memory is None:
        return CPU_STATES // hidden
    whole = _BYTES[training.precision]
    checkpointed = training.activation_checkpointing
    kept = layers * _INPUT_BYTES + whole if checkpointed else max(layers, 1) * whole
    return min(memory // _GPU_SHARE // (hidden * kept), GPU_TOKENS)


class Forward(NamedTuple):
    """Granules with all of their texts in one batch, or one granule in several batches.

    `granules` are positions among the worker's granules of the step.
    """

    granules: range
    batches: list[Batch]


def parts_needed(texts: int, width: int, most: int | None) -> int:
    """Return the number of parts of a side for the encoder.

    A part has at most `most` padded tokens, or one text; None sets no limit. `width` is that of the
    longest of the texts, in tokens.
    """
    if most is None or texts * width <= most:
        return 1
    return -(-texts // max(most // width, 1))


def forwards(
    granules: Sequence[Sequence[Texts]], widths: np.ndarray, most: int | None, enough: int
) -> Iterator[Forward]:
    """Yield the forward passes of a worker's granules, given the sides of each.

    Args:
        granules: All with as many texts in each side.
        widths: int [granules, sides], from which alone the passes follow.
        most: Padded tokens of a batch, as far as it has more than one text; None: no limit.
        enough: Padded tokens up to which to join granules that need no parts.
    """
    texts = len(granules[0][0].lengths)
    sizes = texts * widths.sum(axis=1)
    first = 0
    while first < len(granules):
        if most is not None and sizes[first] > most:
            counts = [parts_needed(texts, width, most) for width in widths[first].tolist()]
            of_sides = zip(granules[first], counts, strict=True)
            parts = [[part] for side, count in of_sides for part in _split(side, count)]
            yield Forward(range(first, first + 1), parts)
            first += 1
            continue
        last = first + 1
        while last < len(granules) and sizes[first : last + 1].sum() <= enough:
            last += 1
        yield Forward(range(first, last), [[*chain.from_iterable(granules[first:last])]])
        first = last


def packs(batch: Batch, enough: int) -> list[list[int]]:
    """Return the positions of neighbouring texts to embed as one, with `enough` padded tokens."""
    found: list[list[int]] = []
    tokens = enough
    for number, texts in enumerate(batch):
        tokens += texts.room
        if tokens <= enough and found:
            found[-1].append(number)
        else:
            found.append([number])
            tokens = texts.room
    return found


_WIDER = 1.125
"""Padded tokens of texts in one rectangle, over those in a rectangle of each width."""


def packs_by_width(batch: Batch, enough: int) -> list[list[int]]:
    """Return the positions of texts of similar width to embed as one rectangle of that size."""
    found: list[list[int]] = []
    texts = apart = 0
    widths = [side.room // len(side.lengths) for side in batch]
    for number in sorted(range(len(batch)), key=widths.__getitem__):
        count = len(batch[number].lengths)
        texts, apart = texts + count, apart + batch[number].room
        if found and texts * widths[number] <= min(enough, _WIDER * apart):
            found[-1].append(number)
        else:
            found.append([number])
            texts, apart = count, batch[number].room
    return found


def _split(side: Texts, count: int) -> list[Texts]:
    """Return a side in parts of about the same size, each with its part of the noise."""
    if count == 1:
        return [side]
    return [
        side._replace(
            token_ids=side.token_ids[first:last],
            lengths=side.lengths[first:last],
            within=NoisePlace(first, int(side.lengths[:first].sum()), side.width),
        )
        for first, last in bounds(len(side.lengths), count)
    ]


def bounds(texts: int, parts: int) -> Iterator[tuple[int, int]]:
    """Yield the first text of each part, and the first after it."""
    return pairwise(texts * number // parts for number in range(parts + 1))
