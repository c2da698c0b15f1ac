import numpy as np
import pytest

from pipelines.encoder.folder import default_start, read_encoder, write_encoder
from pipelines.encoder.inference import embed_token_ids, load_embedder

NASTY = ["", " ", "a", "日本語のテスト", "emoji 😀👩‍👩‍👧", "tab\tnul\x00bell\x07", "word " * 400]


@pytest.fixture(scope="session")
def default_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("default") / "model"
    spec, weights = read_encoder(default_start())
    write_encoder(folder, spec, weights, default_start(), "# The default start\n")
    return folder


@pytest.mark.parametrize("name", ["default_folder", "small_folder"])
def test_embeddings_are_those_of_sentence_transformers(name, request, sentences):
    library = pytest.importorskip("sentence_transformers")
    folder = request.getfixturevalue(name)
    texts = [*sentences, *NASTY]
    model = library.SentenceTransformer(str(folder), device="cpu")
    expected = model.encode(texts, batch_size=16, show_progress_bar=False)
    found = load_embedder(folder)(texts)
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() <= 1e-5
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    assert ((found * expected).sum(axis=1) / norms).min() >= 0.99999
    half = load_embedder(folder, precision="bf16")(texts[:40])
    norms = np.linalg.norm(half, axis=1) * np.linalg.norm(expected[:40], axis=1)
    assert ((half * expected[:40]).sum(axis=1) / norms).min() >= 0.999


def test_order_and_batches_have_no_influence(small_folder, sentences):
    texts = sentences[:45]
    embed = load_embedder(small_folder, batch_size=16)
    expected = embed(texts)
    np.testing.assert_allclose(embed(texts[::-1])[::-1], expected, atol=1e-5)
    one_by_one = load_embedder(small_folder, batch_size=1)
    np.testing.assert_allclose(one_by_one(texts[:5]), expected[:5], atol=1e-5)


def test_no_texts_give_no_rows(small_folder):
    assert load_embedder(small_folder)([]).shape == (0, 256)


def test_batches_are_padded_and_put_back():
    shapes = []

    def first_id_and_length(ids, lengths):
        shapes.append(ids.shape)
        assert (ids[np.arange(ids.shape[1]) >= lengths[:, None]] == 0).all()
        return np.stack([ids[:, 0], lengths], axis=1).astype(np.float32)

    rows = [[number] * length for number, length in enumerate([1, 9, 2, 17, 3], start=1)]
    found = embed_token_ids(first_id_and_length, rows, hidden=2, batch_size=3)
    assert found.tolist() == [[1, 1], [2, 9], [3, 2], [4, 17], [5, 3]]
    assert shapes == [(4, 24), (2, 8)]


def test_it_runs_on_an_executor(spark, small_folder, sentences):
    def embed(texts):
        return [load_embedder(str(small_folder))(list(texts))]

    parts = spark.sparkContext.parallelize(sentences[:20], 2).mapPartitions(embed).collect()
    expected = load_embedder(small_folder)(sentences[:20])
    np.testing.assert_allclose(np.concatenate(parts), expected, atol=1e-5)
