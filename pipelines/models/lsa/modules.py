"""The terms of latent semantic analysis beside an encoder: their vectors, and their modules.

No module of sentence-transformers concatenates two embeddings of a text. A Pooling of two modes
does: the terms are the `mean` of its tokens, and the encoder's embedding is passed as the vector of
the first token, `cls`. Naming a Dense module's output needs release 5.4; earlier ones refuse to
load the folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from pipelines.files import records, storage
from pipelines.files.copies import local_folder
from pipelines.files.locations import Location
from pipelines.models.architecture import NORMALISING, Modules
from pipelines.models.checkpoint_files import read_checkpoint
from pipelines.models.inference.batches import TokenEmbedder
from pipelines.models.sentence_modules import CONFIG_FILE, DENSE, POOLING, refuse
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import TERMS, WEIGHT_FILE, Weights, save_weights, stored_shapes
from pipelines.tokens.start import folder_modules

VECTORS = "WordEmbeddings"
_VECTORS = "emb_layer.weight"
BEHIND = (NORMALISING, VECTORS, DENSE, POOLING)
"""The modules between an encoder's last one and the final normalising."""
_EMBEDDING, _FIRST = "sentence_embedding", "cls_token_embeddings"

Spec = TypeVar("Spec", bound=EncoderSpec)


def with_terms(
    spec: Spec, weights: Mapping[str, np.ndarray], vectors: np.ndarray
) -> tuple[Spec, Weights]:
    """Return an encoder with terms beside it, whose vectors are fp32 [vocabulary, dimensions]."""
    return replace(spec, lsa=vectors.shape[1], normalise=True), {**weights, TERMS: vectors}


def without_terms(spec: Spec, weights: Mapping[str, np.ndarray]) -> tuple[Spec, Weights]:
    """Return the encoder without terms, if it has any."""
    return replace(spec, lsa=0), {name: weights[name] for name in weights if name != TERMS}


def add_terms(embed: TokenEmbedder, vectors: np.ndarray) -> TokenEmbedder:
    """Return an embedder of token ids by an encoder and its terms. Runs on an executor.

    Its embeddings are the encoder's, of length 1, followed by the mean of the tokens' vectors, of
    fp32 [vocabulary, dimensions]; both together are scaled to length 1.
    """

    def embed_batch(token_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        encoded = embed(token_ids, lengths)
        share = (np.arange(token_ids.shape[1]) < lengths[:, None]) / lengths[:, None]
        means = np.matmul(share[:, None].astype(np.float32), vectors[token_ids])[:, 0]
        both = np.hstack([encoded, means])
        scaled: np.ndarray = both / np.linalg.norm(both, axis=1, keepdims=True)
        return scaled

    return embed_batch


def hide_transformer(folder: Path, modules: Modules) -> list[tuple[str, str]]:
    """Move the transformer out of a folder's root; return the modules afterwards.

    Other libraries look for a model in the root. They know only the transformer and usual ways of
    pooling, and would compute other embeddings. Without a config.json in the root they find
    nothing. The folder holds only a transformer and the modules after it.
    """
    (kind, path), *later_modules = modules
    if path:
        return list(modules)
    files = [file for file in folder.iterdir() if file.is_file()]
    home = folder / f"0_{kind}"
    home.mkdir()
    for file in files:
        file.rename(home / file.name)
    return [(kind, home.name), *later_modules]


def part_modules(modules: Modules) -> tuple[Modules, Modules]:
    """Return the modules of the encoder alone, and those of its terms, if any."""
    kinds = tuple(kind for kind, _ in modules)
    if VECTORS not in kinds:
        return modules, ()
    first = kinds.index(VECTORS) - 1
    return [*modules[:first], *modules[first + len(BEHIND) :]], modules[first : first + len(BEHIND)]


def count_terms(folder: Location) -> int:
    """Return the number of lexical features of a model, 0 for none; reads no weights."""
    local = local_folder(folder)
    return terms_width(local, part_modules(folder_modules(local))[1])


def terms_width(folder: Path, of_terms: Modules) -> int:
    """Return the number of lexical features in the modules of :func:`part_modules`."""
    homes = {kind: folder / path for kind, path in of_terms}
    return stored_shapes(homes[VECTORS] / WEIGHT_FILE)[_VECTORS][1] if of_terms else 0


def read_terms(folder: Path, modules: Modules) -> np.ndarray:
    """Read an encoder's terms, fp32 [vocabulary, dimensions], from :func:`part_modules`.

    Raises:
        InputError: With the key ``encoder.start``: the modules are not of this package.
    """
    homes = {kind: folder / path for kind, path in modules}
    found = None
    if tuple(homes) == BEHIND:
        copying = records.read_object(homes[DENSE] / CONFIG_FILE)
        if copying.get("module_output_name") == _FIRST:
            found = read_checkpoint(homes[VECTORS])
    if found is None:
        refuse(folder, "has WordEmbeddings that are not of `encoder.lsa`")
    return np.ascontiguousarray(found[_VECTORS], np.float32)


def write_terms(
    folder: Path, spec: EncoderSpec, vectors: np.ndarray, before: int
) -> list[tuple[str, str]]:
    """Write the terms' modules after ``before`` modules of an encoder; return class and path."""
    modules = [(kind, f"{before + place}_{kind}") for place, kind in enumerate(BEHIND)]
    homes = {kind: folder / path for kind, path in modules}
    homes[NORMALISING].mkdir()
    _write_vectors(homes[VECTORS], vectors, spec.max_length)
    _write_copy(homes[DENSE], spec.embedding_width - spec.lsa)
    storage.write_json(
        homes[POOLING] / CONFIG_FILE,
        {
            # The library tells the model's width as this times the ways of pooling, and uses it
            # for nothing else.
            "word_embedding_dimension": spec.embedding_width // 2,
            "pooling_mode_cls_token": True,
            "pooling_mode_mean_tokens": True,
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
            "pooling_mode_weightedmean_tokens": False,
            "pooling_mode_lasttoken": False,
            "include_prompt": True,
        },
    )
    return modules


def _write_vectors(home: Path, vectors: np.ndarray, max_length: int) -> None:
    storage.write_json(
        home / "wordembedding_config.json",
        {
            "tokenizer_class": "sentence_transformers.models.tokenizer.WhitespaceTokenizer",
            "update_embeddings": False,
            "max_seq_length": max_length,
        },
    )
    # The first module of the model makes the tokens; this tokenizer has to be there, unused.
    storage.write_json(
        home / "whitespacetokenizer_config.json",
        {"vocab": [], "stop_words": [], "do_lower_case": False},
    )
    save_weights(home / WEIGHT_FILE, {_VECTORS: vectors})


def _write_copy(home: Path, width: int) -> None:
    storage.write_json(
        home / CONFIG_FILE,
        {
            "in_features": width,
            "out_features": width,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
            "module_input_name": _EMBEDDING,
            "module_output_name": _FIRST,
        },
    )
    save_weights(home / WEIGHT_FILE, {"linear.weight": np.eye(width, dtype=np.float32)})
