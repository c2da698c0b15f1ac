"""Scores of pairs by a cross-encoder, through `transformers`. Runs on an executor or the driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from pipelines.errors import InputError
from pipelines.files.copies import local_folder
from pipelines.models.frameworks.torch import has_bf16
from pipelines.models.rerankers.folder import Reranker

_BATCH_TOKENS = {"cpu": 4096, "cuda": 131_072}
"""Tokens of a batch, by kind of device."""
_PAIRS_AT_ONCE = 4096
"""Pairs tokenised and sorted by length together."""


class CrossEncoder:
    """A cross-encoder on a device.

    Args:
        precision: `fp32`, `bf16`, or `auto` for the faster one of the device.
        device: `cpu`, or a GPU such as `cuda:0`.
        logits: Whether to leave out the sigmoid that the folder may ask for.
        threads: Of the CPU; None leaves PyTorch's number.

    Raises:
        InputError: The folder cannot be loaded.
    """

    def __init__(
        self,
        reranker: Reranker,
        *,
        precision: str = "auto",
        device: str = "cpu",
        logits: bool = False,
        threads: int | None = None,
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self._device = torch.device(device)
        folder = str(local_folder(reranker.folder))
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model: Any = AutoModelForSequenceClassification.from_pretrained(
                folder, local_files_only=True
            )
        except (OSError, ValueError, RuntimeError, ImportError) as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            problem = f"{reranker.folder} cannot be loaded ({reason})"
            raise InputError(reranker.key, problem, "Restore it, or save it again") from None
        in_bf16 = precision == "bf16" or (precision == "auto" and has_bf16(self._device))
        self._model = model.to(self._device, torch.bfloat16 if in_bf16 else torch.float32).eval()
        self._by_sigmoid = reranker.is_probability and not logits
        self._longest = self._most_tokens()

    def __call__(self, queries: Sequence[str], documents: Sequence[str]) -> np.ndarray:
        """Return the score of each query with its document: float32 [pairs].

        Pairs beyond the model's length lose the end of their longer text.
        """
        scores = np.empty(len(queries), np.float32)
        for start in range(0, len(queries), _PAIRS_AT_ONCE):
            rows = slice(start, start + _PAIRS_AT_ONCE)
            scores[rows] = self._scored(queries[rows], documents[rows])
        return scores

    def _scored(self, queries: Sequence[str], documents: Sequence[str]) -> np.ndarray:
        encoded = self._tokenizer(
            list(queries), list(documents), truncation=True, max_length=self._longest
        )
        lengths = np.array([len(ids) for ids in encoded["input_ids"]])
        scores = np.empty(len(lengths), np.float32)
        for places in self._batches(lengths):
            batch = {name: [values[place] for place in places] for name, values in encoded.items()}
            scores[places] = self._forward(batch)
        return scores

    def _batches(self, lengths: np.ndarray) -> Iterator[np.ndarray]:
        """Yield places of pairs of similar length, the longest first."""
        order = np.argsort(-lengths, kind="stable")
        most = _BATCH_TOKENS[self._device.type]
        while len(order):
            size = max(1, most // int(lengths[order[0]]))
            yield order[:size]
            order = order[size:]

    @torch.inference_mode()  # type: ignore[untyped-decorator] # as torch has it
    def _forward(self, batch: dict[str, list[list[int]]]) -> np.ndarray:
        padded = self._tokenizer.pad(batch, return_tensors="pt").to(self._device)
        logits = self._model(**padded).logits.float().squeeze(-1)
        scores: np.ndarray = (torch.sigmoid(logits) if self._by_sigmoid else logits).cpu().numpy()
        return scores

    def _most_tokens(self) -> int | None:
        """Return the most tokens of a pair, as sentence-transformers has it."""
        positions = getattr(self._model.config, "max_position_embeddings", None)
        known = [self._tokenizer.model_max_length, positions]
        found = min(count for count in known if count is not None and count > 0)
        # Tokenizers without a length have a number beyond any text.
        return None if found > _PAIRS_AT_ONCE**2 else int(found)


@lru_cache(maxsize=1)
def cached_cross_encoder(
    reranker: Reranker, precision: str, device: str, logits: bool, threads: int
) -> CrossEncoder:
    """Load a cross-encoder, and keep it between the tasks of a Python worker."""
    return CrossEncoder(
        reranker, precision=precision, device=device, logits=logits, threads=threads
    )
