"""Embedding by every backend: the vectors of sentence-transformers, whatever the batches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.catalog import BACKENDS
from pipelines.errors import InputError
from pipelines.models.folder import default_start, read_encoder, write_encoder
from pipelines.models.inference.batches import TokenRows, batches, embed_token_ids
from pipelines.models.inference.embedder import load_embedder

NASTY = ["", " ", "a", "日本語のテスト", "emoji 😀👩‍👩‍👧", "tab\tnul\x00bell\x07", "word " * 400]


@pytest.fixture(scope="session")
def default_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("default") / "model"
    spec, weights = read_encoder(default_start())
    write_encoder(folder, spec, weights, default_start(), "# The default start\n")
    return folder


def cosines(left, right):
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return (left * right).sum(axis=1) / norms


@pytest.mark.parametrize(
    "name", ["small_folder", pytest.param("default_folder", marks=pytest.mark.matrix)]
)
@pytest.mark.slow
def test_embeddings_are_those_of_sentence_transformers(name, request, sentences):
    library = pytest.importorskip("sentence_transformers")
    folder = request.getfixturevalue(name)
    texts = [*sentences[::20], *NASTY]
    model = library.SentenceTransformer(str(folder), device="cpu")
    expected = model.encode(texts, batch_size=16, show_progress_bar=False)
    for backend in BACKENDS:
        pytest.importorskip(backend)
        found = load_embedder(folder, backend=backend)(texts)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5, err_msg=backend)
        assert cosines(found, expected).min() >= 0.99999
        half = load_embedder(folder, backend=backend, precision="bf16")(texts[:10])
        assert cosines(half, expected[:10]).min() >= 0.999, backend


def test_order_and_batches_have_no_influence(small_folder, sentences):
    texts = sentences[:45]
    embed = load_embedder(small_folder, batch_tokens=300)
    expected = embed(texts)
    np.testing.assert_allclose(embed(texts[::-1])[::-1], expected, atol=1e-5)
    one_by_one = load_embedder(small_folder, batch_tokens=1)
    np.testing.assert_allclose(one_by_one(texts[:5]), expected[:5], atol=1e-5)


def test_a_backend_that_is_not_there_is_refused(small_folder, monkeypatch):
    with pytest.raises(InputError, match=r"there is no backend `abacus`\. Choose one of openvino"):
        load_embedder(small_folder, backend="abacus")
    monkeypatch.setattr("pipelines.libraries.find_spec", lambda name: None)
    with pytest.raises(
        InputError, match=r"no openvino is installed here\. Run `pip .*\[openvino\]"
    ):
        load_embedder(small_folder, backend="openvino")
    with pytest.raises(InputError, match="no openvino or torch or tensorflow is installed here"):
        load_embedder(small_folder)


def test_equal_texts_are_embedded_once(small_folder, sentences):
    seen = []
    embed = load_embedder(small_folder)
    compute = embed._embed_tokens
    embed._embed_tokens = lambda ids, lengths: seen.append(len(ids)) or compute(ids, lengths)
    found = embed([sentences[0], sentences[1], sentences[0].upper(), sentences[0]])
    assert sum(seen) == 2
    np.testing.assert_array_equal(found[[0, 0]], found[[2, 3]])


def test_no_texts_give_no_rows(small_folder):
    assert load_embedder(small_folder)([]).shape == (0, 64)


def test_batches_are_padded_and_put_back():
    shapes = []

    def first_id_and_length(ids, lengths):
        shapes.append(ids.shape)
        assert (ids[np.arange(ids.shape[1]) >= lengths[:, None]] == 0).all()
        return np.stack([ids[:, 0], lengths], axis=1).astype(np.float32)

    rows = [[number] * length for number, length in enumerate([1, 9, 2, 17, 3], start=1)]
    found = embed_token_ids(first_id_and_length, rows, hidden=2, batch_tokens=18)
    assert found.tolist() == [[1, 1], [2, 9], [3, 2], [4, 17], [5, 3]]
    assert shapes == [(1, 17), (2, 9), (2, 2)]


@given(st.lists(st.integers(1, 70)), st.integers(1, 300))
def test_batches_hold_every_row_once_within_their_tokens(lengths, budget):
    rows = TokenRows.of([[7] * length for length in lengths])
    found = list(batches(rows, budget))
    assert sorted(np.concatenate([*found, np.zeros(0, int)])) == list(range(len(lengths)))
    for places in found:
        assert len(places) == 1 or len(places) * rows.lengths[places].max() <= budget


def test_it_runs_on_an_executor(spark, small_folder, sentences):
    def embed(texts):
        return [load_embedder(str(small_folder))(list(texts))]

    parts = spark.sparkContext.parallelize(sentences[:20], 2).mapPartitions(embed).collect()
    expected = load_embedder(small_folder)(sentences[:20])
    np.testing.assert_allclose(np.concatenate(parts), expected, atol=1e-5)
