"""Terms of the corpus beside an encoder: their vectors, their folder, what they add."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from tiny_checkpoints import FAMILIES, TEXTS, write_plain
from transformers import AutoModel

from pipelines.catalog import BACKENDS
from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.jobs.base import say_model
from pipelines.models.folder import check_start, read_encoder, write_encoder
from pipelines.models.inference.batches import TokenRows
from pipelines.models.inference.embedder import load_embedder
from pipelines.models.lsa import corpus as lsa_corpus
from pipelines.models.lsa.corpus import POWER, check_terms, corpus_terms, find_term_vectors
from pipelines.models.lsa.modules import BEHIND, with_terms, without_terms
from pipelines.models.static.architecture import StaticSpec
from pipelines.models.weights import TERMS, random_weights
from pipelines.settings.encoder import LsaSettings
from pipelines.settings.load import parse
from pipelines.tokens.start import Prompts
from pipelines.tokens.vocabulary import copy_tokenizer, load_tokenizer

ROWS = [[1, 2, 3, 3], [2, 3, 4], [1, 5, 5, 6], [6, 7, 1], [4, 2, 2, 3]]
VOCABULARY = 9
DIMENSIONS = 4


def by_hand(rows, vocabulary, dimensions, weight):
    """The definition, by numpy's decomposition of the whole matrix."""
    counts = np.array([[row.count(token) for token in range(vocabulary)] for row in rows])
    texts_with = (counts > 0).sum(axis=0)
    rareness = np.where(texts_with, np.log(1 + len(rows) / np.maximum(texts_with, 1)), 0)
    weighed = np.where(counts, 1 + np.log(np.maximum(counts, 1)), 0) * rareness
    weighed /= np.linalg.norm(weighed, axis=1, keepdims=True)
    _, values, right = np.linalg.svd(weighed, full_matrices=False)
    found = (right.T * np.sqrt(values))[:, :dimensions]
    found /= np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-9)
    found *= rareness[:, None] ** POWER
    means = counts @ found / counts.sum(axis=1, keepdims=True)
    return found * np.sqrt(weight / (means**2).sum(axis=1).mean())


def test_vectors_are_those_of_the_definition():
    found = find_term_vectors(TokenRows.of(ROWS), VOCABULARY, DIMENSIONS, 0.25)
    expected = by_hand(ROWS, VOCABULARY, DIMENSIONS, 0.25)
    # Each column of a decomposition may have either sign, and equal values any rotation.
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-5)
    assert not found[[0, 8]].any()


@given(
    st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=8), min_size=1, max_size=12),
    st.integers(1, 20),
)
def test_texts_have_the_weight_that_is_asked_for(rows, dimensions):
    found = find_term_vectors(TokenRows.of(rows), 12, dimensions, 0.5, left_out=[0])
    assert found.shape == (12, dimensions)
    assert np.isfinite(found).all()
    assert not found[0].any()
    means = np.array([found[row].mean(axis=0) for row in rows])
    squared = float((means**2).sum(axis=1).mean())
    assert squared == pytest.approx(0.5, rel=1e-4) or not found.any()
    again = find_term_vectors(TokenRows.of(rows), 12, dimensions, 0.5, left_out=[0])
    np.testing.assert_array_equal(found, again)


def with_random_terms(spec, weights, dimensions=DIMENSIONS):
    vectors = np.random.default_rng(5).standard_normal((spec.vocabulary, dimensions))
    return with_terms(spec, weights, vectors.astype(np.float32))


@pytest.fixture(params=["bert", "roberta", "modernbert", "qwen3"])
def folder(request, tmp_path):
    """A model with terms, of an encoder of a family."""
    start = write_plain(tmp_path / "start", FAMILIES[request.param])
    spec, weights = read_encoder(start)
    write_encoder(tmp_path / "model", *with_random_terms(spec, weights), start, "card")
    return tmp_path / "model"


def test_a_folder_with_terms_is_read_as_it_was_written(folder):
    own_spec, own_weights = read_encoder(folder.parent / "start")
    spec, weights = read_encoder(folder)
    expected_spec, expected = with_random_terms(own_spec, own_weights)
    assert spec == expected_spec
    assert spec.embedding_width == own_spec.embedding_width + DIMENSIONS
    for name, value in expected.items():
        np.testing.assert_array_equal(weights[name], value, err_msg=name)
    assert without_terms(spec, weights)[0] == own_spec


