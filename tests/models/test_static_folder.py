"""Static encoders as folders: what sentence-transformers reads, and what it saves."""

import dataclasses
import json

import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.models.folder import read_encoder, start_encoder, write_encoder
from pipelines.models.inference.embedder import load_embedder
from pipelines.models.spec import UNLIMITED
from pipelines.models.static.architecture import StaticSpec
from pipelines.models.weights import WORDS, load_weights, random_weights, save_weights
from pipelines.settings.load import parse
from pipelines.tokens.vocabulary import load_tokenizer, vocabulary_size, write_tokenizer

NASTY = ["", " ", "a", "日本語", "[CLS] and [SEP] [PAD]", "nul\x00bell\x07", "word " * 400]
LENGTH = 16


@pytest.fixture(scope="module", params=[True, False], ids=["unit", "free"])
def folder(request, small_folder, tmp_path_factory):
    """A random static encoder over the vocabulary of the small encoder."""
    spec = StaticSpec(
        vocabulary=vocabulary_size(small_folder),
        hidden=32,
        normalise=request.param,
        max_length=LENGTH,
    )
    path = tmp_path_factory.mktemp("static") / "model"
    write_encoder(path, spec, random_weights(spec, 5), small_folder, "# A static encoder\n")
    return path


def library_model(folder):
    library = pytest.importorskip("sentence_transformers")
    return library.SentenceTransformer(str(folder), device="cpu")


def assert_embeds_alike(folder, model, texts):
    expected = model.encode(texts, batch_size=16, show_progress_bar=False)
    found = load_embedder(folder)(texts)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    return found


def test_round_trip(folder, small_folder, tmp_path):
    spec, weights = read_encoder(folder)
    assert (spec.kind, spec.hidden, spec.max_length) == ("static", 32, LENGTH)
    write_encoder(tmp_path / "out", spec, weights, folder, "# Card\n")
    read_spec, read_weights = read_encoder(tmp_path / "out")
    assert read_spec == spec
    np.testing.assert_array_equal(read_weights[WORDS], weights[WORDS])
    texts = ["the tokenizer is the same", *NASTY]
    expected = load_tokenizer(small_folder).encode_batch(texts)
    found = load_tokenizer(tmp_path / "out").encode_batch(texts)
    assert [one.ids for one in found] == [one.ids for one in expected]


def test_embeddings_are_those_of_sentence_transformers(folder, sentences):
    found = assert_embeds_alike(folder, library_model(folder), [*sentences, *NASTY])
    counts = [len(one.ids) - 2 for one in load_tokenizer(folder).encode_batch(sentences)]
    assert max(counts) > 2 * LENGTH, "long texts are among them"
    assert not found[len(sentences)].any()
    long, cut = load_embedder(folder)(["one two " * 7, "one two " * 300])
    np.testing.assert_allclose(long, cut, atol=1e-6)


def test_releases_before_5_find_the_module_in_a_folder_of_its_own(folder):
    first, *others = json.loads((folder / "modules.json").read_text())
    assert first["type"] == "sentence_transformers.models.StaticEmbedding"
    assert first["path"] == "0_Static"
    assert all((folder / module["path"]).is_dir() for module in others)
    assert list(load_weights(folder / first["path"] / "model.safetensors")) == ["embedding.weight"]


def test_what_sentence_transformers_saves_is_read(folder, sentences, tmp_path):
    model = library_model(folder)
    model.save(str(tmp_path / "cut"))
    assert read_encoder(tmp_path / "cut")[0] == read_encoder(folder)[0]
    assert_embeds_alike(tmp_path / "cut", model, [*sentences[:30], *NASTY])
    model[0].tokenizer.no_truncation()
    model.save(str(tmp_path / "whole"))
    spec, weights = read_encoder(tmp_path / "whole")
    assert spec.max_length == UNLIMITED
    write_encoder(tmp_path / "again", spec, weights, tmp_path / "whole", "")
    assert read_encoder(tmp_path / "again")[0] == spec
    assert_embeds_alike(tmp_path / "whole", model, [*sentences[:30], *NASTY])


