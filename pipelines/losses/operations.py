"""The operations of losses, the same in PyTorch and in TensorFlow.

A loss has one function for both, over these and Python's operators. BigDL's graphs have neither, so
its forms are separate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Protocol


class Operations(Protocol):
    """Operations on a framework's tensors, beyond Python's operators.

    Vectors are [texts, width]. Pairs are int64 [pairs, 2], rows and columns of a table.
    """

    mean: Callable[[Any], Any]
    """The mean of all numbers."""
    total: Callable[[Any], Any]
    """The sum of all numbers."""
    exp: Callable[[Any], Any]
    relu: Callable[[Any], Any]
    constant: Callable[[Any], Any]
    """The same numbers without gradient, perhaps in the same memory."""

    def count(self, tensor: Any) -> Any:
        """Return the length of the first axis, as a number or a scalar tensor."""
        ...

    def rows(self, tensor: Any, numbers: Any) -> Any:
        """Return rows of a matrix, by their numbers."""
        ...

    def joined(self, tensors: Sequence[Any], axis: int = 0) -> Any:
        """Return tensors one after another along an axis."""
        ...

    def columns(self, tensors: Sequence[Any]) -> Any:
        """Return a table [n, tensors] of tensors [n]."""
        ...

    def chosen(self, values: Any, places: Any) -> Any:
        """Return the values of a table at the true places of another, as a vector."""
        ...

    def cut(self, vectors: Any, width: int | None = None, like: Any = None) -> Any:
        """Cut vectors to ``width`` numbers, or to the width of ``like``; scale them to length 1."""
        ...

    def halves(self, vectors: Any) -> Sequence[Any]:
        """Return both halves of vectors, the second padded with a zero if the width is odd."""
        ...

    def cosines(self, left: Any, right: Any) -> Any:
        """Return the inner product of each row with the other's, [rows]."""
        ...

    def products(self, left: Any, right: Any) -> Any:
        """Return the inner products of all rows of one with all rows of the other."""
        ...

    def mean_of_others(self, table: Any) -> Any:
        """Return the mean of a square table without its diagonal of zeros."""
        ...

    def largest(self, values: Any, otherwise: Any) -> Any:
        """Return the largest number, or ``otherwise`` if there is none."""
        ...

    def log_softmax(self, logits: Any) -> Any:
        """Return the logarithm of the softmax of each row."""
        ...

    def log_one_plus(self, exponents: Any) -> Any:
        """Return log(1 + the sum of the exponentials)."""
        ...

    def cross_entropy(self, logits: Any, right: Any) -> Any:
        """Return the mean cross-entropy of the rows, given the right column of each."""
        ...

    def pairs(self, columns: Any) -> Any:
        """Return each row of a table with its column."""
        ...

    def between(self, pairs: Any, first: Any, last: Any) -> Any:
        """Return the pairs with a column in the range, counted from ``first``."""
        ...

    def put(self, table: Any, pairs: Any, value: float) -> Any:
        """Return the table with a value at some places; may change the given table."""
        ...

    def without(self, table: Any, places: Any) -> Any:
        """Return the table with minus infinity at the true places of another; as :meth:`put`."""
        ...


class _Torch:
    """The operations in PyTorch."""

    def __init__(self) -> None:
        import torch

        self._torch, self._functional = torch, torch.nn.functional
        self.mean, self.total, self.exp, self.relu = torch.mean, torch.sum, torch.exp, torch.relu
        self.constant = torch.Tensor.detach

    def count(self, tensor: Any) -> int:
        return len(tensor)

    def rows(self, tensor: Any, numbers: Any) -> Any:
        return tensor.index_select(0, numbers)

    def joined(self, tensors: Sequence[Any], axis: int = 0) -> Any:
        return self._torch.cat(list(tensors), axis)

    def columns(self, tensors: Sequence[Any]) -> Any:
        return self._torch.stack(list(tensors), 1)

    def chosen(self, values: Any, places: Any) -> Any:
        return values[places]

    def cut(self, vectors: Any, width: int | None = None, like: Any = None) -> Any:
        width = like.shape[1] if width is None else width
        return self._functional.normalize(vectors[:, :width], dim=-1)

    def halves(self, vectors: Any) -> Sequence[Any]:
        even = self._functional.pad(vectors, (0, vectors.shape[1] % 2))
        return tuple(even.chunk(2, 1))

    def cosines(self, left: Any, right: Any) -> Any:
        return (left * right).sum(-1)

    def products(self, left: Any, right: Any) -> Any:
        return left @ right.T

    def mean_of_others(self, table: Any) -> Any:
        return table.sum() / (len(table) * (len(table) - 1))

    def largest(self, values: Any, otherwise: Any) -> Any:
        return values.max() if len(values) else otherwise

    def log_softmax(self, logits: Any) -> Any:
        return self._torch.log_softmax(logits, 1)

    def log_one_plus(self, exponents: Any) -> Any:
        # A further exponent of 0 is the 1, without an overflow of the others.
        return self._torch.logsumexp(self._functional.pad(exponents, (1, 0)), 0)

    def cross_entropy(self, logits: Any, right: Any) -> Any:
        return self._functional.cross_entropy(logits, right)

    def pairs(self, columns: Any) -> Any:
        rows = self._torch.arange(len(columns), device=columns.device)
        return self._torch.stack([rows, columns], 1)

    def between(self, pairs: Any, first: int, last: int) -> Any:
        within = pairs[(pairs[:, 1] >= first) & (pairs[:, 1] < last)]
        return within - within.new_tensor([0, first])

    def put(self, table: Any, pairs: Any, value: float) -> Any:
        if len(pairs):
            table[pairs[:, 0], pairs[:, 1]] = value
        return table

    def without(self, table: Any, places: Any) -> Any:
        return table.masked_fill_(places, -float("inf"))


