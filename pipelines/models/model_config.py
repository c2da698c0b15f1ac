"""Check a checkpoint's config.json against its weights, before anything is built of it.

A size of 1e8 layers costs minutes and gigabytes once a model is built, and one of -1 layers trains
without an error. So sizes are compared with the names and the shapes of the weights that are there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from pipelines.models.adaptation import layer_of
from pipelines.models.sentence_modules import CONFIG_FILE, WHOLE_COPY, refuse
from pipelines.tokens.model_files import ATTENTIONS

_IMPLEMENTATIONS = {
    "attn_implementation": ATTENTIONS,
    "experts_implementation": ("eager", "grouped_mm", "batched_mm"),
}
"""What config.json may say of how a part is computed: other names are of code to download."""
_EPSILON = re.compile(r"(?:^|_)(?:eps|epsilon)$")
_SHARE = re.compile(r"(?:^|_)(?:dropout(?:_prob)?|pdrop)$")
_COUNT = re.compile(r"(?:^|_)(?:layers?|heads?|groups?|blocks?|experts?)(?:_num)?$")
_MOST = 16_384
"""Layers, heads or groups of any model; more are a damaged file."""
_POSITIONS = re.compile(r"(?:^|[._])(?:position_embeddings?|embed_positions|wpe)\.weight$")


def check_implementations(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse names of implementations that a library would download.

    Raises:
        InputError: With the key ``encoder.start``.
    """
    for key, value in _entries(config):
        known = _IMPLEMENTATIONS.get(key.lstrip("_").removesuffix("_internal"), ())
        told = value.values() if isinstance(value, Mapping) else [value]
        for name in told if known else ():
            if name is not None and name not in known:
                refuse(folder, f"has `{key}: {name}`, code that is never downloaded")


def check_size(folder: Path, key: str, value: Any, least: int = 1) -> None:
    """Refuse a size that is too small.

    Raises:
        InputError: With the key ``encoder.start``.
        TypeError: It is no whole number.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{key} in {CONFIG_FILE} is {value!r}, no whole number")
    if value < least:
        _refuse(folder, key, value, f"takes {least} or more")


def check_heads(folder: Path, key: str, heads: int, width: int) -> None:
    """Refuse heads that do not share a width evenly.

    Raises:
        InputError: With the key ``encoder.start``.
    """
    check_size(folder, key, heads)
    if width % heads:
        _refuse(folder, key, heads, f"does not divide {width}")


def check_layers(folder: Path, key: str, layers: Any, names: Iterable[str]) -> None:
    """Refuse a number of layers that is none, or more than have weights.

    Args:
        folder: Of the checkpoint.
        key: What its config.json calls them.
        layers: The number.
        names: Of the weights; where they name no layer, those are shared.

    Raises:
        InputError: With the key ``encoder.start``.
    """
    check_size(folder, key, layers)
    stored = {number: name for name in names if (number := layer_of(name)) is not None}
    if not stored or layers <= max(stored) + 1:
        return
    last = max(stored)
    missing = stored[last].replace(f".{last}.", f".{last + 1}.", 1)
    told = f"does not fit its {CONFIG_FILE} (`{key}: {layers}`)"
    refuse(folder, f"{told}: the weight {missing} is missing", WHOLE_COPY)


def check_numbers(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse numbers that no model can have, whatever its type.

    Raises:
        InputError: With the key ``encoder.start``.
    """
    for key, value in _entries(config):
        if isinstance(value, float) and not math.isfinite(value):
            _refuse(folder, key, value, "is no number")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if _EPSILON.search(key) and value is not None and not (is_number and 0 < value < 1):
            _refuse(folder, key, value, "is between 0 and 1")
        if _SHARE.search(key) and is_number and not 0 <= value < 1:
            _refuse(folder, key, value, "takes 0 to less than 1")
        if is_number and _COUNT.search(key) and abs(value) > _MOST:
            _refuse(folder, key, value, f"takes {_MOST} at most")


def check_positions(folder: Path, positions: int | None, shapes: Mapping[str, Any]) -> None:
    """Refuse more positions than a table of them has rows, if the weights have such a table.

    Raises:
        InputError: With the key ``encoder.start``.
    """
    rows = [shape[0] for name, shape in shapes.items() if _POSITIONS.search(name)]
    if positions and rows and positions > max(rows):
        told = f"{positions} positions, and its weights {max(rows)}"
        refuse(folder, f"does not fit its {CONFIG_FILE}: that has {told}", WHOLE_COPY)


def _entries(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keys and values of a configuration, and of those inside it."""
    for key, value in config.items():
        yield key, value
        if isinstance(value, Mapping):
            yield from _entries(value)


def _refuse(folder: Path, key: str, value: Any, limit: str) -> NoReturn:
    refuse(folder, f"has `{key}: {value}` in {CONFIG_FILE}, which {limit}", WHOLE_COPY)
