"""The tokens of a batch as rows of one matrix, for the parts of an encoder that see one at a time.

A batch is a rectangle of texts x width, of which a part is padding. Only attention needs the
rectangle; matrix products, norms and activations take the tokens alone, one text behind another,
and one row or some more that stand for all padding.

What moves between the two are rows that lie together in memory, so a move is one ``gather``, and so
is its gradient. TensorFlow's own gradient of a gather, and its ``transpose``, go number by number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipelines.lean_tensorflow import tensorflow as tf

_SIZES_PER_OCTAVE = 8
"""Numbers of rows between one power of two and the next. Kernels are compiled for each anew, which
takes some 0.3 s for MiniLM in bf16; twice as many would save 2 % of the rows."""
_LEAST_STEP = 16


class Packing:
    """Where the tokens of a batch are in the rectangle and among the rows.

    The gradients of what stands in the padding have to be zero, as they are where nothing that
    stands there has a part in the loss.

    Attributes:
        places: int32 [rows], the slot of each row in the rectangle.

    Args:
        lengths: int32 [texts].
        texts: How many.
        width: Of the rectangle.
    """

    def __init__(self, lengths: tf.Tensor, texts: tf.Tensor, width: tf.Tensor) -> None:
        self._texts, self._width = texts, width
        is_token = tf.reshape(tf.sequence_mask(lengths, width), [-1])
        as_number = tf.cast(is_token, tf.int32)
        tokens = tf.reduce_sum(lengths)
        # All slots if there is no padding; else one row at least is left for it.
        self._rows = tf.minimum(_rounded(tokens + 1), texts * width)
        padding = tf.fill([self._rows - tokens], tf.argmin(as_number, output_type=tf.int32))
        of_tokens = tf.cast(tf.reshape(tf.where(is_token), [-1]), tf.int32)
        self.places = tf.concat([of_tokens, padding], 0)
        self._sources = tf.where(is_token, tf.cumsum(as_number) - 1, tokens)

    @property
    def positions(self) -> tf.Tensor:
        """int32 [rows], the position of each row in its text."""
        return self.places % self._width

    def rectangle(self, values: tf.Tensor) -> tf.Tensor:
        """[rows, size] as [texts, width, size]."""
        slots = _moved(values, self._sources, self.places)
        return tf.reshape(slots, [self._texts, self._width, values.shape[-1]])

    def heads(self, parts: int, heads: int) -> Heads:
        """The moves between rows and the rectangles of attention's heads.

        Args:
            parts: Values of a head that stand in a row: query, key and value, or one of them.
            heads: How many.
        """
        part = tf.range(parts)
        head = tf.range(heads)
        rows = tf.reshape(self._sources, [1, self._texts, 1, self._width]) * (parts * heads)
        there = rows + part[:, None, None, None] * heads + head[None, None, :, None]
        text, place = self.places // self._width, self.positions
        rectangles = (part[None, :, None] * self._texts + text[:, None, None]) * heads + head
        back = rectangles * self._width + place[:, None, None]
        shape = [parts, self._texts, heads, self._width]
        return Heads(tf.reshape(there, [-1]), tf.reshape(back, [-1]), shape)


class Heads:
    """Moves between rows [rows, parts x heads x size] and [parts, texts, heads, width, size].

    Args:
        there: int32 [parts x texts x heads x width], where each comes from among the rows.
        back: int32 [rows x parts x heads], and the other way.
        shape: Parts, texts, heads and width.
    """

    def __init__(self, there: tf.Tensor, back: tf.Tensor, shape: list[Any]) -> None:
        self._there, self._back, self._shape = there, back, shape

    def split(self, rows: tf.Tensor) -> tf.Tensor:
        """From rows to heads."""
        size = rows.shape[-1] // (self._shape[0] * self._shape[2])
        moved = _moved(tf.reshape(rows, [-1, size]), self._there, self._back)
        return tf.reshape(moved, [*self._shape, size])

    def joined(self, split: tf.Tensor) -> tf.Tensor:
        """From heads to rows."""
        size = split.shape[-1]
        moved = _moved(tf.reshape(split, [-1, size]), self._back, self._there)
        return tf.reshape(moved, [-1, self._shape[0] * self._shape[2] * size])


def _rounded(count: tf.Tensor) -> tf.Tensor:
    """So many or a few more, so that few different numbers come out."""
    octave = tf.floor(tf.math.log(tf.cast(count, tf.float32)) / tf.math.log(2.0))
    step = tf.maximum(tf.cast(tf.pow(2.0, octave), tf.int32) // _SIZES_PER_OCTAVE, _LEAST_STEP)
    return (count + step - 1) // step * step


def _with_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which returns its value and its gradient function, as one operation."""
    operation: Callable[..., Any] = tf.custom_gradient(function)
    return operation


@_with_gradient
def _moved(
    values: tf.Tensor, there: tf.Tensor, back: tf.Tensor
) -> tuple[tf.Tensor, Callable[..., Any]]:
    """Rows of ``values`` by number; ``back`` are the numbers for the gradient."""

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor | None, ...]:
        return tf.gather(upstream, back), None, None

    return tf.gather(values, there), gradient
