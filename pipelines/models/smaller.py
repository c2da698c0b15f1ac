"""Smaller encoders made of parts of a larger one: some of its layers, or none.

Source: Sanh, Debut, Chaumond and Wolf, "DistilBERT, a distilled version of BERT", 2019,
arXiv:1910.01108, section 3, whose student takes one layer of two.

Without layers it is a static encoder, made of the larger one's embedding of each single word. It is
weak, but a far better start for distillation from that encoder than random numbers: words keep
their meaning even if they are rare or missing in the training texts.

Source: Tulkens and van Dongen, "Model2Vec: Fast State-of-the-Art Static Embeddings", 2024,
doi:10.5281/zenodo.17270888, with its weights by Zipf's law. There the vectors are turned to their
principal axes; here not, as a student's targets are the encoder's own vectors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from pipelines.errors import InputError
from pipelines.models.bert.spec import BertSpec
from pipelines.models.inference.backends import token_embedder
from pipelines.models.inference.batches import embed_token_ids
from pipelines.models.spec import EncoderSpec
from pipelines.models.static.architecture import StaticSpec
from pipelines.models.weights import WORDS, Weights
from pipelines.progress import activity
from pipelines.tokens.vocabulary import load_tokenizer, special_ends

KEY = "encoder.keep_layers"
_LAYER_OF_NAME = re.compile(r"^encoder\.layer\.(\d+)\.")
WORDS_AT_ONCE = 4096


def chosen_layers(layers: int, count: int) -> list[int]:
    """Return the numbers of ``count`` layers, evenly spaced, the first and the last included.

    A single one is the last: pooling takes its hidden states.
    """
    if count == 1:
        return [layers - 1]
    return [round(number * (layers - 1) / (count - 1)) for number in range(count)]


def with_layers(
    spec: EncoderSpec, weights: Mapping[str, np.ndarray], count: int
) -> tuple[EncoderSpec, Weights]:
    """Return the encoder with its :func:`chosen_layers`; see :func:`with_fewer_layers`."""
    layered = _layered(spec, count)
    places = {layer: place for place, layer in enumerate(chosen_layers(layered.layers, count))}
    kept = {}
    for name, value in weights.items():
        found = _LAYER_OF_NAME.match(name)
        if found is None:
            kept[name] = value
        elif (layer := int(found[1])) in places:
            kept[f"encoder.layer.{places[layer]}.{name[found.end() :]}"] = value
    return replace(layered, layers=count), kept


def with_fewer_layers(spec: EncoderSpec, count: int) -> BertSpec:
    """Return the shape of the encoder with ``count`` layers.

    Raises:
        InputError: It has no layers to leave out, or fewer.
    """
    return replace(_layered(spec, count), layers=count)


def _layered(spec: EncoderSpec, count: int) -> BertSpec:
    """Return the encoder's spec; refuse one without so many layers."""
    if not isinstance(spec, BertSpec):
        raise InputError(KEY, f"architecture {spec.kind} cannot leave layers out", "Leave this out")
    if count > spec.layers:
        raise InputError(KEY, f"the start has {spec.layers} layers", f"Keep at most {spec.layers}")
    return spec


def static_spec(spec: EncoderSpec) -> StaticSpec:
    """Return the shape of an encoder's static encoder."""
    return StaticSpec(
        vocabulary=spec.vocabulary,
        hidden=spec.embedding_width,
        normalise=spec.normalise,
        max_length=spec.max_length,
        prompts=spec.prompts,
    )


def static_weights(spec: EncoderSpec, weights: Weights, folder: Path) -> Weights:
    """Return the weights of an encoder's static encoder; embeds its words on all cores.

    The folder's tokenizer puts one special token before a text and one after it. The ids of
    WordPiece, BPE and Unigram are in the order of word frequency, which Zipf's law takes.

    Raises:
        InputError: The tokenizer puts other special tokens around a text.
    """
    tokenizer = load_tokenizer(folder)
    if special_ends(tokenizer) != (1, 1):
        raise InputError(
            KEY,
            f"the tokenizer in {folder} adds no [CLS] or [SEP]",
            "Set it to 1, or name another start",
        )
    first, last = tokenizer.encode("").ids
    embed = token_embedder(spec, weights, threads=os.cpu_count() or 1)
    vectors = np.empty((spec.vocabulary, spec.embedding_width), np.float32)
    done = 0

    def state() -> str:
        return f"{done:,} of {spec.vocabulary:,} words"

    with activity("training", "embedding the vocabulary by the start", state):
        for done in range(0, spec.vocabulary, WORDS_AT_ONCE):
            words = range(done, min(done + WORDS_AT_ONCE, spec.vocabulary))
            rows = [[first, word, last] for word in words]
            vectors[done : words.stop] = embed_token_ids(embed, rows, hidden=vectors.shape[1])
    vectors -= vectors.mean(axis=0)
    # By Zipf's law, with a word's id for its rank.
    vectors *= np.log1p(np.arange(spec.vocabulary, dtype=np.float32))[:, None]
    return {WORDS: vectors}
