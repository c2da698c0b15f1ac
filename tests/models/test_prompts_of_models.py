"""Prompts before texts: the embeddings of sentence-transformers, and what a folder keeps."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.models.folder import read_encoder, start_encoder, write_encoder
from pipelines.models.inference.embedder import load_embedder
from pipelines.models.spec import EncoderSpec
from pipelines.models.static.architecture import StaticSpec
from pipelines.models.weights import random_weights
from pipelines.settings.load import parse
from pipelines.tokens.vocabulary import vocabulary_size

FILE = "config_sentence_transformers.json"
DEFAULT = {"topic": "What is this text about? "}
SIDES = {"query": "question: ", "document": "title: none | text: "}
KEPT = [
    (DEFAULT, "topic"),
    (SIDES, None),
    (SIDES | DEFAULT, "topic"),
    ({"query": "query: ", "passage": "passage: "}, None),
]
# The prompts of the third are those of the first two.
CASES = [
    *((*kept, "static") for kept in KEPT),
    *((*kept, "bert") for kept in KEPT[2:]),
    *(pytest.param(*kept, "bert", marks=pytest.mark.matrix) for kept in KEPT[:2]),
]
TEXTS = ["a", "two dogs in the snow", "to be cut " * 600]


@pytest.fixture
def with_prompts(small_folder, tmp_path):
    """Makes a start with prompts, a transformer or static embeddings."""

    def make(prompts, default=None, kind="bert"):
        folder = tmp_path / "start"
        if kind == "static":
            words = vocabulary_size(small_folder)
            spec = StaticSpec(vocabulary=words, hidden=32, max_length=64)
            write_encoder(folder, spec, random_weights(spec, 5), small_folder, "")
        else:
            shutil.copytree(small_folder, folder)
        values = {"prompts": prompts, "default_prompt_name": default}
        storage.write_json(folder / FILE, values)
        return folder

    return make


def least_cosine(found, expected) -> float:
    found, expected = (
        one / np.maximum(np.linalg.norm(one, axis=1, keepdims=True), 1e-12)
        for one in (found, expected)
    )
    return float((found * expected).sum(axis=1).min())


@pytest.mark.parametrize(("prompts", "default", "kind"), CASES)
@pytest.mark.slow
def test_a_trained_folder_embeds_as_the_library_does(
    with_prompts, tmp_path, sentences, prompts, default, kind
) -> None:
    library = pytest.importorskip("sentence_transformers")
    start = with_prompts(prompts, default, kind)
    spec, weights = start_encoder(parse({"encoder": {"start": str(start)}}), 600)
    model = tmp_path / "model"
    write_encoder(model, EncoderSpec.from_json(spec.to_json()), weights, start, "")
    theirs = library.SentenceTransformer(str(model), device="cpu")
    ours = load_embedder(model, backend="torch")
    texts = [*TEXTS, *sentences[:20]]
    for name, encode in (
        (None, theirs.encode),
        ("query", theirs.encode_query),
        ("document", theirs.encode_document),
    ):
        assert least_cosine(ours(texts, name), encode(texts)) > 0.99999
    for name, prompt in prompts.items():
        assert least_cosine(ours(texts, name), theirs.encode(texts, prompt_name=name)) > 0.99999
        assert least_cosine(ours(texts, name), theirs.encode(texts, prompt="")) < 0.99, prompt
    again = json.loads((model / FILE).read_text())
    assert again["prompts"].items() >= prompts.items()
    assert again["default_prompt_name"] == default


def test_queries_and_documents_of_a_model_that_reads_all_texts_alike(with_prompts) -> None:
    embedder = load_embedder(with_prompts(DEFAULT, "topic"), backend="torch")
    plain = embedder(TEXTS)
    np.testing.assert_array_equal(embedder.queries(TEXTS), plain)
    np.testing.assert_array_equal(embedder.documents(TEXTS), plain)
    apart = load_embedder(with_prompts(SIDES, kind="static"), backend="torch")
    np.testing.assert_array_equal(apart.queries(TEXTS), apart(TEXTS, "query"))
    np.testing.assert_array_equal(apart.documents(TEXTS), apart(TEXTS, "document"))


def test_a_model_whose_pooling_leaves_prompts_out_is_refused(with_prompts) -> None:
    folder = with_prompts(SIDES)
    pooling = folder / "1_Pooling" / "config.json"
    storage.write_json(pooling, storage.read_json(pooling) | {"include_prompt": False})
    with pytest.raises(InputError, match=r"^encoder.start: .*`include_prompt: false`") as caught:
        read_encoder(folder)
    assert "\n" not in str(caught.value)
