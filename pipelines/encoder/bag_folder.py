"""Static bags of token embeddings as the StaticEmbedding module of sentence-transformers.

The module tokenises without special tokens, and embeds a text as the mean of all its tokens'
vectors. How many tokens of a text are read stands in its tokenizer, which the module uses as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pipelines import storage
from pipelines.encoder.spec import EncoderSpec
from pipelines.encoder.weights import WORDS, Weights, load_weights, save_weights
from pipelines.errors import InputError
from pipelines.tokens.vocabulary import TOKENIZER_FILE, copy_tokenizer, load_tokenizer

MODULE = "StaticEmbedding"
WEIGHT_FILE = "model.safetensors"

_FOLDER = "0_StaticEmbedding"
"""Releases before 5 take what stands in the root for a transformer."""
_NAMES = ("embedding.weight", "embeddings")
"""Of the matrix, as sentence-transformers writes it, and as model2vec does."""
_ENDS = 2
"""The special tokens around a text, which a spec's length counts."""
_UNLIMITED = 2**31 - 1
"""Tokens of a text that is never cut."""


def read_bag(folder: Path, modules: Mapping[str, str]) -> tuple[EncoderSpec, Weights]:
    """Reads a folder whose first module is a StaticEmbedding.

    Args:
        folder: The sentence-transformers folder.
        modules: The path of each module in it, by its class.

    Raises:
        InputError: With the key ``encoder.start``, for further modules than Normalize, weights
            other than one matrix, and a tokenizer without a special token at either end.
    """
    if list(modules)[1:] not in ([], ["Normalize"]):
        raise _refusal(folder, f"has the modules {', '.join(modules)}")
    home = folder / modules[MODULE]
    for file in (WEIGHT_FILE, TOKENIZER_FILE):
        if not (home / file).is_file():
            raise _refusal(folder, f"has no {file} for its {MODULE}")
    weights = load_weights(home / WEIGHT_FILE)
    name, *others = sorted(weights)
    if name not in _NAMES or others:
        raise _refusal(folder, f"holds {', '.join(sorted(weights))}, not {_NAMES[0]} alone")
    if load_tokenizer(folder).num_special_tokens_to_add(is_pair=False) != _ENDS:
        raise _refusal(folder, "has a tokenizer that adds no [CLS] or [SEP]")
    words = np.ascontiguousarray(weights[name], dtype=np.float32)
    cutting = storage.read_json(home / TOKENIZER_FILE).get("truncation")
    spec = EncoderSpec.bag(
        vocabulary=words.shape[0],
        hidden=words.shape[1],
        normalise="Normalize" in modules,
        max_length=cutting["max_length"] + _ENDS if cutting else _UNLIMITED,
    )
    return spec, {WORDS: words}


def write_bag(
    folder: Path, spec: EncoderSpec, weights: Mapping[str, np.ndarray], tokenizer_folder: Path
) -> dict[str, str]:
    """Writes the module.

    Args:
        folder: The sentence-transformers folder; existing.
        spec: The shape.
        weights: fp32, in canonical names.
        tokenizer_folder: Holds the tokenizer's files.

    Returns:
        The path of the module, by its class.
    """
    home = folder / _FOLDER
    home.mkdir()
    copy_tokenizer(tokenizer_folder, home, spec.max_length)
    tokenizer = load_tokenizer(home)
    tokenizer.enable_truncation(spec.max_length - _ENDS)
    tokenizer.save(str(home / TOKENIZER_FILE))
    save_weights(home / WEIGHT_FILE, {_NAMES[0]: weights[WORDS]})
    return {MODULE: _FOLDER}


def _refusal(folder: Path, problem: str) -> InputError:
    return InputError(
        "encoder.start", f"{folder} {problem}", "a StaticEmbedding that sentence-transformers saved"
    )
