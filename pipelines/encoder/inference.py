"""Embeds texts in this process. Runs on an executor.

A backend computes; it is a module that is imported when it is asked for. All that comes before it
is shared: token ids, equal texts once, and batches of similar length.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa

from pipelines.encoder.batches import (
    BATCH_TOKENS,
    TokenEmbedder,
    TokenRows,
    embed_rows,
    embed_token_ids,
    text_column,
)
from pipelines.encoder.folder import read_encoder
from pipelines.encoder.processor import computes_in_bf16
from pipelines.encoder.spec import EncoderSpec
from pipelines.encoder.weights import Weights
from pipelines.errors import InputError
from pipelines.tokens.encoding import TextEncoder, open_encoder
from pipelines.tokens.vocabulary import load_tokenizer

__all__ = [
    "BACKENDS",
    "TextEmbedder",
    "TokenEmbedder",
    "choose_backend",
    "choose_precision",
    "embed_token_ids",
    "load_embedder",
    "token_embedder",
]

Precision = Literal["auto", "fp32", "bf16"]
"""``auto``: bf16 on a GPU and on a CPU with the instructions for it, otherwise fp32."""

BACKENDS: Mapping[str, str] = {
    "openvino": "pipelines.encoder.inference_openvino",
    "torch": "pipelines.encoder.inference_torch",
    "tensorflow": "pipelines.encoder.inference_tensorflow",
}
"""Name, which is that of the package it needs, to the module that has the ``open_backend``; the
first that is installed is taken where none is named. On a CPU they stand in the order of speed."""

GPU_BACKEND = "torch"
"""The one that computes on GPUs too."""
GPU_BATCH_TOKENS = 65536

TEXTS_AT_ONCE = 8192
"""Texts that are tokenised and sorted together, which bounds the memory for their ids."""


class OpenBackend(Protocol):
    """Makes the function that embeds batches of token ids."""

    def __call__(
        self, spec: EncoderSpec, weights: Weights, *, threads: int, precision: str, device: str
    ) -> TokenEmbedder:
        """See :func:`token_embedder`."""


class TextEmbedder:
    """Texts to embeddings.

    Args:
        encoder: Makes token ids.
        embed_tokens: Embeds batches of them.
        hidden: Width of an embedding.
        batch_tokens: Tokens of one forward pass.
    """

    def __init__(
        self, encoder: TextEncoder, embed_tokens: TokenEmbedder, hidden: int, batch_tokens: int
    ) -> None:
        self.hidden = hidden
        self._encoder = encoder
        self._embed_tokens = embed_tokens
        self._batch_tokens = batch_tokens

    def __call__(self, texts: Sequence[str] | pa.StringArray) -> np.ndarray:
        """Embeds texts, those of equal tokens once.

        Args:
            texts: Strings, or a column without nulls.

        Returns:
            fp32 [texts, hidden], in the order of the texts.
        """
        column = text_column(texts)
        embeddings = np.empty((len(column), self.hidden), np.float32)
        for start in range(0, len(column), TEXTS_AT_ONCE):
            some = column.slice(start, TEXTS_AT_ONCE)
            rows, numbers = TokenRows.distinct(self._encoder.encode(some))
            found = embed_rows(
                self._embed_tokens, rows, hidden=self.hidden, batch_tokens=self._batch_tokens
            )
            embeddings[start : start + len(some)] = found[numbers]
        return embeddings


def load_embedder(
    folder: str | Path,
    *,
    backend: str = "auto",
    threads: int = 1,
    precision: str = "fp32",
    device: str = "cpu",
    batch_tokens: int | None = None,
) -> TextEmbedder:
    """Loads an encoder folder. Runs on an executor.

    Args:
        folder: A folder that :func:`~pipelines.encoder.folder.read_encoder` reads, with a
            tokenizer.
        backend: A name of :data:`BACKENDS`, or ``auto``.
        threads: CPU threads, if the backend has not begun in this process.
        precision: Of the matrix products; see :data:`Precision`.
        device: ``cpu``, or a GPU of the backend `torch` (``cuda:0``).
        batch_tokens: Tokens of one forward pass; what suits the device unless given.

    Raises:
        InputError: The folder holds no encoder that can be read, or the backend is not there.
    """
    spec, weights = read_encoder(folder)
    # The library would otherwise start a thread for every core of the machine.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false" if threads == 1 else "true")
    embed_tokens = token_embedder(
        spec, weights, backend=backend, threads=threads, precision=precision, device=device
    )
    encoder = open_encoder(load_tokenizer(Path(folder)), spec.max_length)
    suited = BATCH_TOKENS if device == "cpu" else GPU_BATCH_TOKENS
    return TextEmbedder(encoder, embed_tokens, spec.hidden, batch_tokens or suited)


def token_embedder(
    spec: EncoderSpec,
    weights: Weights,
    *,
    backend: str = "auto",
    threads: int = 1,
    precision: str = "fp32",
    device: str = "cpu",
) -> TokenEmbedder:
    """A function over padded batches of token ids. Runs on an executor.

    Args:
        spec: The shape.
        weights: fp32, in canonical names.
        backend: See :func:`load_embedder`, as for the other arguments.
        threads: CPU threads.
        precision: Of the matrix products.
        device: Where it computes.
    """
    open_backend: OpenBackend = import_module(BACKENDS[choose_backend(backend)]).open_backend
    return open_backend(
        spec,
        weights,
        threads=threads,
        precision=choose_precision(precision, device),
        device=device,
    )


def choose_backend(name: str, key: str = "embedding.backend") -> str:
    """The backend of a name, or the first that is installed for ``auto``.

    Raises:
        InputError: With ``key``: there is no such backend, or its package is not installed.
    """
    if name != "auto" and name not in BACKENDS:
        raise InputError(key, f"there is no backend `{name}`", f"one of {', '.join(BACKENDS)}")
    wanted = [*BACKENDS] if name == "auto" else [name]
    for package in wanted:
        if find_spec(package) is not None:
            return package
    raise InputError(key, f"{' or '.join(wanted)} is not installed", f"pip install {wanted[0]}")


def choose_precision(name: str, device: str = "cpu") -> str:
    """The precision of a name on this machine; see :data:`Precision`."""
    if name != "auto":
        return name
    return "bf16" if device != "cpu" or computes_in_bf16() else "fp32"
