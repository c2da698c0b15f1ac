"""The exchange of gradients between PyTorch's workers, during the last backward pass of a step.

Runs on executors. Gradients travel in flat buckets, as in DistributedDataParallel. That class needs
a ``forward`` of one module before each ``backward``, and dense word gradients, although a granule
touches few of their rows. Two passes over the granules (``negatives: step``) do not fit it either.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB
13 (2020), arXiv:2006.15704.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from pipelines.lanes.files import Side
from pipelines.models.weights import WORDS
from pipelines.training.collectives.base import Collectives

BUCKET_BYTES = 8 * 2**20
"""Bytes of gradients that travel together: enough for the network, and few enough for the first
bucket to be full early, and for the last one to be short."""


class WordGradient:
    """A buffer for the word embedding's gradient, with a list of its non-zero rows.

    The word embedding is half of a small encoder, and most of one with a vocabulary of many
    languages. A step touches few of its rows. Rows of words in no text of a step are zero on every
    worker, so workers neither exchange nor zero them. Sparse gradients name the touched rows; after
    a dense one all count as touched.
    """

    def __init__(self, words: torch.Tensor) -> None:
        self._words = words
        self._buffer = torch.zeros_like(words)
        self._touched: list[torch.Tensor] = []
        self.is_dense = False
        words.register_hook(self._note)

    def begin(self) -> None:
        """Zero the buffer, and add all gradients from now on to it."""
        if self.is_dense:
            self._buffer.zero_()
        for rows in self._touched:
            self._buffer.index_fill_(0, rows, 0.0)
        self._touched, self.is_dense = [], False
        self._words.grad = self._buffer

    def rows(self, collectives: Collectives) -> torch.Tensor:
        """Return the rows touched on any worker, int64 and sorted; all workers call it."""
        return self._union(collectives.all_gather(self._bits(self._touched_mask())))

    def begin_rows(self, sides: Iterable[Side], collectives: Collectives) -> Callable[[], Any]:
        """Begin to gather the rows of all words in these texts of any worker; all call it.

        The returned function waits for them; see :meth:`rows`.
        """
        gathered = collectives.begin_gather(self._bits(self._mask_of(sides)))
        return lambda: self._union(gathered())

    def is_within(self, sides: Iterable[Side]) -> bool:
        """Return whether only rows of words in these texts have been touched."""
        return not (self._touched_mask() & ~self._mask_of(sides)).any()

    def at(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a copy of the named rows."""
        return self._buffer.index_select(0, rows)

    def put(self, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Replace the non-zero rows; return the whole gradient."""
        self._touched = [rows]
        return self._buffer.index_copy_(0, rows, values)

    def _note(self, gradient: torch.Tensor) -> None:
        """Note the rows of each gradient before its addition."""
        if gradient.is_sparse:
            self._touched.append(gradient._indices()[0])
        else:
            self.is_dense = True

    def _touched_mask(self) -> np.ndarray:
        mask = torch.full((len(self._buffer),), self.is_dense, device=self._buffer.device)
        for rows in self._touched:
            mask[rows] = True
        array: np.ndarray = mask.cpu().numpy()
        return array

    def _mask_of(self, sides: Iterable[Side]) -> np.ndarray:
        mask = np.zeros(len(self._buffer), bool)
        for side in sides:
            width = side.token_ids.shape[1]
            mask[side.token_ids[np.arange(width) < side.lengths[:, None]]] = True
        return mask

    @staticmethod
    def _bits(mask: np.ndarray) -> np.ndarray:
        # One bit per row: 31 kB for 250,000 words, less than the ids of a step's words.
        return np.packbits(mask)[None]

    def _union(self, bits: Any) -> torch.Tensor:
        everywhere = np.bitwise_or.reduce(np.asarray(bits), axis=0)
        touched = np.flatnonzero(np.unpackbits(everywhere, count=len(self._buffer)))
        return torch.from_numpy(touched).to(self._buffer.device)


class GradientExchange:
    """Averages the gradients of a step; they travel while its last backward pass goes on.

    Buckets are runs of the weights in reverse, so they follow from the weights alone. Each is sent
    once it has all its gradients, in one order on all workers: that in which rank 0's first step
    has completed them. The first step sends all buckets after its backward pass.

    The means do not depend on when a bucket is sent. Of more than two workers, their order of
    summation depends on the bounds of buckets, as Gloo's ring begins each part with another worker.

    Rows of the word embedding come last in a backward pass. Their list is that of the step's words,
    so it travels from the beginning of a step on. A first step has shown that no other row has
    gradients, on any worker; otherwise the list waits for the backward pass.

    Args:
        weights: By name, leaves of the graph. Without a gradient, they count as having a zero one.
        collectives: Of the workers with the same weights.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], collectives: Collectives) -> None:
        self._weights = weights
        self._collectives = collectives
        self._words = WordGradient(weights[WORDS]) if WORDS in weights else None
        dense = {name: weight for name, weight in weights.items() if name != WORDS}
        self._buckets = list(_buckets(dict(reversed(dense.items()))))
        self._has_agreed = False
        self._order: Sequence[int] = ()
        self._words_are_those_of_texts = False
        self._sides: Sequence[Side] | None = None
        self._rows: Callable[[], torch.Tensor] | None = None
        self._is_last = False
        self._missing: list[int] = []
        self._completed: list[int] = []
        self._begun: dict[int, Callable[[], list[torch.Tensor]]] = {}
        if collectives.workers > 1:
            for number, names in enumerate(self._buckets):
                for name in names:
                    note = partial(self._note, number)
                    weights[name].register_post_accumulate_grad_hook(note)

    def begin(self, sides: Sequence[Side] | None) -> None:
        """Forget the gradients of the step before.

        `sides` are the texts of this worker's step, if only their words have gradients.
        """
        for weight in self._weights.values():
            weight.grad = None
        self._missing = [len(names) for names in self._buckets]
        self._completed, self._begun = [], {}
        self._sides, self._rows = sides, None
        if self._words is None:
            return
        # After the loop, which would drop the buffer.
        self._words.begin()
        if self._words_are_those_of_texts and sides is not None:
            self._rows = self._words.begin_rows(sides, self._collectives)

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        """Add the gradients of a loss; with `last` they are complete, and begin to travel."""
        self._is_last = last
        loss.backward()
        self._is_last = False

    def gradients(self) -> dict[str, torch.Tensor]:
        """Return this worker's gradients by name, valid until the next step."""
        return {
            name: torch.zeros_like(weight) if weight.grad is None else weight.grad
            for name, weight in self._weights.items()
        }

    def means(self, loss: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Return gradients and loss, averaged over the workers; all workers call it.

        Raises:
            RuntimeError: A worker or the connection to it is lost, or a deadline has passed.
        """
        if self._collectives.workers == 1:
            return self.gradients(), loss
        if not self._has_agreed:
            self._agree()
        for number in self._order[len(self._begun) :]:
            self._send(number)
        rows = self._touched_rows()
        at_rows = [] if self._words is None or rows is None else [self._words.at(rows)]
        rest = self._collectives.begin_mean([*at_rows, loss])
        found: dict[str, torch.Tensor] = {}
        for number, wait in self._begun.items():
            found |= zip(self._buckets[number], wait(), strict=True)
        *at_rows, mean_loss = rest()
        if self._words is not None and rows is not None:
            found[WORDS] = self._words.put(rows, at_rows[0])
        # In the order of the weights: the norm is a sum of them.
        return {name: found[name] for name in self._weights}, mean_loss

    def _agree(self) -> None:
        """Fix what the first step has shown, alike on all workers."""
        rest = [number for number in range(len(self._buckets)) if number not in self._completed]
        within = self._sides is not None and (
            self._words is None or self._words.is_within(self._sides)
        )
        mine = np.array([[*self._completed, *rest, within]], np.int64)
        everywhere = np.asarray(self._collectives.all_gather(mine))
        self._order = everywhere[0, :-1].tolist()
        self._words_are_those_of_texts = bool(everywhere[:, -1].all())
        self._has_agreed = True

    def _touched_rows(self) -> torch.Tensor | None:
        """Return the rows to exchange, if the words are trained."""
        if self._words is None:
            return None
        if self._rows is None:
            return self._words.rows(self._collectives)
        if self._words.is_dense:
            raise RuntimeError("the gradient of the word embedding has become dense")
        return self._rows()

    def _note(self, number: int, weight: torch.Tensor) -> None:
        """Count a complete gradient of a bucket, and send all buckets whose turn it is."""
        if not self._is_last:
            return
        self._missing[number] -= 1
        if self._missing[number]:
            return
        self._completed.append(number)
        for bucket in self._order[len(self._begun) :]:
            if self._missing[bucket]:
                break
            self._send(bucket)

    def _send(self, number: int) -> None:
        weights = [self._weights[name] for name in self._buckets[number]]
        gradients = [
            torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights
        ]
        self._begun[number] = self._collectives.begin_mean(gradients)
        # The bucket holds a copy.
        for weight in weights:
            weight.grad = None


def _buckets(weights: Mapping[str, torch.Tensor]) -> Iterator[list[str]]:
    """Yield the names of runs of at most ``BUCKET_BYTES``, or of a single larger weight."""
    names: list[str] = []
    size = 0
    for name, weight in weights.items():
        if names and size + weight.nbytes > BUCKET_BYTES:
            yield names
            names, size = [], 0
        names.append(name)
        size += weight.nbytes
    if names:
        yield names
