"""OpenVINO: the same graph as for ONNX, in OpenVINO's own file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from tokenizers import Tokenizer

from pipelines.exports.base import Embed, ExportFormat, Source
from pipelines.exports.folder import (
    calls,
    fenced,
    sentence_transformers_usage,
    token_batch,
    write_reader_files,
)
from pipelines.exports.onnx import write_graph
from pipelines.exports.torch_graph import EMBEDDING
from pipelines.files import storage
from pipelines.tokens.model_files import TOKENIZER_FILE

FILE = "openvino/openvino_model.xml"
"""The name that sentence-transformers and Optimum look for."""


def write(source: Source, folder: Path, int8: bool) -> dict[str, str]:
    """See :class:`ExportFormat`."""
    assert not int8, "refused before"
    write_reader_files(folder, source)
    with storage.temporary_folder() as aside:
        write_graph(source, aside / "model.onnx")
        model = ov.convert_model(aside / "model.onnx")
        # By default the library halves the precision of weights, which moves the vectors.
        ov.save_model(model, folder / FILE, compress_to_fp16=False)
    return {FILE: "fp32"}


def open_file(folder: Path, file: str) -> Embed:
    """See :class:`ExportFormat`."""
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    # On a CPU with bf16 units the library computes in bf16 unless it is asked not to.
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    model = ov.Core().compile_model(folder / file, "CPU", options)

    def embed(texts: Sequence[str]) -> np.ndarray:
        embeddings: np.ndarray = model(token_batch(tokenizer, texts))[EMBEDDING]
        return embeddings

    return embed


def usage(source: Source, files: Mapping[str, Any]) -> Iterator[str]:
    """See :class:`ExportFormat`."""
    yield from ("### OpenVINO", "")
    yield from fenced(
        "python",
        "import numpy as np",
        "import openvino",
        "from tokenizers import Tokenizer",
        "",
        'tokenizer = Tokenizer.from_file("tokenizer.json")  # truncates and pads',
        'options = {"INFERENCE_PRECISION_HINT": "f32"}  # leave it out for bf16 where it is fast',
        f'model = openvino.Core().compile_model("{FILE}", "CPU", options)',
        "",
        "",
        "def embed(texts):",
        "    tokens = tokenizer.encode_batch(texts)",
        "    ids = np.array([text.ids for text in tokens], np.int64)",
        "    mask = np.array([text.attention_mask for text in tokens], np.int64)",
        '    inputs = {"input_ids": ids, "attention_mask": mask}',
        f'    return model(inputs)["{EMBEDDING}"]',
        "",
        "",
        *calls(source),
    )
    yield from sentence_transformers_usage("openvino", FILE)


OPENVINO = ExportFormat(
    libraries=("openvino", "onnx_ir", "onnxscript", "torch", "transformers"),
    write=write,
    open=open_file,
    usage=usage,
    int8="OpenVINO quantises by a library that is no part of this package",
)
