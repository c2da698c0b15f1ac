"""A cross-encoder that is trained here gives the same scores in sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder as TheirCrossEncoder
from tiny_checkpoints import FAMILIES, write_sentence_folder
from tokenizers import Tokenizer

from pipelines.lanes.files import Granule, Side
from pipelines.models.folder import read_encoder
from pipelines.models.frameworks.torch import prepare
from pipelines.models.rerankers.folder import read_reranker
from pipelines.models.rerankers.head import ACTIVATIONS, pair_limit
from pipelines.models.rerankers.torch import CrossEncoder
from pipelines.models.rerankers.write import write_reranker
from pipelines.models.weights import fresh_arrays
from pipelines.pretraining.reranking import LOSS, RerankingSettings, inputs, score
from pipelines.pretraining.start import generator
from pipelines.pretraining.torch_head import View
from pipelines.tokens.vocabulary import read_special_ids

QUERIES = ("the model reads a text", "ten", "words that nobody knows", "two three four")
DOCUMENTS = ("words that nobody knows", "the model", "six seven eight nine", "a text one two")


def side(tokenizer: Tokenizer, texts) -> Side:
    encoded = [tokenizer.encode(text).ids for text in texts]
    lengths = np.array([len(ids) for ids in encoded], np.int32)
    token_ids = np.zeros((len(encoded), lengths.max()), np.int32)
    for row, ids in enumerate(encoded):
        token_ids[row, : len(ids)] = ids
    return Side(token_ids, lengths)


@pytest.mark.parametrize("family", ACTIVATIONS)
def test_scores_of_training_are_those_of_the_folder(family, tmp_path):
    start = write_sentence_folder(tmp_path / "start", FAMILIES[family])
    spec, weights = read_encoder(start)
    shapes = dict(LOSS.token_loss.shapes(spec))
    head = {name: 3 * value for name, value in fresh_arrays(shapes, 5, 1).items()}
    folder = tmp_path / "reranker"
    write_reranker(folder, spec, weights, head, start, "# A cross-encoder\n")
    assert {path.name for path in folder.iterdir()} == {
        *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
        "README.md",
    }

    tokenizer = Tokenizer.from_file(str(start / "tokenizer.json"))
    granule = Granule(
        number=3,
        groups=np.arange(len(QUERIES)),
        anchor=side(tokenizer, QUERIES),
        positive=side(tokenizer, DOCUMENTS),
    )
    arrays = inputs(
        granule,
        ["anchor", "positive"],
        read_special_ids(start),
        RerankingSettings(name="reranking", granule_negatives=2),
        generator(1, 0, 3),
        pair_limit(spec),
    )
    view = View(
        encoder=prepare(spec, {name: torch.tensor(value) for name, value in weights.items()}),
        own={name: torch.tensor(value) for name, value in head.items()},
        dtype=torch.float32,
        dropout=0.0,
        seed=(1, 2),
        activation_checkpointing=False,
    )
    examples, candidates, width = arrays["token_ids"].shape
    assert (examples, candidates) == (4, 3)
    batch = view.batch(arrays["token_ids"].reshape(-1, width), arrays["lengths"].reshape(-1))
    with torch.no_grad():
        states = view.hidden_states(batch).index_select(0, batch.firsts)
        found = score(view, states).view(examples, candidates)[:, 0].numpy()
    theirs = TheirCrossEncoder(str(folder), device="cpu")
    pairs = list(zip(QUERIES, DOCUMENTS, strict=True))
    wanted = theirs.predict(pairs, activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert np.std(wanted) > 1e-3, "scores that do not differ prove nothing"
    ours = CrossEncoder(read_reranker(folder, "--rerank"), precision="fp32")
    np.testing.assert_allclose(ours(QUERIES, DOCUMENTS), theirs.predict(pairs), atol=1e-5)
    config = json.loads((Path(folder) / "config.json").read_text())
    assert config["architectures"][0].endswith("ForSequenceClassification")


def test_a_pair_that_is_too_long_is_cut_within_the_positions(tmp_path):
    start = write_sentence_folder(tmp_path / "start", FAMILIES["bert"])
    spec, weights = read_encoder(start)
    shapes = dict(LOSS.token_loss.shapes(spec))
    folder = tmp_path / "reranker"
    write_reranker(folder, spec, weights, fresh_arrays(shapes, 5, 1), start, "# One\n")
    limit = pair_limit(spec)
    assert limit == min(2 * spec.max_length - 1, spec.positions)
    score_pairs = CrossEncoder(read_reranker(folder, "--rerank"), precision="fp32")
    long = " ".join(["ten"] * 200)
    assert np.isfinite(score_pairs(["the model"], [long])).all()
