"""Embeds texts in this process. Runs on an executor.

All backends, see :mod:`.backends`, share the steps before them: token ids, equal texts once, and
batches of similar length.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipelines.files.copies import local_folder
from pipelines.files.locations import Location, location
from pipelines.models.folder import check_one_width, read_model
from pipelines.models.inference.backends import token_embedder
from pipelines.models.inference.batches import (
    BATCH_TOKENS,
    TokenEmbedder,
    TokenRows,
    embed_rows,
    text_column,
)
from pipelines.tokens.encoding import PromptedEncoder, TextEncoder, open_encoder
from pipelines.tokens.router import side_of
from pipelines.tokens.start import DOCUMENT, NO_PROMPTS, Prompts, is_router, read_prompts

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
        self._hidden = hidden
        self.prompts = prompts
        self._encoder = encoder
        self._embed_tokens = embed_tokens
        self._batch_tokens = batch_tokens

    @property
    def hidden(self) -> int:
        """Width of the embeddings."""
        return self._hidden

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


class RoutedEmbedder(TextEmbedder):
    """Embeds queries by one encoder of a Router, and all other texts by the other.

    An encoder is loaded for its first text: a search then does without that of the documents.
    """

    def __init__(self, folder: Path, load: Callable[[str], TextEmbedder], prompts: Prompts) -> None:
        self.prompts = prompts
        self._folder = folder
        self._load = load
        self._loaded: dict[str, TextEmbedder] = {}

    def __call__(
        self, texts: Sequence[str] | pa.StringArray, prompt_name: str | None = None
    ) -> np.ndarray:
        """Embed texts by the encoder of their prompt; see :class:`TextEmbedder`."""
        return self._of_side(side_of(prompt_name))(texts, prompt_name)

    @property
    def hidden(self) -> int:
        """Width of the embeddings."""
        return self._of_side(DOCUMENT).hidden

    def _of_side(self, side: str) -> TextEmbedder:
        if side not in self._loaded:
            self._loaded[side] = self._load(side)
            check_one_width(self._folder, [embed.hidden for embed in self._loaded.values()])
        return self._loaded[side]


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
    """Load a model folder, perhaps of a Router. Runs on an executor.

    For backend, threads, precision, device and calibration see :func:`.token_embedder`.
    ``batch_tokens`` are those of a forward pass; by default they suit the device.

    Raises:
        InputError: The folder holds no encoder that can be read, or the backend is missing.
    """
    folder = local_folder(location(folder))
    load = partial(
        _load,
        folder,
        backend=backend,
        threads=threads,
        precision=precision,
        device=device,
        batch_tokens=batch_tokens,
        calibration=calibration,
    )
    return RoutedEmbedder(folder, load, read_prompts(folder)) if is_router(folder) else load(None)


def _load(
    folder: Path,
    side: str | None,
    *,
    backend: str,
    threads: int,
    precision: str,
    device: str,
    batch_tokens: int | None,
    calibration: bytes | None,
) -> TextEmbedder:
    """Load a model, or one side of a Router; see :func:`load_embedder`."""
    spec, weights, tokenizer = read_model(folder, side)
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
