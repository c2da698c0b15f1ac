"""Static encoders: their parts, and their sentence-transformers folders.

The StaticEmbedding module of sentence-transformers tokenises without special tokens, and embeds a
text as the mean of all its tokens' vectors. Its tokenizer, which it uses unchanged, holds the
length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from pipelines.errors import InputError
from pipelines.files import records
from pipelines.models.architecture import (
    NORMALISING,
    Architecture,
    FolderFormat,
    Lengths,
    Modules,
)
from pipelines.models.sentence_modules import DENSE, read_dense, whole_weights, write_dense
from pipelines.models.spec import UNLIMITED, EncoderSpec
from pipelines.models.weights import (
    WEIGHT_FILE,
    WORDS,
    Weights,
    load_weights,
    normal_weights,
    save_weights,
)
from pipelines.tokens.model_files import TOKENIZER_FILE
from pipelines.tokens.start import read_prompts
from pipelines.tokens.vocabulary import copy_tokenizer, load_tokenizer, special_ends

STATIC_MODULE = "StaticEmbedding"
ENDS = 2
"""The special tokens around a text. A length counts them; the tokenizer of a StaticEmbedding adds
none and does not."""

_FOLDER = "0_Static"
"""Releases before 5 take a module in the root for a transformer. model2vec knows the module by its
class, in `0_StaticEmbedding`: it would leave out the length, unknown words and Normalize."""
_NAMES = ("embedding.weight", "embeddings")
"""The matrix's names in sentence-transformers and in model2vec."""
_ROWS, _FACTORS = "mapping", "weights"
"""model2vec's optional arrays beside its matrix: the row and the weight of each token."""


@dataclass(frozen=True, kw_only=True)
class StaticSpec(EncoderSpec):
    """Static token embeddings, with the word embedding as their only weights before dense layers.

    A text's embedding is the mean of its tokens' vectors without the first and the last token's
    ([CLS] and [SEP]). A text of no other tokens has zeros. Source: Wieting, Bansal, Gimpel and
    Livescu, "Towards Universal Paraphrastic Sentence Embeddings", ICLR 2016, arXiv:1511.08198.
    """

    kind: ClassVar[str] = "static"


def recognises(folder: Path, modules: Modules) -> bool:
    """Return whether the first module is a StaticEmbedding."""
    return [kind for kind, _ in modules][:1] == [STATIC_MODULE]


def read(folder: Path, modules: Modules) -> tuple[StaticSpec, Weights]:
    """Read a folder whose first module is a StaticEmbedding.

    Raises:
        InputError: With the key ``encoder.start``: further modules than Dense and Normalize,
            weights other than one matrix, or a tokenizer without a special token at either end.
    """
    (_, path), *later_modules = modules
    kinds = [kind for kind, _ in later_modules]
    layers = [DENSE] * kinds.count(DENSE)
    if kinds not in (layers, [*layers, NORMALISING]):
        raise _refusal(folder, f"has the modules {', '.join([STATIC_MODULE, *kinds])}")
    home = folder / path
    for file in (WEIGHT_FILE, TOKENIZER_FILE):
        if not (home / file).is_file():
            raise _refusal(folder, f"has no {file} for its {STATIC_MODULE}")
    weights = load_weights(home / WEIGHT_FILE)
    words = _word_rows(folder, weights)
    if special_ends(load_tokenizer(folder, modules=modules)) != (1, 1):
        raise _refusal(folder, "has a tokenizer that adds no [CLS] or [SEP]")
    spec = StaticSpec(
        vocabulary=words.shape[0],
        hidden=words.shape[1],
        dense=read_dense(folder, modules),
        normalise=NORMALISING in kinds,
        max_length=_length(home),
        prompts=read_prompts(folder),
    )
    return spec, whole_weights(folder, modules, spec, {WORDS: words})


def write(
    folder: Path, spec: StaticSpec, weights: Mapping[str, np.ndarray], tokenizer_folder: Path
) -> list[tuple[str, str]]:
    """Write the module and the dense layers after it; return class and path of each."""
    home = folder / _FOLDER
    home.mkdir()
    copy_tokenizer(tokenizer_folder, home, spec.max_length)
    # The module has no length of its own: it is the tokenizer's.
    tokenizer = load_tokenizer(home)
    if spec.max_length < UNLIMITED:
        tokenizer.enable_truncation(spec.max_length - ENDS)
    tokenizer.save(str(home / TOKENIZER_FILE))
    save_weights(home / WEIGHT_FILE, {_NAMES[0]: weights[WORDS]})
    modules = [(STATIC_MODULE, _FOLDER)]
    return modules + write_dense(folder, spec, weights, len(modules))


def lengths(folder: Path, modules: Modules) -> Lengths:
    """Return the length of the model in a folder; it may read any number of tokens."""
    return Lengths(_length(folder / dict(modules)[STATIC_MODULE]), UNLIMITED)


def _word_rows(folder: Path, weights: Weights) -> np.ndarray:
    """Return each token's vector, as sentence-transformers makes it of the stored arrays."""
    plain, quantised = _NAMES
    known = {plain: (), quantised: (_ROWS, _FACTORS)}
    name = next((name for name in known if name in weights), "")
    if not name or weights.keys() - {name, *known[name]}:
        raise _refusal(folder, f"holds {', '.join(sorted(weights))}, not only {plain}")
    words = np.asarray(weights[name], dtype=np.float32)
    if _ROWS in weights:
        words = words[weights[_ROWS]]
    if _FACTORS in weights:
        words = words * weights[_FACTORS].astype(np.float32)[:, None]
    return np.ascontiguousarray(words)


def _length(home: Path) -> int:
    """Return the tokenizer's truncation length, special tokens included."""
    path = home / TOKENIZER_FILE
    truncation = records.read_object(path).get("truncation") if path.is_file() else None
    if truncation and truncation.get("direction") == "Left":
        raise _refusal(home, f"truncates texts on the left by its {TOKENIZER_FILE}")
    return truncation["max_length"] + ENDS if truncation else UNLIMITED


def _refusal(folder: Path, problem: str) -> InputError:
    return InputError(
        "encoder.start",
        f"{folder} {problem}",
        "Name a StaticEmbedding that sentence-transformers saved",
    )


STATIC = Architecture(
    spec=StaticSpec,
    models="StaticEmbedding of sentence-transformers, model2vec",
    # Any width will do.
    check_settings=lambda encoder: None,
    shape=lambda encoder: {},
    # Whole texts, however long those of training are: it has no positions to be trained.
    random_lengths=lambda training_length: Lengths(UNLIMITED, UNLIMITED),
    weight_shapes=lambda spec: {WORDS: (spec.vocabulary, spec.hidden)},
    random_weights=normal_weights,
    folder=FolderFormat(recognises=recognises, read=read, write=write, lengths=lengths),
    described=lambda spec: f"that takes the mean of its tokens' static embeddings of {spec.hidden}",
    described_settings=lambda encoder: f"static token embeddings of {encoder.hidden}",
    leaves_ends_out=True,
    packs=True,
    # No `torch_module`: the one matrix is one unit.
    forms={
        "tensorflow": "pipelines.models.static.tensorflow:encode",
        "torch": "pipelines.models.static.torch:StaticEncoder",
        "bigdl": "pipelines.engines.bigdl.static:encode",
        "bigdl_memory": "pipelines.engines.bigdl.static:token_floats",
        "openvino": "pipelines.models.static.openvino:encode",
    },
)
