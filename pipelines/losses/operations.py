"""What a loss of several forms computes with: a few operations, the same in each framework.

A loss of a few lines is written out in each framework; one of many lines is written once, over
these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol


class Operations(Protocol):
    """Operations on a framework's tensors; those that are not here are Python's operators.

    Pairs are int64 [pairs, 2], rows and columns of a table.
    """

    def count(self, tensor: Any) -> Any:
        """The length of the first axis, as a number or a scalar tensor."""
        ...

    def rows(self, tensor: Any, numbers: Any) -> Any:
        """Some rows of a matrix, by their numbers."""
        ...

    def joined(self, tensors: Sequence[Any], axis: int = 0) -> Any:
        """Tensors one after another along an axis."""
        ...

    def pairs(self, columns: Any) -> Any:
        """Each row of a table with its column."""
        ...

    def between(self, pairs: Any, first: Any, last: Any) -> Any:
        """Of the pairs those whose column is there, counted from ``first``."""
        ...

    def products(self, left: Any, right: Any) -> Any:
        """The inner products of all rows of the one with all rows of the other."""
        ...

    def inner(self, left: Any, right: Any) -> Any:
        """The inner product of each row with the other's, as a column [rows, 1]."""
        ...

    def constant(self, table: Any) -> Any:
        """The same numbers without gradient, perhaps in the same memory."""
        ...

    def put(self, table: Any, pairs: Any, value: float) -> Any:
        """The table with a value at some places; the one that is given may be changed itself."""
        ...

    def without(self, table: Any, places: Any) -> Any:
        """The table with minus infinity where a table of truth values says so; as :meth:`put`."""
        ...

    def cross_entropy(self, logits: Any, right: Any) -> Any:
        """The mean over the rows, of which the columns that are right are given."""
        ...


class TorchOperations:
    """Those of PyTorch."""

    def __init__(self) -> None:
        import torch

        self._torch = torch

    def count(self, tensor: Any) -> int:
        """See :class:`Operations`."""
        return len(tensor)

    def rows(self, tensor: Any, numbers: Any) -> Any:
        """See :class:`Operations`."""
        return tensor.index_select(0, numbers)

    def joined(self, tensors: Sequence[Any], axis: int = 0) -> Any:
        """See :class:`Operations`."""
        return self._torch.cat(list(tensors), axis)

    def pairs(self, columns: Any) -> Any:
        """See :class:`Operations`."""
        rows = self._torch.arange(len(columns), device=columns.device)
        return self._torch.stack([rows, columns], 1)

    def between(self, pairs: Any, first: int, last: int) -> Any:
        """See :class:`Operations`."""
        within = pairs[(pairs[:, 1] >= first) & (pairs[:, 1] < last)]
        return within - within.new_tensor([0, first])

    def products(self, left: Any, right: Any) -> Any:
        """See :class:`Operations`."""
        return left @ right.T

    def inner(self, left: Any, right: Any) -> Any:
        """See :class:`Operations`."""
        return (left * right).sum(1, keepdim=True)

    def constant(self, table: Any) -> Any:
        """See :class:`Operations`."""
        return table.detach()

    def put(self, table: Any, pairs: Any, value: float) -> Any:
        """See :class:`Operations`."""
        if len(pairs):
            table[pairs[:, 0], pairs[:, 1]] = value
        return table

    def without(self, table: Any, places: Any) -> Any:
        """See :class:`Operations`."""
        return table.masked_fill_(places, -float("inf"))

    def cross_entropy(self, logits: Any, right: Any) -> Any:
        """See :class:`Operations`."""
        return self._torch.nn.functional.cross_entropy(logits, right)


class TensorFlowOperations:
    """Those of TensorFlow, in a graph or outside of one."""

    def __init__(self) -> None:
        import tensorflow

        self._tf = tensorflow

    def count(self, tensor: Any) -> Any:
        """See :class:`Operations`."""
        return self._tf.shape(tensor, self._tf.int64)[0]

    def rows(self, tensor: Any, numbers: Any) -> Any:
        """See :class:`Operations`."""
        return self._tf.gather(tensor, numbers)

    def joined(self, tensors: Sequence[Any], axis: int = 0) -> Any:
        """See :class:`Operations`."""
        return self._tf.concat(list(tensors), axis)

    def pairs(self, columns: Any) -> Any:
        """See :class:`Operations`."""
        return self._tf.stack([self._tf.range(self.count(columns)), columns], 1)

    def between(self, pairs: Any, first: Any, last: Any) -> Any:
        """See :class:`Operations`."""
        columns = pairs[:, 1]
        within = self._tf.boolean_mask(pairs, (columns >= first) & (columns < last))
        return within - self._tf.cast(self._tf.stack([0, first]), self._tf.int64)

    def products(self, left: Any, right: Any) -> Any:
        """See :class:`Operations`."""
        return self._tf.matmul(left, right, transpose_b=True)

    def inner(self, left: Any, right: Any) -> Any:
        """See :class:`Operations`."""
        return self._tf.reduce_sum(left * right, axis=1, keepdims=True)

    def constant(self, table: Any) -> Any:
        """See :class:`Operations`."""
        return self._tf.stop_gradient(table)

    def put(self, table: Any, pairs: Any, value: float) -> Any:
        """See :class:`Operations`."""
        values = self._tf.fill(self._tf.shape(pairs)[:1], self._tf.cast(value, table.dtype))
        return self._tf.tensor_scatter_nd_update(table, pairs, values)

    def without(self, table: Any, places: Any) -> Any:
        """See :class:`Operations`."""
        return self._tf.where(places, -float("inf"), table)

    def cross_entropy(self, logits: Any, right: Any) -> Any:
        """See :class:`Operations`."""
        losses = self._tf.nn.sparse_softmax_cross_entropy_with_logits(right, logits)
        return self._tf.reduce_mean(losses)


def _cut_in_torch(vectors: Any, width: int) -> Any:
    from torch.nn.functional import normalize

    return normalize(vectors[:, :width], dim=-1)


def _cut_in_tensorflow(vectors: Any, width: int) -> Any:
    import tensorflow as tf

    return tf.math.l2_normalize(vectors[:, :width], axis=-1)


CUTS: Mapping[str, Callable[[Any, int], Any]] = {
    "torch": _cut_in_torch,
    "tensorflow": _cut_in_tensorflow,
}
"""By framework what keeps the first numbers of vectors [texts, width], scaled to length 1."""
