"""A small encoder with lively weights, and texts for it."""

import numpy as np

from pipelines.models.bert.spec import BertSpec
from pipelines.models.weights import random_weights

SPEC = BertSpec(vocabulary=90, layers=2, hidden=24, heads=3, intermediate=40, positions=32)
WEIGHTS = {
    name: value * 5 if value.ndim == 2 else value for name, value in random_weights(SPEC, 2).items()
}
LENGTHS = np.array([3, 11, 7, 16], np.int32)
FULL = np.full(4, 16, np.int32)


def tokens(width=16, padding=0, lengths=LENGTHS):
    ids = np.random.default_rng(1).integers(1, SPEC.vocabulary, (len(lengths), 32), np.int32)
    ids = ids[:, :width].copy()
    ids[np.arange(width) >= lengths[:, None]] = padding
    return ids


def torch_forward(spec, weights, ids, lengths, precision="fp32", **options):
    """The embeddings of some texts by an encoder in PyTorch."""
    from pipelines.models.frameworks.torch import embed, prepare

    return embed(prepare(spec, weights, precision), ids, lengths, **options)