class _TensorFlow:
    """The operations in TensorFlow, in a graph or outside of one."""

    def __init__(self) -> None:
        import tensorflow as tf

        self._tf = tf
        self.mean, self.total, self.exp = tf.reduce_mean, tf.reduce_sum, tf.exp
        self.relu, self.constant = tf.nn.relu, tf.stop_gradient

    def count(self, tensor: Any) -> Any:
        # int64 as the numbers of candidates, since TensorFlow converts no types.
        return self._tf.shape(tensor, self._tf.int64)[0]

    def rows(self, tensor: Any, numbers: Any) -> Any:
        return self._tf.gather(tensor, numbers)

    def joined(self, tensors: Sequence[Any], axis: int = 0) -> Any:
        return self._tf.concat(list(tensors), axis)

    def columns(self, tensors: Sequence[Any]) -> Any:
        return self._tf.stack(list(tensors), 1)

    def chosen(self, values: Any, places: Any) -> Any:
        return self._tf.boolean_mask(values, places)

    def cut(self, vectors: Any, width: int | None = None, like: Any = None) -> Any:
        width = self._tf.shape(like)[1] if width is None else width
        return self._tf.math.l2_normalize(vectors[:, :width], axis=-1)

    def halves(self, vectors: Any) -> Sequence[Any]:
        half = (self._tf.shape(vectors)[1] + 1) // 2
        even = self._tf.pad(vectors, [[0, 0], [0, self._tf.shape(vectors)[1] % 2]])
        return even[:, :half], even[:, half:]

    def cosines(self, left: Any, right: Any) -> Any:
        return self._tf.reduce_sum(left * right, axis=-1)

    def products(self, left: Any, right: Any) -> Any:
        return self._tf.matmul(left, right, transpose_b=True)

    def mean_of_others(self, table: Any) -> Any:
        count = self._tf.cast(self.count(table), table.dtype)
        return self._tf.reduce_sum(table) / (count * (count - 1))

    def largest(self, values: Any, otherwise: Any) -> Any:
        return self._tf.where(self._tf.size(values) > 0, self._tf.reduce_max(values), otherwise)

    def log_softmax(self, logits: Any) -> Any:
        return self._tf.nn.log_softmax(logits)

    def log_one_plus(self, exponents: Any) -> Any:
        return self._tf.reduce_logsumexp(self._tf.concat([[0.0], exponents], 0))

    def cross_entropy(self, logits: Any, right: Any) -> Any:
        losses = self._tf.nn.sparse_softmax_cross_entropy_with_logits(right, logits)
        return self._tf.reduce_mean(losses)

    def pairs(self, columns: Any) -> Any:
        return self._tf.stack([self._tf.range(self.count(columns)), columns], 1)

    def between(self, pairs: Any, first: Any, last: Any) -> Any:
        columns = pairs[:, 1]
        within = self._tf.boolean_mask(pairs, (columns >= first) & (columns < last))
        return within - self._tf.cast(self._tf.stack([0, first]), self._tf.int64)

    def put(self, table: Any, pairs: Any, value: float) -> Any:
        values = self._tf.fill(self._tf.shape(pairs)[:1], self._tf.cast(value, table.dtype))
        return self._tf.tensor_scatter_nd_update(table, pairs, values)

    def without(self, table: Any, places: Any) -> Any:
        return self._tf.where(places, -float("inf"), table)


_OPERATIONS: Mapping[str, Callable[[], Operations]] = {"tensorflow": _TensorFlow, "torch": _Torch}


@cache
def operations_of(framework: str) -> Operations:
    """Return the operations of ``tensorflow`` or ``torch``, importing it."""
    return _OPERATIONS[framework]()


def both_forms(
    loss: Callable[[Operations, Sequence[Any], Any, Any], Any],
) -> dict[str, Callable[[Any, Any, Any], Any]]:
    """Return the forms of a loss written over operations.

    It takes them before the arguments of a :data:`pipelines.losses.loss.Form`; returns a scalar.
    """
    return {framework: partial(_computed, loss, framework) for framework in _OPERATIONS}


def _computed(
    loss: Callable[..., Any], framework: str, sides: Any, targets: Any, settings: Any
) -> Any:
    return loss(operations_of(framework), sides, targets, settings)
