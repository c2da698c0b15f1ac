"""Folders of cross-encoders, as sentence-transformers' `CrossEncoder` reads them.

A cross-encoder reads a query and a document together, and returns one score. It is slower than an
encoder, and more accurate, so it ranks a few documents again, or scores pairs for a training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.errors import InputError
from pipelines.files.copies import local_folder
from pipelines.files.locations import Location
from pipelines.models.identity import model_digest

_CLASSIFIER = "ForSequenceClassification"
_SIGMOID, _IDENTITY = "Sigmoid", "Identity"
_ACTIVATIONS = (_SIGMOID, _IDENTITY)
_REMEDY = "Name a folder that `CrossEncoder.save_pretrained` has written"


@dataclass(frozen=True)
class Reranker:
    """A cross-encoder of one score; plain values, sent to executors.

    ``key`` is the setting or the option that names it. ``is_probability``: whether its folder asks
    for scores between 0 and 1, by a sigmoid.
    """

    folder: Location
    key: str
    digest: str
    is_probability: bool


def read_reranker(folder: Location, key: str) -> Reranker:
    """Describe the cross-encoder in a folder.

    ``key`` is the setting or the option that names it.

    Raises:
        InputError: It is no cross-encoder of one score.
    """
    if not folder.is_dir():
        raise InputError(key, f"there is no folder {folder}", _REMEDY)
    local = local_folder(folder)
    config = _config(folder, local / "config.json", key)
    named = [*(config.get("architectures") or ()), ""][0]
    if not named.endswith(_CLASSIFIER):
        problem = f"{folder} holds {named or 'another model'}, which gives no score for a pair"
        raise InputError(key, problem, _REMEDY)
    modules = local / "modules.json"
    if modules.is_file() and len(json.loads(modules.read_text(encoding="utf-8"))) > 1:
        raise InputError(key, f"{folder} has modules behind its transformer", _REMEDY)
    labels = config.get("id2label") or config.get("num_labels", 2)
    count = len(labels) if isinstance(labels, Mapping) else int(labels)
    if count != 1:
        raise InputError(
            key, f"{folder} gives {count} scores for a pair", "Name one with one label"
        )
    return Reranker(folder, key, model_digest(folder), _is_probability(folder, config, key))


def _config(folder: Location, path: Any, key: str) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        problem = f"{folder} has no readable config.json ({error})"
        raise InputError(key, problem, _REMEDY) from None
    if not isinstance(found, dict):
        raise InputError(key, f"the config.json of {folder} is no object", _REMEDY)
    return found


def _is_probability(folder: Location, config: Mapping[str, Any], key: str) -> bool:
    """Return whether scores pass a sigmoid; it is the default of one score."""
    known = (config.get("sentence_transformers") or {}).get("activation_fn")
    named = known or config.get("sbert_ce_default_activation_function") or _SIGMOID
    name = str(named).rpartition(".")[2]
    if name not in _ACTIVATIONS:
        problem = f"{folder} has the activation {named}"
        raise InputError(key, problem, "Name one with Sigmoid or Identity")
    return name == _SIGMOID
