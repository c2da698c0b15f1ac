"""The element-wise parts of the TensorFlow encoder, with gradients written out.

On a CPU thread the matrix products leave TensorFlow little to win, and what is left is time spent
walking over memory. So each of these parts is one compiled pass forward and one back, and sums
over tokens are matrix products with a row of ones, which are several times as fast as a reduction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pipelines.lean_tensorflow import tensorflow as tf

Function = Callable[..., Any]


def _compiled(function: Function) -> Function:
    compiled: Function = tf.function(function, jit_compile=True, autograph=False)
    return compiled


def _with_gradient(function: Function) -> Function:
    """The function, which returns its value and its gradient function, as one operation."""
    operation: Function = tf.custom_gradient(function)
    return operation


def add_bias(values: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Adds a bias to each row.

    Args:
        values: [tokens, width].
        bias: [width], fp32.
    """
    return _add_bias(values, tf.convert_to_tensor(bias))


def bias_gelu(values: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """The exact (erf) GELU of ``values + bias``, computed in fp32.

    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016, arXiv:1606.08415.

    Args:
        values: [tokens, width].
        bias: [width], fp32.
    """
    return _bias_gelu(values, tf.convert_to_tensor(bias))


def add_and_normalise(
    residual: tf.Tensor, branch: tf.Tensor, scale: tf.Tensor, shift: tf.Tensor, epsilon: float
) -> tf.Tensor:
    """The layer norm of ``residual + branch``, computed in fp32.

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016, arXiv:1607.06450.

    Args:
        residual: [tokens, width], fp32.
        branch: [tokens, width].
        scale: [width], fp32.
        shift: [width], fp32.
        epsilon: Added to the variance.

    Returns:
        [tokens, width], fp32.
    """
    return _add_and_normalise(
        residual, branch, tf.convert_to_tensor(scale), tf.convert_to_tensor(shift), epsilon
    )


def _sum_rows(values: tf.Tensor) -> tf.Tensor:
    """Sum over the tokens, as fp32 [width]."""
    ones = tf.ones([1, tf.shape(values)[0]], values.dtype)
    return tf.cast(tf.reshape(tf.matmul(ones, values), [values.shape[-1]]), tf.float32)


@_with_gradient
def _add_bias(values: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, Function]:
    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return upstream, _sum_rows(upstream)

    return values + tf.cast(bias, values.dtype), gradient


@_with_gradient
def _bias_gelu(values: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, Function]:
    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        downstream = _gelu_backward(values, bias, upstream)
        return downstream, _sum_rows(downstream)

    return _gelu_forward(values, bias), gradient


def _normal_distribution(values: tf.Tensor) -> tf.Tensor:
    return 0.5 + 0.5 * tf.math.erf(values * math.sqrt(0.5))


@_compiled
def _gelu_forward(values: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    x = tf.cast(values, tf.float32) + bias
    return tf.cast(x * _normal_distribution(x), values.dtype)


@_compiled
def _gelu_backward(values: tf.Tensor, bias: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    x = tf.cast(values, tf.float32) + bias
    # The derivative of x times the normal distribution is that distribution plus x times its
    # density. Neither is kept from the way forward: they cost less than walking over memory.
    density = tf.exp(-0.5 * tf.square(x)) * (1 / math.sqrt(2 * math.pi))
    slope = _normal_distribution(x) + x * density
    return tf.cast(tf.cast(upstream, tf.float32) * slope, values.dtype)


@_with_gradient
def _add_and_normalise(
    residual: tf.Tensor, branch: tf.Tensor, scale: tf.Tensor, shift: tf.Tensor, epsilon: float
) -> tuple[tf.Tensor, Function]:
    values, standard, inverse_deviation = _norm_forward(residual, branch, scale, shift, epsilon)

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor | None, ...]:
        downstream, scaled = _norm_backward(standard, inverse_deviation, scale, upstream)
        into_branch = tf.cast(downstream, branch.dtype)
        return downstream, into_branch, _sum_rows(scaled), _sum_rows(upstream), None

    return values, gradient


def _mean(values: tf.Tensor) -> tf.Tensor:
    """Mean over the width, in two stages of which the compiler vectorises the long one."""
    width = values.shape[-1]
    lanes = math.gcd(width, 16)
    partial = tf.reduce_sum(tf.reshape(values, [-1, width // lanes, lanes]), 1)
    return tf.reduce_sum(partial, 1, keepdims=True) / width


@_compiled
def _norm_forward(
    residual: tf.Tensor, branch: tf.Tensor, scale: tf.Tensor, shift: tf.Tensor, epsilon: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    total = residual + tf.cast(branch, tf.float32)
    centred = total - _mean(total)
    inverse_deviation = tf.math.rsqrt(_mean(tf.square(centred)) + epsilon)
    standard = centred * inverse_deviation
    return standard * scale + shift, standard, inverse_deviation


@_compiled
def _norm_backward(
    standard: tf.Tensor, inverse_deviation: tf.Tensor, scale: tf.Tensor, upstream: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    # Mean and variance depend on every value of a row, so a gradient that shifts or stretches the
    # whole row changes nothing: both parts are taken out of it.
    scaled = upstream * scale
    downstream = scaled - _mean(scaled) - standard * _mean(scaled * standard)
    return downstream * inverse_deviation, upstream * standard