@pytest.fixture
def saved(small_folder, tmp_path):
    """The root of a folder that a test may change, as newer releases write it."""
    path = tmp_path / "saved"
    path.mkdir()
    load_tokenizer(small_folder).save(str(path / "tokenizer.json"))
    words = np.random.default_rng(1).normal(size=(700, 8)).astype(np.float16)
    save_weights(path / "model.safetensors", {"embedding.weight": words})
    modules = [{"idx": 0, "name": "0", "path": "", "type": "a.b.static_embedding.StaticEmbedding"}]
    storage.write_json(path / "modules.json", modules)
    return path


def test_the_name_that_model2vec_gives_is_read(saved):
    spec, weights = read_encoder(saved)
    assert spec == StaticSpec(vocabulary=700, hidden=8, normalise=False, max_length=spec.max_length)
    assert weights[WORDS].dtype == np.float32
    save_weights(saved / "model.safetensors", {"embeddings": weights[WORDS]})
    np.testing.assert_array_equal(read_encoder(saved)[1][WORDS], weights[WORDS])


def add_a_module(folder):
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"idx": 1, "name": "1", "path": "1_LSTM", "type": "a.models.LSTM"})
    storage.write_json(folder / "modules.json", modules)


def map_tokens(folder):
    weights = load_weights(folder / "model.safetensors")
    save_weights(folder / "model.safetensors", {**weights, "mapping": np.arange(700)})


def take_special_tokens(folder):
    tokenizer = load_tokenizer(folder)
    tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (add_a_module, "the modules StaticEmbedding, LSTM"),
        (map_tokens, "holds embedding.weight, mapping"),
        (take_special_tokens, r"adds no \[CLS\]"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no model.safetensors"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer.json"),
    ],
)
def test_what_is_not_plainly_static_is_refused(saved, change, named):
    change(saved)
    with pytest.raises(InputError, match=named) as caught:
        read_encoder(saved)
    assert caught.value.key == "encoder.start"
    assert "\n" not in str(caught.value)


class TestStart:
    def test_random_takes_its_shape_from_the_settings(self):
        encoder = {"start": "random", "kind": "static", "hidden": 30, "normalise": False}
        told = parse({"encoder": encoder | {"max_length": 40}})
        expected = StaticSpec(vocabulary=300, hidden=30, normalise=False, max_length=40)
        assert start_encoder(told, 300)[0] == expected
        config = parse({"encoder": encoder, "tokens": {"max_length": 40}})
        spec, weights = start_encoder(config, 300)
        assert spec == dataclasses.replace(expected, max_length=UNLIMITED)
        np.testing.assert_array_equal(weights[WORDS], random_weights(spec, 17)[WORDS])

    @pytest.mark.parametrize("kind", ["bert", "static"])
    @pytest.mark.parametrize(("told", "length"), [(None, 16), (8, 16), (512, 512)])
    def test_a_folder_brings_its_kind_and_its_length_unless_more_is_read(
        self, folder, kind, told, length
    ):
        encoder = {"start": str(folder), "kind": kind}
        spec, _ = start_encoder(parse({"encoder": encoder, "tokens": {"max_length": told}}), 600)
        assert spec == dataclasses.replace(read_encoder(folder)[0], max_length=length)

    def test_a_transformer_is_not_static(self, small_folder):
        config = parse({"encoder": {"start": str(small_folder), "kind": "static"}})
        with pytest.raises(InputError, match="is no `static`") as caught:
            start_encoder(config, 600)
        assert caught.value.key == "encoder.kind"

    def test_its_vocabulary_is_that_of_the_corpus(self, folder, small_folder, tmp_path):
        config = parse({"encoder": {"start": str(folder)}})
        write_tokenizer(tmp_path, config, dict, 64)
        expected = load_tokenizer(small_folder).to_str()
        assert load_tokenizer(tmp_path).to_str() == expected
        assert (tmp_path / "vocab.txt").is_file()
