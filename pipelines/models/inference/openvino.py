"""Batches of token ids to embeddings by OpenVINO, on the CPU. Runs on an executor."""

from __future__ import annotations

import numpy as np
import openvino as ov

from pipelines.models.frameworks.openvino import encoder_graph
from pipelines.models.inference.batches import TokenEmbedder
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import Weights

PRECISIONS = {"fp32": "f32", "bf16": "bf16"}


def open_backend(
    spec: EncoderSpec,
    weights: Weights,
    *,
    threads: int = 1,
    precision: str = "fp32",
    device: str = "cpu",
) -> TokenEmbedder:
    """See :func:`pipelines.models.inference.embedder.token_embedder`; it computes on the CPU alone.

    With ``bf16`` the library keeps the activations between the matrix products in bf16 too.
    """
    assert device == "cpu", "GPUs are for torch"
    compiled = ov.Core().compile_model(
        encoder_graph(spec, weights),
        "CPU",
        {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": PRECISIONS[precision],
        },
    )
    request = compiled.create_infer_request()

    def embed_batch(token_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        embeddings: np.ndarray = request.infer([token_ids, lengths])[0]
        return embeddings

    return embed_batch
