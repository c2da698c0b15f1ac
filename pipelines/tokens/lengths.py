"""How many tokens of a text are read: by a model, and by its training.

A model has a length of its own, which stands in its folder. Training may read less of its texts,
since memory and time grow with the longest of them; what follows from the corpus is
:func:`training_length`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipelines.errors import InputError
from pipelines.models import ARCHITECTURES
from pipelines.settings import Config
from pipelines.settings.tokens import LONGEST_UNASKED, SHORTEST_TEXT
from pipelines.tokens.start import (
    folder_architecture,
    folder_modules,
    refusing_damage,
    start_folder,
)

UNLIMITED = 2**31 - 1
"""Tokens of a text that is never cut."""
WHOLE_SHARE = 0.99
"""Share of the examples that training reads whole, where no length is set."""


def model_length(config: Config) -> int:
    """Tokens of a text that the model reads, when it is trained, [CLS] and [SEP] included.

    As many as ``encoder.max_length`` says, or else the start reads; ``tokens.max_length`` may ask
    for more, since a model reads what it was trained on. A transformer that starts from nothing
    reads no more than that either, since nothing would train the positions behind it.

    Raises:
        InputError: There is no such start, or it has fewer positions.
    """
    told = config.tokens.max_length
    own, most = _start_lengths(config)
    asked = None if config.encoder.max_length == "corpus" else config.encoder.max_length
    length = asked or max(own, told or 0)
    if length > most:
        raise InputError(
            "tokens.max_length" if asked is None else "encoder.max_length",
            f"{length} is more than the start's {most} positions",
            f"at most {most}",
        )
    return length


def longest_unasked(config: Config) -> int:
    """Tokens of a text that a model can read, of as many as anybody gets who names no number."""
    return min(_start_lengths(config)[1], LONGEST_UNASKED)


def _start_lengths(config: Config) -> tuple[int, int]:
    """Tokens of a text that the start reads, and that it can read.

    Raises:
        InputError: There is no such start, or it is damaged.
    """
    encoder, folder = config.encoder, start_folder(config)
    if folder is None:
        return ARCHITECTURES.load(encoder.kind).random_lengths(config.tokens.max_length)
    with refusing_damage(folder):
        modules = folder_modules(folder)
        own, most = folder_architecture(folder, modules).folder.lengths(folder, modules)
    return own, UNLIMITED if encoder.keep_layers == 0 else most


def reading_limit(config: Config) -> int:
    """Tokens of a text that training may read: as many as are set, or as the model reads.

    Unset it is no more than :data:`~pipelines.settings.tokens.LONGEST_UNASKED`.

    Raises:
        InputError: See :func:`model_length`.
    """
    return config.tokens.max_length or min(model_length(config), LONGEST_UNASKED)


def training_length(longest: np.ndarray, most: int, bucket: int) -> int:
    """The smallest multiple of a bucket that leaves :data:`WHOLE_SHARE` of the examples whole.

    So a few long texts do not decide what the others cost.

    Args:
        longest: int64 [lengths]; how many examples have a longest text of each length, from 0 on.
        most: What it may be, and is where more would be needed.
        bucket: Tokens between two lengths.
    """
    whole = np.cumsum(longest)
    enough = int(np.searchsorted(whole, WHOLE_SHARE * whole[-1]))
    return min(-(-max(enough, SHORTEST_TEXT) // bucket) * bucket, most)


def told_cuts(manifest: Mapping[str, Any]) -> str:
    """What the manifest of the tokens says about their lengths, for people."""
    most, texts = f"texts of up to {manifest['max_length']} tokens", manifest["texts"]
    if not manifest["cut"]:
        return f"{most}, none of {texts:,} cut"
    whole = manifest["tokens"] + manifest["dropped"]
    return (
        f"{most}, {manifest['cut']:,} of {texts:,} ({_share(manifest['cut'], texts)}) cut,"
        f" {_share(manifest['dropped'], whole)} of the tokens left out"
    )


def _share(part: int, whole: int) -> str:
    share = 100 * part / max(whole, 1)
    return f"{share:.1f} %" if share >= 0.1 else "less than 0.1 %"
