"""Encoders in OpenVINO with int8 matrix products.

The products of tokens with constant matrices take int8 operands, and everything between them stays
as it is. A matrix has a scale for each output. Activations have one scale for all tokens and
channels: the instructions offer no more. A few channels of a transformer hold values a hundred
times as large as the rest, so each channel is first moved by a shift and divided by a scale of its
own. The matrix takes the scale back, and the bias the shift. Sources: Xiao et al., "SmoothQuant:
Accurate and Efficient Post-Training Quantization for Large Language Models", 2023,
arXiv:2211.10438; Wei et al., "Outlier Suppression+", 2023, arXiv:2304.09145.

Ranges of activations are those of sample texts, computed in fp32. For each product the form with
the least error on these texts is taken. The result, a :class:`Calibration`, decides all bits of the
int8 operands, so it is computed once and stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino as ov
import openvino.opset13 as op
from safetensors import SafetensorError
from safetensors.numpy import load, save

from pipelines.errors import DamagedFileError
from pipelines.models.frameworks.openvino import compiled_embedder, encoder_graph, request_of
from pipelines.models.inference.batches import BATCH_TOKENS, TokenRows
from pipelines.models.spec import EncoderSpec

if TYPE_CHECKING:
    from pipelines.models.inference.batches import TokenEmbedder

LEVELS = 127
"""The largest int8; activations also take -128, weights do not."""
LOWEST = -(LEVELS + 1) / LEVELS
SMOOTHING = (0.5, 0.65, 0.8, 1.0)
"""Tried exponents of a channel's range in its scale; the rest is the exponent of its weights."""
FITTED_TOKENS = 768
"""Tokens of the sample to measure a product's error on."""
_BF16 = "bf16"
"""The array of a file that says whether the rest is computed in bf16."""
_LEAST = 1e-6
"""The least range of a channel, and the least weight: nothing is divided by 0."""


@dataclass(frozen=True)
class Channels:
    """The int8 form of a product's input: ``shift + scale * y`` with y from -1 to 1.

    ``shift`` and ``scale`` are fp32 [in]; ``offset``, fp32 [out], is the matrix times the shift.
    """

    shift: np.ndarray
    scale: np.ndarray
    offset: np.ndarray


@dataclass(frozen=True)
class Calibration:
    """All that an int8 form adds to the weights.

    ``inputs`` are those of the products, in the order of the graph; ``precision``, fp32 or bf16, is
    that of the rest.
    """

    precision: str
    inputs: Sequence[Channels]


@dataclass(frozen=True)
class Activations:
    """A product's input on sample texts.

    ``lowest`` and ``highest`` are fp32 [in], of all tokens; ``tokens`` are some, [tokens, in].
    """

    lowest: np.ndarray
    highest: np.ndarray
    tokens: np.ndarray


def packed(calibration: Calibration) -> bytes:
    """Return the content of a safetensors file."""
    arrays = {
        f"{number}.{name}": value
        for number, channels in enumerate(calibration.inputs)
        for name, value in vars(channels).items()
    }
    content: bytes = save(arrays | {_BF16: np.array(calibration.precision == "bf16")})
    return content


