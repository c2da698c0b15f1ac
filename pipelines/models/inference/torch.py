"""Batches of token ids to embeddings by PyTorch, without padding. Runs on an executor."""

from __future__ import annotations

import numpy as np
import torch

from pipelines.models.frameworks.torch import bound_kernel_caches, embed, prepare
from pipelines.models.inference.batches import TokenEmbedder
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import Weights


def open_backend(
    spec: EncoderSpec,
    weights: Weights,
    *,
    threads: int = 1,
    precision: str = "fp32",
    device: str = "cpu",
) -> TokenEmbedder:
    """See :func:`pipelines.models.inference.embedder.token_embedder`."""
    bound_kernel_caches()
    torch.set_num_threads(threads)
    where = torch.device(device)
    with torch.inference_mode():
        tensors = {name: torch.from_numpy(value).to(where) for name, value in weights.items()}
        encoder = prepare(spec, tensors, precision)

    def embed_batch(token_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            embeddings: np.ndarray = embed(encoder, token_ids, lengths).cpu().numpy()
        return embeddings

    return embed_batch
