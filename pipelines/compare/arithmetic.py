"""The use of a machine's matrix-multiplication rate by a training.

The count follows Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022,
arXiv:2204.02311, appendix B. For each token, a weight of a matrix product costs two operations
forward and four back, and attention in each layer twice the products of queries with keys and of
probabilities with values. Embeddings, norms, activations and padding do not count.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from pipelines.compare.processes import own_environment
from pipelines.errors import PipelineError
from pipelines.models.architecture import architecture_of
from pipelines.models.hf.architecture import HfSpec
from pipelines.models.spec import EncoderSpec

FORWARD_AND_BACK = 6
_TABLES = ("embed", "wpe.")
"""In the names of lookup tables; `wpe` are the positions of GPT-2."""
SECONDS = 2.0
"""The time for repetitions of each product."""
DEADLINE_SECONDS = 300

Product = tuple[int, int, int]
"""Rows, inner width and columns of a matrix product."""


def matrices(spec: EncoderSpec) -> list[tuple[int, int]]:
    """Return the shapes of the weights in matrix products with tokens."""
    shapes = architecture_of(spec).weight_shapes(spec)
    return [
        (shape[0], shape[1])
        for name, shape in shapes.items()
        if len(shape) == 2 and not any(table in name for table in _TABLES)
    ]


def operations_per_token(spec: EncoderSpec, text_tokens: float, predicted: float = 0.0) -> float:
    """Return the floating-point operations of training on one token.

    Texts have `text_tokens` on average. The training predicts words from the whole vocabulary for
    the share `predicted` of the tokens.
    """
    weights: float = sum(rows * columns for rows, columns in matrices(spec))
    weights += predicted * spec.vocabulary * spec.hidden
    return FORWARD_AND_BACK * (weights + 2 * _layers(spec) * spec.hidden * text_tokens)


def _layers(spec: EncoderSpec) -> int:
    if isinstance(spec, HfSpec):
        # GPT-2 calls it `n_layer`.
        known = spec.described_config
        return int(known.get("num_hidden_layers", known.get("n_layer", 0)))
    return int(getattr(spec, "layers", 0))


def products(spec: EncoderSpec, tokens: int) -> Counter[Product]:
    """Count each product of a pass over so many tokens at once, forward and back."""
    return Counter(
        shape
        for rows, columns in matrices(spec)
        for shape in (
            (tokens, columns, rows),
            (tokens, rows, columns),
            (rows, tokens, columns),
        )
    )


def matrix_rate(shapes: Mapping[Product, int], precision: str) -> float:
    """Measure operations per second of one core on products alone, in a process of its own.

    `shapes` counts each product; it is not empty.

    Raises:
        PipelineError: The process failed.
    """
    order = json.dumps({"shapes": [*shapes.items()], "precision": precision, "seconds": SECONDS})
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__, order],
            # One core, since each worker of a comparison has one thread.
            env=own_environment() | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            check=True,
            timeout=DEADLINE_SECONDS,
        )
    except subprocess.SubprocessError as error:
        raise PipelineError(f"the measurement of the matrix products failed ({error})") from error
    return float(done.stdout)


def _measured(order: Mapping[str, Any]) -> float:
    """Return all operations over all seconds, with each product weighted as in a training."""
    import torch

    from pipelines.models.frameworks.torch import multiplied

    torch.set_num_threads(1)
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[order["precision"]]
    operations = seconds = 0.0
    for (rows, inner, columns), times in order["shapes"]:
        left = torch.randn(rows, inner, dtype=kind)
        right = torch.randn(columns, inner, dtype=kind)
        # The first call prepares kernels and caches, and does not count.
        multiplied(left, right)
        made, began = 0, time.process_time()
        while (spent := time.process_time() - began) < order["seconds"]:
            multiplied(left, right)
            made += 1
        operations += times * 2 * rows * inner * columns
        seconds += times * spent / made
    return operations / seconds


if __name__ == "__main__":
    print(_measured(json.loads(sys.argv[1])))
