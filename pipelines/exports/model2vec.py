"""model2vec: the vectors of a static encoder, with the files of that library.

The library reads texts in its own way in two respects. It leaves out tokens for unknown words. And
it cuts a text by characters before it counts tokens: at the model's tokens times the vocabulary's
median length of a token. Two attributes of the loaded model turn both off. Then its vectors are
equal; the check sets them, and the card and the terminal say so. A model without unknown words and
without a limit of tokens needs neither.

Source: `StaticModel` of model2vec 0.10 (`encode`, `tokenize` and `_get_unk_token_id`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from model2vec import StaticModel
from tokenizers import Tokenizer

from pipelines.errors import InputError
from pipelines.exports.base import Embed, ExportFormat, Source, cosines_of
from pipelines.exports.folder import calls, fenced, write_modules, write_prompts
from pipelines.files import storage
from pipelines.models.architecture import NORMALISING
from pipelines.models.sentence_modules import CONFIG_FILE
from pipelines.models.spec import UNLIMITED, EncoderSpec
from pipelines.models.static.architecture import ENDS, STATIC_MODULE, StaticSpec
from pipelines.models.weights import WEIGHT_FILE, WORDS, save_weights
from pipelines.tokens.model_files import TOKENIZER_FILE

VECTORS, ROWS = "embeddings", "mapping"
EXACT = (
    "model.unk_token_id = None  # unknown words count, as in training",
    "model.median_token_length = 10**6  # tokens limit a text, characters do not",
)
"""Lines that make the library read texts as the model was trained."""
_EQUAL = 0.9999


def check(spec: EncoderSpec) -> None:
    """Refuse models with layers."""
    if not isinstance(spec, StaticSpec):
        raise InputError(
            "--to",
            f"model2vec holds static encoders alone, and this one is a {spec.kind}",
            "Export it to onnx or openvino, or train with `recipe: static`",
        )
    if spec.dense:
        raise InputError(
            "--to",
            "model2vec knows no dense layer behind the static embeddings",
            "Export it to onnx or openvino, or train without encoder.output_width",
        )


def write(source: Source, folder: Path, int8: bool) -> dict[str, str]:
    """See :class:`ExportFormat`."""
    assert not int8, "refused before"
    spec = source.spec
    length = None if spec.max_length == UNLIMITED else spec.max_length - ENDS
    tokenizer = Tokenizer.from_str(source.tokenizer.to_str())
    if length is not None:
        # For sentence-transformers; model2vec has its own key.
        tokenizer.enable_truncation(length)
    tokenizer.save(str(folder / TOKENIZER_FILE))
    vectors = source.weights[WORDS]
    weights = {VECTORS: vectors}
    if len(vectors) != tokenizer.get_vocab_size():
        # The library wants a row for each token, unless the rows are named.
        weights[ROWS] = np.arange(len(vectors), dtype=np.int64)
    save_weights(folder / WEIGHT_FILE, weights)
    storage.write_json(
        folder / CONFIG_FILE,
        {
            "model_type": "model2vec",
            "architectures": ["StaticModel"],
            "normalize": spec.normalise,
            "max_length": length,
            "hidden_dim": spec.hidden,
            "embedding_dtype": "float32",
        },
    )
    modules = [(STATIC_MODULE, "")]
    if spec.normalise:
        modules.append((NORMALISING, f"1_{NORMALISING}"))
        storage.write_json(folder / modules[1][1] / CONFIG_FILE, {})
    write_modules(folder, modules)
    write_prompts(folder, source)
    return {WEIGHT_FILE: "fp32"}


def open_file(folder: Path, file: str) -> Embed:
    """See :class:`ExportFormat`."""
    model = StaticModel.from_pretrained(folder)
    model.unk_token_id, model.median_token_length = None, 10**6
    return _embed(model)


def notes(folder: Path, texts: Sequence[str], expected: np.ndarray) -> Iterator[str]:
    """Tell how many texts the library reads in its own way; see the head of this module."""
    cosines = cosines_of(_embed(StaticModel.from_pretrained(folder))(texts), expected)
    others = int((cosines < _EQUAL).sum())
    if others:
        yield (
            f"{others} of {len(texts)} texts have other vectors in model2vec (least cosine "
            f"{cosines.min():.3f}). It leaves out unknown words, and cuts long texts by "
            "characters. Two lines in README.md make them equal."
        )


def _embed(model: StaticModel) -> Embed:
    def embed(texts: Sequence[str]) -> np.ndarray:
        found: np.ndarray = model.encode(list(texts), use_multiprocessing=False)
        return found

    return embed


def usage(source: Source, files: Mapping[str, Any]) -> Iterator[str]:
    """See :class:`ExportFormat`."""
    yield from ("### model2vec", "")
    yield "The library leaves out unknown words, and cuts long texts by characters. The two lines"
    yield "after the first give the vectors of the model."
    yield ""
    yield from fenced(
        "python",
        "from model2vec import StaticModel",
        "",
        'model = StaticModel.from_pretrained(".")',
        *EXACT,
        "embed = model.encode",
        *calls(source),
    )
    yield from ("### sentence-transformers", "")
    yield from fenced(
        "python",
        "from sentence_transformers import SentenceTransformer",
        "",
        'model = SentenceTransformer(".")',
        'queries = model.encode_query(["when does the museum open"])',
        'documents = model.encode_document(["The museum opens at nine."])',
    )


MODEL2VEC = ExportFormat(
    libraries=("model2vec",),
    write=write,
    open=open_file,
    usage=usage,
    check=check,
    int8="static vectors of model2vec stay in fp32 here",
    notes=notes,
)
