"""The encoder in BigDL's dllib against the one in PyTorch."""

import dataclasses
from typing import get_args

import numpy as np
import pandas as pd
import pytest
import torch
from token_batches import torch_forward

from pipelines.models.bert.spec import BertSpec
from pipelines.models.folder import read_encoder
from pipelines.models.inference.batches import embed_token_ids
from pipelines.models.spec import Dense, Pooling
from pipelines.models.static.architecture import StaticSpec
from pipelines.models.weights import random_weights
from pipelines.tokens.start import default_start
from pipelines.tokens.vocabulary import load_tokenizer

pytest.importorskip("bigdl", reason="BigDL is not installed")

SPEC = BertSpec(vocabulary=500, layers=2, hidden=32, heads=4, intermediate=64, max_length=40)


def rough_weights(spec, seed=3):
    """Weights of which none is zero or one, so that each of them counts."""
    generator = np.random.default_rng(seed)
    return {
        name: value + generator.normal(0, 0.1, value.shape).astype(np.float32)
        for name, value in random_weights(spec, seed).items()
    }


def in_torch(spec, weights, token_ids, lengths):
    tensors = {name: torch.from_numpy(value) for name, value in weights.items()}
    return torch_forward(spec, tensors, token_ids, lengths).detach().numpy()


@pytest.fixture(scope="module")
def bigdl(spark):
    """The module, which needs a JVM."""
    import dllib_forward

    return dllib_forward


WITH_DENSE = {"dense": (Dense(width=20), Dense(width=12, bias=False, activation="identity"))}


@pytest.mark.parametrize(
    "changes",
    [
        *({"pooling": pooling, "normalise": False} for pooling in get_args(Pooling)),
        {"normalise": True},
        {"type_vocabulary": 0},
        {"embedding_size": 24},
        WITH_DENSE,
    ],
    ids=str,
)
def test_it_embeds_as_pytorch_does(spark, bigdl, changes):
    spec = dataclasses.replace(SPEC, **changes)
    weights = rough_weights(spec)
    graph = bigdl.encoder_graph(spark.sparkContext, spec)
    bigdl.set_weights(graph, bigdl.flattened(graph, weights))
    generator = np.random.default_rng(5)
    lengths = np.array([1, 2, 40, 17, 3], np.int32)
    token_ids = generator.integers(0, spec.vocabulary, (5, 40), np.int32)
    np.testing.assert_allclose(
        bigdl.forward(graph, token_ids, lengths),
        in_torch(spec, weights, token_ids, lengths),
        atol=1e-5,
    )


def test_a_static_encoder_is_pytorchs_too(spark, bigdl):
    spec = StaticSpec(vocabulary=500, hidden=32, max_length=40)
    weights = rough_weights(spec)
    graph = bigdl.encoder_graph(spark.sparkContext, spec)
    bigdl.set_weights(graph, bigdl.flattened(graph, weights))
    # Texts of nothing but [CLS] and [SEP] are zeros.
    lengths = np.array([2, 3, 40, 17], np.int32)
    token_ids = np.random.default_rng(5).integers(0, spec.vocabulary, (4, 40), np.int32)
    ours = bigdl.forward(graph, token_ids, lengths)
    np.testing.assert_allclose(ours, in_torch(spec, weights, token_ids, lengths), atol=1e-5)
    assert not ours[0].any()


def test_weights_come_out_as_they_went_in(spark, bigdl):
    graph = bigdl.encoder_graph(spark.sparkContext, SPEC)
    weights = rough_weights(SPEC)
    again = bigdl.unflattened(graph, bigdl.flattened(graph, weights))
    assert list(again) == list(weights)
    assert graph.size == sum(value.size for value in weights.values())
    for name, value in weights.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)


def test_real_sentences_in_a_real_encoder(spark, bigdl, shared_data):
    folder = default_start()
    spec, weights = read_encoder(folder)
    rows = pd.read_parquet(shared_data / "stsb" / "stsb-en-dev.parquet")
    texts = list(rows["sentence1"][:10]) + list(rows["sentence2"][:10])
    ids = [encoding.ids for encoding in load_tokenizer(folder).encode_batch(texts)]
    graph = bigdl.encoder_graph(spark.sparkContext, spec)
    bigdl.set_weights(graph, bigdl.flattened(graph, weights))
    ours, theirs = (
        embed_token_ids(embed, ids, hidden=spec.hidden)
        for embed in (
            lambda token_ids, lengths: bigdl.forward(graph, token_ids, lengths),
            lambda token_ids, lengths: in_torch(spec, weights, token_ids, lengths),
        )
    )
    assert len(ours) == 20
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
