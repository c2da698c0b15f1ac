"""What PyTorch's encoder keeps for its gradient, by the formula of docs/concepts/training.md."""

import numpy as np
import pytest
import torch

from pipelines.models.bert.spec import BertSpec
from pipelines.models.frameworks.torch import embed, prepare
from pipelines.models.weights import random_weights

HIDDEN, HEADS, TOKENS = 32, 4, 24


def kept_bytes(layers: int, texts: int, **options) -> int:
    """Those of all tensors that autograd holds after a forward pass, each counted once."""
    shape = {"hidden": HIDDEN, "heads": HEADS, "intermediate": 4 * HIDDEN}
    spec = BertSpec(vocabulary=90, layers=layers, positions=32, **shape)
    weights = random_weights(spec, 2).items()
    leaves = {name: torch.tensor(value, requires_grad=True) for name, value in weights}
    kept = {}

    def keep(tensor):
        if tensor.layout == torch.strided:
            # With the tensor, so that no other one gets its place.
            kept[tensor.untyped_storage().data_ptr()] = tensor, tensor.untyped_storage().nbytes()
        return tensor

    encoder = prepare(spec, leaves, options.pop("precision"))
    token_ids = np.random.default_rng(1).integers(1, 90, (texts, TOKENS), np.int32)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        embed(encoder, token_ids, np.full(texts, TOKENS, np.int32), **options)
    return sum(size for _, size in kept.values())


@pytest.mark.parametrize(("precision", "widths"), [("fp32", 64), ("bf16", 36)])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_formula_is_right(precision, widths, dropout):
    options = {"precision": precision, "dropout": dropout, "seed": (1, 2)}
    # What a layer keeps for a token: weights, embeddings and pooling fall out of the differences.
    more_layers = [
        kept_bytes(2, texts, **options) - kept_bytes(1, texts, **options) for texts in (8, 16)
    ]
    found = (more_layers[1] - more_layers[0]) / (8 * TOKENS)
    expected = widths * HIDDEN + 4 * HEADS * TOKENS
    if dropout:
        expected += 8 * HIDDEN + 4 * HEADS * TOKENS
    assert found == pytest.approx(expected, rel=0.03)
