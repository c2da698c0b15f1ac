"""Embeds texts in this process. Runs on an executor.

All backends, see :mod:`.backends`, share the steps before them: token ids, equal texts once, and
batches of similar length.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipelines.files.copies import local_folder
from pipelines.files.locations import Location, location
from pipelines.models.folder import read_model
from pipelines.models.inference.backends import token_embedder
from pipelines.models.inference.batches import (
    BATCH_TOKENS,
    TokenEmbedder,
    TokenRows,
    embed_rows,
    text_column,
)
from pipelines.tokens.encoding import PromptedEncoder, TextEncoder, open_encoder
from pipelines.tokens.start import NO_PROMPTS, Prompts

GPU_BATCH_TOKENS = 65536

TEXTS_AT_ONCE = 8192
"""Texts that are tokenised and sorted together; it bounds the memory for their ids."""


class TextEmbedder:
    """Embeds texts, as ``hidden`` numbers each, in forward passes of ``batch_tokens``."""

    def __init__(
        self,
        encoder: TextEncoder,
        embed_tokens: TokenEmbedder,
        hidden: int,
        batch_tokens: int,
        prompts: Prompts = NO_PROMPTS,
    ) -> None:
        self.hidden = hidden
        self.prompts = prompts
        self._encoder = encoder
        self._embed_tokens = embed_tokens
        self._batch_tokens = batch_tokens

    def __call__(
        self, texts: Sequence[str] | pa.StringArray, prompt_name: str | None = None
    ) -> np.ndarray:
        """Embed texts, those of equal tokens once; fp32 [texts, hidden], in their order.

        A column has no nulls. For prompts see :meth:`~pipelines.tokens.start.Prompts.before`.
        """
        column = text_column(texts)
        encoder = PromptedEncoder(self._encoder, self.prompts.before(prompt_name))
        embeddings = np.empty((len(column), self.hidden), np.float32)
        for start in range(0, len(column), TEXTS_AT_ONCE):
            chunk = column.slice(start, TEXTS_AT_ONCE)
            rows, numbers = TokenRows.distinct(encoder.encode(chunk))
            found = embed_rows(
                self._embed_tokens, rows, hidden=self.hidden, batch_tokens=self._batch_tokens
            )
            embeddings[start : start + len(chunk)] = found[numbers]
        return embeddings

    def queries(self, texts: Sequence[str] | pa.StringArray) -> np.ndarray:
        """Embed search queries, with the model's prompt for queries."""
        return self(texts, self.prompts.sides[0])

    def documents(self, texts: Sequence[str] | pa.StringArray) -> np.ndarray:
        """Embed documents to be found, with the model's prompt for documents."""
        return self(texts, self.prompts.sides[1])


def load_embedder(
    folder: str | Location,
    *,
    backend: str = "auto",
    threads: int = 1,
    precision: str = "fp32",
    device: str = "cpu",
    batch_tokens: int | None = None,
    calibration: bytes | None = None,
) -> TextEmbedder:
    """Load a folder that :func:`~pipelines.models.folder.read_model` reads. Runs on an executor.

    For backend, threads, precision, device and calibration see :func:`.token_embedder`.
    ``batch_tokens`` are those of a forward pass; by default they suit the device.

    Raises:
        InputError: The folder holds no encoder that can be read, or the backend is missing.
    """
    folder = local_folder(location(folder))
    spec, weights, tokenizer = read_model(folder)
    # The library would otherwise start a thread for every core of the machine.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false" if threads == 1 else "true")
    embed_tokens = token_embedder(
        spec,
        weights,
        backend=backend,
        threads=threads,
        precision=precision,
        device=device,
        calibration=calibration,
    )
    encoder = open_encoder(tokenizer, spec.max_length)
    suited = BATCH_TOKENS if device == "cpu" else GPU_BATCH_TOKENS
    return TextEmbedder(
        encoder, embed_tokens, spec.embedding_width, batch_tokens or suited, spec.prompts
    )
