"""The start of a model: its architecture, the length of its texts, and its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipelines.catalog import ARCHITECTURES
from pipelines.errors import InputError
from pipelines.models.architecture import Architecture
from pipelines.models.spec import UNLIMITED
from pipelines.settings import Config
from pipelines.settings.preparing import LONGEST_UNASKED
from pipelines.tokens.router import route_modules
from pipelines.tokens.start import (
    WITHOUT_LAYERS,
    check_vocabulary,
    refusing_damage,
    start_folder,
)
from pipelines.tokens.vocabulary import checked_ends, named_tokenizer


def folder_architecture(folder: Path, modules: Sequence[tuple[str, str]]) -> Architecture:
    """Return a folder's architecture; if none fits, the first: its reader names the problem."""
    architectures: list[Architecture] = [ARCHITECTURES.load(name) for name in ARCHITECTURES]
    fitting = (
        architecture
        for architecture in architectures
        if architecture.folder.recognises(folder, modules)
    )
    return next(fitting, architectures[0])


def start_architecture(config: Config) -> Architecture:
    """Return the trained architecture: that of the start, or of the settings.

    Raises:
        InputError: There is no such start, or it is damaged.
    """
    folder = start_folder(config)
    if config.encoder.keep_layers == 0 or folder is None:
        without = config.encoder.keep_layers == 0
        named: Architecture = ARCHITECTURES.load(WITHOUT_LAYERS if without else config.encoder.kind)
        return named
    with refusing_damage(folder):
        return folder_architecture(folder, route_modules(folder, None))


def model_length(config: Config) -> int:
    """Return how many tokens of a text the trained model reads, [CLS] and [SEP] included.

    By default the start's length or ``tokens.max_length``, whichever is more: a model reads texts
    as long as in its training. ``encoder.max_length`` overrides both. A random transformer reads no
    more than the training length: nothing would train later positions.

    Raises:
        InputError: There is no such start, or it has fewer positions.
    """
    training_length = config.tokens.max_length
    start_length, most = _start_lengths(config)
    asked = None if config.encoder.max_length == "corpus" else config.encoder.max_length
    length = asked or max(start_length, training_length or 0)
    if length > most:
        raise InputError(
            "tokens.max_length" if asked is None else "encoder.max_length",
            f"{length} is more than the start's {most} positions",
            f"Set it to at most {most}",
        )
    return length


def longest_unasked(config: Config) -> int:
    """Return the model's longest length, at most the limit for settings that name no length."""
    return min(_start_lengths(config)[1], LONGEST_UNASKED)


def _start_lengths(config: Config) -> tuple[int, int]:
    """Return how many tokens of a text the start reads, and how many it can read."""
    encoder, folder = config.encoder, start_folder(config)
    if folder is None:
        architecture: Architecture = ARCHITECTURES.load(encoder.kind)
        return architecture.random_lengths(config.tokens.max_length)
    with refusing_damage(folder):
        modules = route_modules(folder, None)
        length, most = folder_architecture(folder, modules).folder.lengths(folder, modules)
    # Without layers there are no positions.
    return length, UNLIMITED if encoder.keep_layers == 0 else most


def reading_limit(config: Config) -> int:
    """Return how many tokens of a text training may read: the setting, or the model's length.

    Without the setting it is at most :data:`~pipelines.settings.preparing.LONGEST_UNASKED`.
    """
    return config.tokens.max_length or min(model_length(config), LONGEST_UNASKED)


def check_tokenizer(config: Config) -> Path | None:
    """Return the folder of the configured tokenizer; None if one is to be trained.

    Raises:
        InputError: There is no such tokenizer, or it does not fit the start checkpoint.
    """
    check_vocabulary(config)
    if config.tokens.vocabulary == "train":
        return None
    # The setting at fault is the one that names the tokenizer.
    key, source = "tokens.vocabulary", named_tokenizer(config)
    if config.tokens.vocabulary == "start":
        key = "encoder.start"
    ends = checked_ends(key, source)
    if start_architecture(config).leaves_ends_out and ends != (1, 1):
        raise InputError(
            key,
            f"the tokenizer in {source} adds no [CLS] or [SEP]",
            "Use the tokenizer of a BERT-family model",
        )
    return source
