"""Cross-encoders as folders for sentence-transformers' `CrossEncoder`, from trained weights.

The folder is an encoder's, with the names that `transformers` gives an encoder below a head. Its
tokenizer joins two texts as training does: the second one without its first special token. It tells
no token types, since training has none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from pipelines.files import storage
from pipelines.files.copies import local_folder
from pipelines.files.locations import Location
from pipelines.models.architecture import architecture_of
from pipelines.models.folder import Licence
from pipelines.models.identity import CARD_FILE
from pipelines.models.rerankers.head import DENSE, SCORE, pair_limit
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import WEIGHT_FILE, Weights, check_weights, save_weights
from pipelines.tokens.vocabulary import load_tokenizer

_HEADS: Mapping[str, tuple[str, str]] = {
    "bert": ("bert.pooler.dense.", "classifier."),
    "roberta": ("classifier.dense.", "classifier.out_proj."),
    "mpnet": ("classifier.dense.", "classifier.out_proj."),
    "distilbert": ("pre_classifier.", "classifier."),
    "electra": ("classifier.dense.", "classifier.out_proj."),
}
"""The names of the head's dense layer and of its score in `transformers`, by architecture."""
_POOLER = "pooler.dense."
_MODEL = "Model"
_CLASSIFIER = "ForSequenceClassification"
_SIGMOID = "torch.nn.modules.activation.Sigmoid"
_KEPT = ("config.json", WEIGHT_FILE, "tokenizer.json", "tokenizer_config.json")


def write_reranker(
    folder: Location,
    spec: EncoderSpec,
    weights: Weights,
    head: Weights,
    tokenizer_folder: Location,
    card: str,
) -> None:
    """Write a cross-encoder's folder, whole or not at all; replace an existing one.

    ``weights`` are the encoder's in canonical names, ``head`` those of
    :mod:`pipelines.models.rerankers.head`; the card is Markdown.
    """
    plain = replace(spec, dense=(), lsa=0)
    check_weights(plain, weights)
    tokenizer = local_folder(tokenizer_folder)
    with storage.built_folder(folder) as aside:
        architecture_of(plain).folder.write(aside, plain, weights, tokenizer)
        _keep_transformer(aside)
        _write_weights(aside, spec.kind, head)
        _write_config(aside)
        _write_tokenizer(aside, tokenizer, plain)
        storage.write_text(aside / CARD_FILE, card)


def reranker_card(spec: EncoderSpec, licence: Licence) -> str:
    """Return the card of a trained cross-encoder, as Markdown."""
    known = {key: value for key, value in licence._asdict().items() if value is not None}
    matter = {**known, "library_name": "sentence-transformers", "pipeline_tag": "text-ranking"}
    return (
        f"---\n{yaml.safe_dump(matter)}---\n\n"
        f"A cross-encoder {architecture_of(spec).described(spec)}, trained with "
        "sentence-pipelines. It scores a query with a document, from 0 to 1.\n\n"
        "```python\n"
        "from sentence_transformers import CrossEncoder\n\n"
        'model = CrossEncoder("path/to/this/folder")\n'
        'scores = model.predict([("a query", "a document")])\n'
        "```\n"
    )


def _keep_transformer(folder: Path) -> None:
    """Remove the files of pooling and normalising."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
        elif path.name not in _KEPT or path.parent != folder:
            path.unlink()


def _write_weights(folder: Path, kind: str, head: Weights) -> None:
    """Name the encoder's weights below its prefix, and add the head."""
    # The kinds with a head have the names of their models below it.
    found: dict[str, np.ndarray] = {
        f"{kind}.{name}": value
        for name, value in load_file(str(folder / WEIGHT_FILE)).items()
        if not name.startswith(_POOLER)
    }
    dense, score = _HEADS[kind]
    for ours, theirs in ((DENSE, dense), (SCORE, score)):
        for part in ("weight", "bias"):
            found[f"{theirs}{part}"] = head[f"{ours}{part}"]
    save_weights(folder / WEIGHT_FILE, found)


def _write_config(folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    named = config["architectures"][0].removesuffix(_MODEL)
    storage.write_json(
        path,
        {
            **config,
            "architectures": [f"{named}{_CLASSIFIER}"],
            "id2label": {"0": "LABEL_0"},
            "label2id": {"LABEL_0": 0},
            "sentence_transformers": {"activation_fn": _SIGMOID},
        },
    )


def _write_tokenizer(folder: Path, source: Path, spec: EncoderSpec) -> None:
    """Write a tokenizer that joins two texts, without token types."""
    tokenizer = load_tokenizer(source, "tokens.vocabulary")
    first, last = _ends(tokenizer)
    tokenizer.post_processor = TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B {last}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in {first, last}],
    )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.save(str(folder / "tokenizer.json"))
    padding = tokenizer.id_to_token(spec.pad_token_id)
    storage.write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": pair_limit(spec),
            "model_input_names": ["input_ids", "attention_mask"],
            "cls_token": first,
            "sep_token": last,
            **({} if padding is None else {"pad_token": padding}),
        },
    )


def _ends(tokenizer: Tokenizer) -> tuple[str, str]:
    """Return the special tokens before and after a text."""
    tokens = tokenizer.encode("").tokens
    return tokens[0], tokens[-1]
