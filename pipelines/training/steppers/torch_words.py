"""The gradient of the word embedding in PyTorch, of which a step touches few rows.

The embedding is half of a small encoder, and most of one with a vocabulary of many languages. The
rows of words that are in no text of a step are zero on every worker, so they need not travel, nor
be made zero again.
"""

from __future__ import annotations

import numpy as np
import torch

from pipelines.training.collectives.base import Collectives


class WordGradient:
    """A buffer that the gradient is added up in, and which rows of it are not zero.

    Args:
        words: The word embedding; sparse gradients of it are what makes rows known. If a gradient
            of it is dense, all rows count as touched.
    """

    def __init__(self, words: torch.Tensor) -> None:
        self._words = words
        self._buffer = torch.zeros_like(words)
        self._touched: list[torch.Tensor] = []
        self._are_all = False
        words.register_hook(self._note)

    def begin(self) -> None:
        """Makes it zero, and has the gradients from now on added to it."""
        if self._are_all:
            self._buffer.zero_()
        for rows in self._touched:
            self._buffer.index_fill_(0, rows, 0.0)
        self._touched, self._are_all = [], False
        self._words.grad = self._buffer

    def rows(self, collectives: Collectives) -> torch.Tensor:
        """The rows that any worker has touched, int64 and in order; all workers call it."""
        own = torch.full((len(self._buffer),), self._are_all, device=self._buffer.device)
        for rows in self._touched:
            own[rows] = True
        # One bit each: of 250,000 words 31 kB, which is less than as many ids as a step has.
        bits = np.packbits(own.cpu().numpy())[None]
        everywhere = np.bitwise_or.reduce(np.asarray(collectives.all_gather(bits)), axis=0)
        touched = np.flatnonzero(np.unpackbits(everywhere, count=len(own)))
        return torch.from_numpy(touched).to(self._buffer.device)

    def at(self, rows: torch.Tensor) -> torch.Tensor:
        """A copy of some rows."""
        return self._buffer.index_select(0, rows)

    def put(self, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Replaces some rows, beyond which all are zero; returns the whole gradient."""
        self._touched = [rows]
        return self._buffer.index_copy_(0, rows, values)

    def _note(self, gradient: torch.Tensor) -> None:
        """Called with each gradient before it is added."""
        if gradient.is_sparse:
            self._touched.append(gradient._indices()[0])
        else:
            self._are_all = True
