"""The files beside a graph from token ids to embeddings, for every reader of such folders.

All readers find a tokenizer that needs no code, and a sentence-transformers model whose pooling
changes nothing: every token's state is the embedding of its text. The folder has no weights outside
of the graph. So readers of weights, such as AutoModel or vLLM, end with an error.

Sources: `SentenceTransformer` (modules.json, 1_Pooling), fastembed (tokenizer_config.json,
special_tokens_map.json), transformers.js (config.json), Text Embeddings Inference (config.json,
1_Pooling, sentence_bert_config.json).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from pipelines.exports.base import Source
from pipelines.files import records, storage
from pipelines.models.architecture import NORMALISING
from pipelines.models.sentence_modules import CONFIG_FILE, POOLING
from pipelines.models.spec import UNLIMITED
from pipelines.tokens import model_files
from pipelines.tokens.model_files import (
    LENGTH_FILE,
    PLAIN_CLASS,
    SPECIAL_TOKENS_FILE,
    TOKENIZER_FILE,
    TRANSFORMER,
)
from pipelines.tokens.start import DOCUMENT, MODULES_FILE, PROMPTS_FILE, QUERY, folder_modules

_MODULES = "sentence_transformers.models"
_NAMED = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def write_reader_files(folder: Path, source: Source) -> None:
    """Write tokenizer, prompts, modules and config.json beside a graph."""
    spec, width = source.spec, source.spec.embedding_width
    write_graph_tokenizer(folder, source)
    write_prompts(folder, source)
    storage.write_json(
        folder / LENGTH_FILE, {"max_seq_length": spec.max_length, "do_lower_case": False}
    )
    modules = [(TRANSFORMER, ""), (POOLING, f"1_{POOLING}")]
    storage.write_json(
        folder / modules[1][1] / CONFIG_FILE,
        {
            "word_embedding_dimension": width,
            # Any way would do. This one adds up nothing, so it is exact.
            "pooling_mode_cls_token": True,
            "pooling_mode_mean_tokens": False,
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
            "pooling_mode_weightedmean_tokens": False,
            "pooling_mode_lasttoken": False,
            "include_prompt": True,
        },
    )
    if spec.normalise:
        modules.append((NORMALISING, f"2_{NORMALISING}"))
        storage.write_json(folder / modules[2][1] / CONFIG_FILE, {})
    write_modules(folder, modules)
    storage.write_json(
        folder / CONFIG_FILE,
        {
            # To readers the graph is what BERT is: ids and a mask in, a state of each token out.
            # Without a class, and without weights, nothing can be built from this file.
            "model_type": "bert",
            "architectures": [],
            "hidden_size": width,
            "intermediate_size": width,
            "num_attention_heads": 1,
            "num_hidden_layers": 1,
            "max_position_embeddings": spec.max_length,
            "vocab_size": spec.vocabulary,
            "type_vocab_size": 1,
            "pad_token_id": _padding(source)[1],
        },
    )


def write_modules(folder: Path, modules: Sequence[tuple[str, str]]) -> None:
    """Write modules.json, with the class and the path of each module."""
    listed = [
        {"idx": place, "name": str(place), "path": path, "type": listed_type(kind)}
        for place, (kind, path) in enumerate(modules)
    ]
    storage.write_json(folder / MODULES_FILE, listed)


def listed_type(kind: str) -> str:
    """Return the class of a module by the name that every release reads."""
    return f"{_MODULES}.{kind}"


def write_prompts(folder: Path, source: Source) -> None:
    """Write the prompts as sentence-transformers does."""
    values = source.spec.prompts.to_json() | {"similarity_fn_name": "cosine"}
    storage.write_json(folder / PROMPTS_FILE, values)


def write_graph_tokenizer(folder: Path, source: Source) -> None:
    """Write the tokenizer as it reads texts, with truncation and padding.

    So the library `tokenizers` alone makes the batches of a graph.
    """
    spec = source.spec
    tokenizer = Tokenizer.from_str(source.tokenizer.to_str())
    if spec.max_length < UNLIMITED:
        tokenizer.enable_truncation(spec.max_length)
    pad, number = _padding(source)
    tokenizer.enable_padding(pad_id=number, pad_token=pad)
    tokenizer.save(str(folder / TOKENIZER_FILE))
    special = _special_tokens(source)
    storage.write_json(folder / SPECIAL_TOKENS_FILE, special)
    storage.write_json(
        folder / model_files.CONFIG_FILE,
        {
            **special,
            "pad_token": pad,
            # Of tokenizer.json unchanged; other classes rebuild parts of it.
            "tokenizer_class": PLAIN_CLASS,
            "model_max_length": spec.max_length,
            "model_input_names": ["input_ids", "attention_mask"],
            "padding_side": "right",
            "truncation_side": "right",
            "clean_up_tokenization_spaces": False,
        },
    )


def _padding(source: Source) -> tuple[str, int]:
    """Return token and id for padding; the graph ignores both."""
    named = _special_tokens(source).get("pad_token")
    pad = source.tokenizer.id_to_token(source.spec.pad_token_id) if named is None else named
    if pad is None:
        pad = min(source.tokenizer.get_vocab().items(), key=lambda entry: entry[1])[0]
    number = source.tokenizer.token_to_id(pad)
    assert number is not None, "a token of this vocabulary"
    return pad, number


def _special_tokens(source: Source) -> dict[str, str]:
    """Return the special tokens that the model's files name, by role.

    Only those that the tokenizer finds in texts as such: readers would add the others.
    """
    modules = folder_modules(source.folder)
    home = source.folder / modules[0][1] if modules else source.folder
    files = (home / SPECIAL_TOKENS_FILE, home / model_files.CONFIG_FILE)
    options: dict[str, Any] = {}
    for file in files:
        options |= records.read_object(file) if file.is_file() else {}
    known = {
        token.content
        for token in source.tokenizer.get_added_tokens_decoder().values()
        if token.special
    }
    found = {}
    for role in _NAMED:
        value = options.get(f"{role}_token")
        content = value.get("content") if isinstance(value, dict) else value
        if content in known:
            found[f"{role}_token"] = content
    return found


def token_batch(tokenizer: Tokenizer, texts: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the inputs of a graph, int64 [texts, tokens], by a tokenizer that pads."""
    encoded = tokenizer.encode_batch(list(texts))
    ids = np.array([text.ids for text in encoded], np.int64)
    mask = np.array([text.attention_mask for text in encoded], np.int64)
    if ids.shape[1] == 0:  # no text has a token
        ids, mask = np.zeros((2, len(texts), 1), np.int64)
    return {"input_ids": ids, "attention_mask": mask}


def calls(source: Source) -> Iterator[str]:
    """Yield lines that call a function `embed` of texts, with the model's prompts."""
    query, document = source.before(QUERY), source.before(DOCUMENT)
    # Strings of JSON are strings of Python and of JavaScript.
    for name, text in (
        ("queries", f"{query}when does the museum open"),
        ("documents", f"{document}The museum opens at nine."),
    ):
        yield f"{name} = embed([{json.dumps(text, ensure_ascii=False)}])"


def fenced(language: str, *lines: str) -> Iterator[str]:
    """Yield a block of code, and an empty line."""
    yield from (f"```{language}", *lines, "```", "")


def sentence_transformers_usage(backend: str, file: str) -> Iterator[str]:
    """Yield the lines for sentence-transformers, which knows the prompts."""
    yield from ("### sentence-transformers", "", "It needs `optimum` for this runtime.", "")
    yield from fenced(
        "python",
        "from sentence_transformers import SentenceTransformer",
        "",
        f'options = {{"file_name": "{file}"}}',
        f'model = SentenceTransformer(".", backend="{backend}", model_kwargs=options)',
        'queries = model.encode_query(["when does the museum open"])',
        'documents = model.encode_document(["The museum opens at nine."])',
    )