def test_sentence_transformers_gives_the_same_embeddings(folder):
    found = load_embedder(folder)(TEXTS)
    loaded = SentenceTransformer(str(folder))
    np.testing.assert_allclose(loaded.encode(list(TEXTS)), found, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    assert loaded.get_embedding_dimension() == found.shape[1]
    loaded.save(str(folder.parent / "again"))
    np.testing.assert_array_equal(load_embedder(folder.parent / "again")(TEXTS), found)


def test_readers_of_a_transformer_alone_find_none(folder):
    with pytest.raises((OSError, ValueError), match=r"config\.json"):
        AutoModel.from_pretrained(folder, local_files_only=True)
    assert not [*folder.glob("config.json"), *folder.glob("*.safetensors"), *folder.glob("*.bin")]
    # As releases before wrote it.
    again = folder.parent / "before"
    SentenceTransformer(str(folder), device="cpu").save(str(again))
    assert (again / "config.json").is_file()
    expected = load_embedder(folder)(TEXTS)
    np.testing.assert_array_equal(load_embedder(again)(TEXTS), expected)


def test_where_it_cannot_be_served_is_said(tmp_path, capsys):
    tree = {"run": {"folder": str(tmp_path)}, "encoder": {"lsa": {"dimensions": 4}}}
    say_model(parse(tree), tmp_path / "model")
    told = capsys.readouterr().out
    assert told.startswith(
        f"model   {tmp_path / 'model'}\nlimit   Only sentence-transformers (5.4 or later)"
    )
    assert all(name in told for name in ("vLLM", "fastembed", "AutoModel", "ONNX", "LSA"))
    say_model(parse({}), tmp_path / "model")
    assert capsys.readouterr().out == f"model   {tmp_path / 'model'}\n"


def test_what_the_encoder_says_of_a_text_stays_beside_its_terms(folder):
    both = load_embedder(folder)(TEXTS)
    own = load_embedder(folder.parent / "start")(TEXTS)
    part = both[:, : own.shape[1]]
    part = part / np.linalg.norm(part, axis=1, keepdims=True)
    np.testing.assert_allclose(part, own, atol=1e-5)


def test_every_backend_has_the_terms(small_folder, tmp_path):
    spec, weights = with_random_terms(*read_encoder(small_folder))
    write_encoder(tmp_path / "model", spec, weights, small_folder, "")
    first, *others = [load_embedder(tmp_path / "model", backend=name)(TEXTS) for name in BACKENDS]
    assert others
    for found in others:
        np.testing.assert_allclose(found, first, atol=1e-5)


def test_a_model_with_terms_is_no_start(folder):
    with pytest.raises(InputError, match=r"^encoder\.start: .* lexical \(LSA\) features beside"):
        check_start(parse({"encoder": {"start": str(folder)}, "tokens": {"vocabulary": "start"}}))


@pytest.mark.parametrize("change", ["order", "copy"])
def test_word_embeddings_of_others_are_refused(folder, change):
    modules = storage.read_json(folder / "modules.json")
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    assert tuple(kinds[-len(BEHIND) - 1 : -1]) == BEHIND
    if change == "order":
        modules[-4], modules[-3] = modules[-3], modules[-4]
        storage.write_json(folder / "modules.json", modules)
    else:
        path = folder / modules[-3]["path"] / "config.json"
        storage.write_json(path, storage.read_json(path) | {"module_output_name": "other"})
    with pytest.raises(InputError, match=r"WordEmbeddings that are not of `encoder\.lsa`"):
        read_encoder(folder)


def prepared_pairs(folder, start, rows):
    """A prepared corpus of two files, as far as terms read it."""
    prepared = PreparedFolder(folder)
    prepared.corpus.pairs.mkdir(parents=True)
    schema = pa.schema([("anchor", pa.string()), ("positive", pa.string())])
    for number in range(2):
        table = pa.Table.from_pylist(rows[number::2], schema)
        pq.write_table(table, prepared.corpus.pairs / f"part-{number}.parquet")
    prepared.tokens.tokenizer.mkdir(parents=True)
    copy_tokenizer(start, prepared.tokens.tokenizer, 32)
    return prepared


def test_terms_of_a_corpus_are_of_both_texts_of_each_pair(plain, tmp_path):
    start = plain("bert")
    rows = [
        {"anchor": "one two", "positive": "three four five"},
        {"anchor": "the model", "positive": "reads a text"},
        {"anchor": "six seven", "positive": None},
        {"anchor": "one five", "positive": "the text that nobody knows"},
    ]
    spec, _ = read_encoder(start)
    prepared = prepared_pairs(tmp_path / "prepared", start, rows)
    found = corpus_terms(prepared, spec, LsaSettings(dimensions=2, weight=0.3))
    tokenizer = load_tokenizer(start)
    bags = [
        [number for text in row.values() if text for number in tokenizer.encode(text).ids]
        for row in (*rows[0::2], *rows[1::2])
    ]
    special = {tokenizer.token_to_id(token) for token in ("<s>", "</s>", "<unk>", "<pad>")}
    expected = find_term_vectors(TokenRows.of(bags), spec.vocabulary, 2, 0.3, left_out=special)
    np.testing.assert_array_equal(found, expected)
    assert found[tokenizer.token_to_id("seven")].any()
    assert not found[tokenizer.token_to_id("ten")].any()


def test_of_a_large_corpus_some_of_each_file_are_read(plain, tmp_path, monkeypatch):
    start = plain("bert")
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
    rows = [{"anchor": word, "positive": word} for word in words]
    prepared = prepared_pairs(tmp_path / "prepared", start, rows)
    monkeypatch.setattr(lsa_corpus, "MOST_TEXTS", 4)
    found = corpus_terms(prepared, read_encoder(start)[0], LsaSettings(dimensions=4))
    tokenizer = load_tokenizer(start)
    known = [word for word in words if found[tokenizer.token_to_id(word)].any()]
    assert known == ["one", "two", "three", "four"]


def test_words_of_prompts_say_nothing(plain, tmp_path):
    start = plain("bert")
    rows = [{"anchor": "the model", "positive": "reads a text"}, {"anchor": "one", "positive": "a"}]
    prepared = prepared_pairs(tmp_path / "prepared", start, rows)
    prompts = Prompts.from_json({"prompts": {"query": "the text "}})
    spec = replace(read_encoder(start)[0], prompts=prompts)
    found = corpus_terms(prepared, spec, LsaSettings(dimensions=2))
    tokenizer = load_tokenizer(start)
    assert not found[tokenizer.token_to_id("the")].any()
    assert found[tokenizer.token_to_id("model")].any()


@pytest.mark.parametrize(
    ("dimensions", "made", "said"),
    [
        (4, False, "there are no texts in"),
        (3, True, r"the embedding's width, 24 \+ 3, is odd"),
    ],
)
def test_terms_that_there_cannot_be_are_refused(plain, tmp_path, dimensions, made, said):
    spec, _ = read_encoder(plain("bert"))
    if made:
        prepared_pairs(tmp_path / "prepared", plain("bert"), [{"anchor": "one"}])
    config = parse(
        {
            "encoder": {"lsa": {"dimensions": dimensions}},
            "prepared": {"folder": str(tmp_path / "prepared")},
        }
    )
    with pytest.raises(InputError, match=rf"^encoder\.lsa\.dimensions: .*{said}"):
        check_terms(config, spec)


def test_static_encoders_have_words_alone_already(tmp_path):
    config = parse({"encoder": {"lsa": {"dimensions": 4}}})
    with pytest.raises(InputError, match="architecture static pools no layers"):
        check_terms(config, StaticSpec(vocabulary=9, hidden=8))
    check_terms(parse({}), StaticSpec(vocabulary=9, hidden=8))


def test_random_weights_of_a_spec_with_terms_are_those_of_its_encoder():
    spec = StaticSpec(vocabulary=9, hidden=8)
    assert TERMS not in random_weights(spec, 1)
