"""Static embeddings in OpenVINO; see :class:`pipelines.models.frameworks.openvino.Form`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import openvino.opset13 as op

from pipelines.models.frameworks.openvino import integer, mean, positions_of
from pipelines.models.static.architecture import StaticSpec
from pipelines.models.weights import WORDS


def encode(
    spec: StaticSpec, weights: Mapping[str, np.ndarray], token_ids: Any, lengths: Any
) -> Any:
    """Return the mean between the first and the last token; zeros if nothing is there."""
    words = op.gather(op.constant(weights[WORDS]), token_ids, integer(0))
    column = op.unsqueeze(positions_of(token_ids), integer(0))
    length = op.unsqueeze(lengths, integer(1))
    is_inner = op.logical_and(
        op.greater(column, integer(0)), op.less(column, op.subtract(length, integer(1)))
    )
    counts = op.maximum(op.subtract(length, integer(2)), integer(1))
    return mean(words, op.convert(is_inner, "f32"), counts)
