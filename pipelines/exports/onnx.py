"""ONNX: one graph for onnxruntime and the readers that are built on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import onnxruntime
from onnxruntime.quantization import QuantType, quantize_dynamic
from tokenizers import Tokenizer

from pipelines.exports.base import Embed, ExportFormat, Source
from pipelines.exports.folder import (
    calls,
    fenced,
    sentence_transformers_usage,
    token_batch,
    write_reader_files,
)
from pipelines.exports.torch_graph import (
    EMBEDDING,
    OPSET,
    EmbeddingGraph,
    exported,
    without_notes,
)
from pipelines.tokens.model_files import TOKENIZER_FILE

WHOLE, INT8 = "onnx/model.onnx", "onnx/model_quantized.onnx"
"""The names that transformers.js, Optimum and Text Embeddings Inference look for."""
DATA = "model.onnx_data"
MOST_BYTES = 1_900_000_000
"""Weights of one file: Protocol Buffers end at 2 GB. More are stored beside it."""


def write_graph(source: Source, path: Path) -> None:
    """Write the graph of a model, with its weights in one file or, above 2 GB, in two."""
    program = exported(EmbeddingGraph(source, path.parent))
    weights = sum(value.nbytes for value in source.weights.values())
    onnx_ir.save(program.model, path, external_data=DATA if weights > MOST_BYTES else None)


def write(source: Source, folder: Path, int8: bool) -> dict[str, str]:
    """See :class:`ExportFormat`."""
    write_reader_files(folder, source)
    (folder / WHOLE).parent.mkdir()
    write_graph(source, folder / WHOLE)
    if not int8:
        return {WHOLE: "fp32"}
    with without_notes():
        quantize_dynamic(
            folder / WHOLE, folder / INT8, per_channel=True, weight_type=QuantType.QInt8
        )
    return {WHOLE: "fp32", INT8: "int8"}


def open_file(folder: Path, file: str) -> Embed:
    """See :class:`ExportFormat`."""
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    session = onnxruntime.InferenceSession(str(folder / file), providers=["CPUExecutionProvider"])

    def embed(texts: Sequence[str]) -> np.ndarray:
        embeddings: np.ndarray = session.run([EMBEDDING], token_batch(tokenizer, texts))[0]
        return embeddings

    return embed


def usage(source: Source, files: Mapping[str, Any]) -> Iterator[str]:
    """See :class:`ExportFormat`."""
    yield from ("### onnxruntime", "")
    yield from fenced(
        "python",
        "import numpy as np",
        "import onnxruntime",
        "from tokenizers import Tokenizer",
        "",
        'tokenizer = Tokenizer.from_file("tokenizer.json")  # truncates and pads',
        f'session = onnxruntime.InferenceSession("{WHOLE}")',
        "",
        "",
        "def embed(texts):",
        "    tokens = tokenizer.encode_batch(texts)",
        "    ids = np.array([text.ids for text in tokens], np.int64)",
        "    mask = np.array([text.attention_mask for text in tokens], np.int64)",
        '    inputs = {"input_ids": ids, "attention_mask": mask}',
        f'    return session.run(["{EMBEDDING}"], inputs)[0]',
        "",
        "",
        *calls(source),
    )
    yield from sentence_transformers_usage("onnx", WHOLE)
    yield from ("### fastembed", "")
    yield from fenced(
        "python",
        "from fastembed import TextEmbedding",
        "from fastembed.common.model_description import ModelSource, PoolingType",
        "",
        "TextEmbedding.add_custom_model(",
        '    model="local/model",',
        "    pooling=PoolingType.CLS,",
        "    normalization=False,",
        '    sources=ModelSource(hf="local/model"),',
        f"    dim={source.spec.embedding_width},",
        f'    model_file="{WHOLE}",',
        ")",
        'model = TextEmbedding("local/model", specific_model_path=".")',
        "",
        "",
        "def embed(texts):",
        "    return list(model.embed(texts))",
        "",
        "",
        *calls(source),
    )
    yield from ("### transformers.js", "")
    yield from fenced("javascript", *_javascript(source, int8=INT8 in files))
    yield from ("### Text Embeddings Inference", "")
    yield from fenced("bash", "text-embeddings-router --model-id .")
    if source.spec.prompts.texts:
        yield 'Name the prompt in a request: `{"inputs": "...", "prompt_name": "query"}`.'
        yield ""


def _javascript(source: Source, *, int8: bool) -> Iterator[str]:
    yield 'import { env, pipeline } from "@huggingface/transformers";'
    yield ""
    yield 'env.localModelPath = "..";  // the folder around the model\'s'
    yield "env.allowRemoteModels = false;"
    note = '  // or "q8" for int8' if int8 else ""
    yield f'const options = {{ dtype: "fp32" }};{note}'
    yield 'const model = await pipeline("feature-extraction", "NAME_OF_THIS_FOLDER", options);'
    yield 'const embed = async (texts) => (await model(texts, { pooling: "cls" })).tolist();'
    for line in calls(source):
        yield f"const {line.replace('embed(', 'await embed(', 1)};"


ONNX = ExportFormat(
    libraries=("onnx_ir", "onnxruntime", "onnxscript", "torch", "transformers"),
    write=write,
    open=open_file,
    usage=usage,
    facts={"opset": OPSET},
)