def unpacked(content: bytes) -> Calibration:
    """Return the calibration of a file's content.

    Raises:
        DamagedFileError: It is not one.
    """
    names = [field.name for field in fields(Channels)]
    try:
        arrays = load(content)
        precision = "bf16" if arrays.pop(_BF16) else "fp32"
        inputs = [
            Channels(*(arrays[f"{number}.{name}"] for name in names))
            for number in range(len(arrays) // len(names))
        ]
        return Calibration(precision, inputs)
    except (SafetensorError, KeyError) as error:
        raise DamagedFileError("the calibration", f"{type(error).__name__}: {error}") from error


def calibrate(
    spec: EncoderSpec,
    weights: Mapping[str, np.ndarray],
    rows: TokenRows,
    *,
    precision: str,
    threads: int = 1,
) -> Calibration:
    """Return the calibration of an encoder on texts; ``precision`` is that of all but products."""
    graph = encoder_graph(spec, weights)
    found = _products(graph)
    matrices = [_matrix(product) for product in found]
    inputs = [op.result(product.input_value(0)) for product in found]
    observed = _observed(ov.Model(inputs, graph.get_parameters(), "inputs"), rows, threads)
    fitted = [_fitted(*pair) for pair in zip(observed, matrices, strict=True)]
    return Calibration(precision, fitted)


def open_int8_backend(
    spec: EncoderSpec,
    weights: Mapping[str, np.ndarray],
    calibration: Calibration,
    *,
    threads: int,
) -> TokenEmbedder:
    """Return a function over batches; see :func:`pipelines.models.inference.backends`."""
    graph = int8_graph(spec, weights, calibration)
    return compiled_embedder(graph, threads=threads, precision=calibration.precision)


def int8_graph(
    spec: EncoderSpec, weights: Mapping[str, np.ndarray], calibration: Calibration
) -> ov.Model:
    """Return the encoder with int8 products; see :func:`.openvino.encoder_graph`.

    Raises:
        DamagedFileError: The calibration is that of another encoder.
    """
    graph = encoder_graph(spec, weights)
    products = _products(graph)
    shapes = [_matrix(product).shape for product in products]
    if shapes != [(len(known.offset), len(known.scale)) for known in calibration.inputs]:
        raise DamagedFileError("the calibration", "it is that of another encoder")
    for product, channels in zip(products, calibration.inputs, strict=True):
        product.output(0).replace(_in_int8(product, channels).output(0))
    return graph


def _products(graph: ov.Model) -> list[Any]:
    """Return the products of tokens with constant matrices; one for each text is no gain."""
    return [
        node
        for node in graph.get_ordered_ops()
        if node.get_type_name() == "MatMul"
        and node.input_value(1).get_node().get_type_name() == "Constant"
        and len(node.input_value(0).get_partial_shape()) == 3
    ]


def _matrix(product: Any) -> np.ndarray:
    """Return the constant matrix of a product, [out, in]."""
    assert product.get_attributes()["transpose_b"], "forms multiply by [out, in]"
    matrix: np.ndarray = product.input_value(1).get_node().data
    return matrix


def _in_int8(product: Any, channels: Channels) -> Any:
    """Return the node of the product with int8 operands, as the library recognises them."""
    values = op.multiply(product.input_value(0), _constant(1 / channels.scale))
    if channels.shift.any():
        values = op.subtract(values, _constant(channels.shift / channels.scale))
    low, high = _constant(np.float32(LOWEST)), _constant(np.float32(1))
    levels = op.fake_quantize(values, low, high, low, high, 2 * (LEVELS + 1))
    units, steps = _rounded(_matrix(product) * channels.scale)
    matrix = op.multiply(op.convert(op.constant(units), "f32"), _constant(steps))
    found = op.matmul(levels, matrix, False, True)
    # The library makes one addition of this one and of the bias.
    return op.add(found, _constant(channels.offset)) if channels.shift.any() else found


def _constant(values: Any) -> Any:
    return op.constant(np.asarray(values, np.float32))


def _rounded(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a matrix [out, in] as int8 and the steps of its outputs, fp32 [out, 1]."""
    steps = np.maximum(np.abs(matrix).max(axis=1, keepdims=True), _LEAST) / np.float32(LEVELS)
    return np.rint(matrix / steps).astype(np.int8), steps.astype(np.float32)


def _observed(inputs: ov.Model, rows: TokenRows, threads: int) -> list[Activations]:
    """Return the activations of products, the outputs of a graph, on texts."""
    request = request_of(inputs, threads=threads, precision="fp32")
    share = min(1.0, FITTED_TOKENS / len(rows.ids))
    chosen = np.random.default_rng(0)
    lowest: list[np.ndarray] = []
    highest: list[np.ndarray] = []
    tokens: list[list[np.ndarray]] = [[] for _ in inputs.outputs]
    for ids, lengths in _unpadded(rows):
        found = request.infer([ids, lengths], share_outputs=True)
        flat = [found[number].reshape(ids.size, -1) for number in range(len(tokens))]
        lowest = _merged(np.minimum, lowest, [values.min(axis=0) for values in flat])
        highest = _merged(np.maximum, highest, [values.max(axis=0) for values in flat])
        places = np.flatnonzero(chosen.random(ids.size) < share)
        for kept, values in zip(tokens, flat, strict=True):
            kept.append(values[places])
    ranges = zip(lowest, highest, map(np.concatenate, tokens), strict=True)
    return [Activations(*found) for found in ranges]


def _merged(better: np.ufunc, known: list[np.ndarray], found: list[np.ndarray]) -> list[np.ndarray]:
    return [better(*pair) for pair in zip(known, found, strict=True)] if known else found


def _unpadded(rows: TokenRows) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield token ids [batch, tokens] and lengths [batch] of texts of one length each."""
    starts = np.cumsum(rows.lengths, dtype=np.int64) - rows.lengths
    for length in np.unique(rows.lengths).tolist():
        places = np.flatnonzero(rows.lengths == length)
        most = max(1, BATCH_TOKENS // length)
        for first in range(0, len(places), most):
            taken = starts[places[first : first + most]]
            ids = rows.ids[taken[:, None] + np.arange(length)]
            yield ids.astype(np.int32, copy=False), np.full(len(taken), length, np.int32)


def _fitted(found: Activations, matrix: np.ndarray) -> Channels:
    """Return the form of a product's input with the least error on its tokens."""
    exact = found.tokens @ matrix.T
    weights = np.maximum(np.abs(matrix).max(axis=0), _LEAST)
    tried = (
        _channels(found, weights, shift, power)
        for shift in ("none", "channel", "tensor")
        for power in SMOOTHING
    )
    return min(
        (Channels(shift, scale, matrix @ shift) for shift, scale in tried),
        key=lambda channels: _error(found.tokens, matrix, channels, exact),
    )


def _channels(
    found: Activations, weights: np.ndarray, shift: str, power: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return shift and scale of each channel, fp32 [in].

    ``shift`` is `none`, the middle of each channel's range, or that of the scaled `tensor`, which
    suits values of one sign. ``weights`` are the largest of each channel.
    """
    low, high = found.lowest, found.highest
    middle = (low + high) / 2 if shift == "channel" else np.zeros_like(low)
    range_ = np.maximum(np.maximum(high - middle, middle - low), _LEAST)
    scale = range_**power / weights ** (1 - power)
    if shift == "tensor":
        middle = scale * ((low / scale).min() + (high / scale).max()) / 2
    reach = np.maximum((high - middle) / scale, (middle - low) / scale).max()
    return middle.astype(np.float32), (scale * reach).astype(np.float32)


def _error(tokens: np.ndarray, matrix: np.ndarray, channels: Channels, exact: np.ndarray) -> float:
    """Return the squared error of the int8 product."""
    units, steps = _rounded(matrix * channels.scale)
    values = (tokens - channels.shift) / channels.scale
    levels = np.clip(np.rint(values * LEVELS), -LEVELS - 1, LEVELS) / np.float32(LEVELS)
    product = levels @ (units * steps).T + channels.offset
    return float(np.square(product - exact).sum(dtype=np.float64))
