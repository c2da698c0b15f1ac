"""Checkpoints of every family against `transformers` and sentence-transformers."""

import json
import shutil
from typing import get_args

import numpy as np
import pytest
from tiny_checkpoints import FAMILIES, TEXTS, write_plain, write_sentence_folder
from token_batches import torch_forward

from pipelines.catalog import BACKENDS
from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.models.architecture import architecture_of
from pipelines.models.bert.spec import relative_buckets
from pipelines.models.folder import default_start, read_encoder, start_encoder, write_encoder
from pipelines.models.inference.embedder import load_embedder
from pipelines.models.spec import Dense, EncoderSpec, Pooling
from pipelines.models.start import model_length
from pipelines.models.weights import check_weights
from pipelines.settings import TrainingSettings
from pipelines.settings.load import parse
from pipelines.tokens.start import folder_modules

transformers = pytest.importorskip("transformers")
sentence_transformers = pytest.importorskip("sentence_transformers")
torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folder of each family by its model type, made when it is asked for."""
    home, made = tmp_path_factory.mktemp("families"), {}

    def folder(name):
        if name not in made:
            made[name] = write_sentence_folder(home / name, FAMILIES[name], dense=name == "roberta")
        return made[name]

    return folder


def library(folder):
    return sentence_transformers.SentenceTransformer(str(folder), device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
class TestFamily:
    def test_embeddings_are_the_librarys(self, folders, name):
        folder = folders(name)
        spec, _ = read_encoder(folder)
        assert spec.kind == FAMILIES[name].kind
        expected = library(folder).encode(list(TEXTS))
        forms = architecture_of(spec).forms
        for backend in (backend for backend in BACKENDS if backend in forms):
            found = load_embedder(folder, backend=backend)(list(TEXTS))
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5, err_msg=backend)

    def test_gradients_are_the_librarys(self, folders, name, tmp_path):
        from pipelines.models.frameworks.torch import embed, prepare

        folder = folders(name)
        model = library(folder)
        features = model.preprocess(list(TEXTS))
        embeddings = model(dict(features))["sentence_embedding"]
        pull = torch.randn(embeddings.shape, generator=torch.Generator().manual_seed(1))
        (embeddings * pull).sum().backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(torch.zeros(()) if weight.grad is None else weight.grad)
        # Written and read as weights are, they come under canonical names.
        model.save(str(tmp_path / "gradients"), create_model_card=False)
        _, expected = read_encoder(tmp_path / "gradients")

        spec, weights = read_encoder(folder)
        leaves = {key: torch.tensor(value, requires_grad=True) for key, value in weights.items()}
        ids = features["input_ids"].numpy().astype(np.int32)
        lengths = features["attention_mask"].sum(1).numpy().astype(np.int32)
        (embed(prepare(spec, leaves), ids, lengths) * pull).sum().backward()
        assert expected.keys() == leaves.keys()
        largest = max(np.abs(gradient).max() for gradient in expected.values())
        for key, gradient in expected.items():
            found = leaves[key].grad.numpy()
            np.testing.assert_allclose(found, gradient, rtol=0, atol=1e-4 * largest, err_msg=key)

    def test_what_is_written_embeds_alike_there(self, folders, name, tmp_path):
        folder = folders(name)
        spec, weights = read_encoder(folder)
        changed = {key: value * np.float32(1.1) for key, value in weights.items()}
        write_encoder(tmp_path / "out", spec, changed, folder, "# Card\n")
        assert read_encoder(tmp_path / "out")[0] == spec
        (_, home), *_ = folder_modules(tmp_path / "out")
        place = tmp_path / "out" / home
        _, told = transformers.AutoModel.from_pretrained(place, output_loading_info=True)
        assert not told["missing_keys"]
        assert not told["unexpected_keys"]
        there = library(tmp_path / "out").encode(list(TEXTS))
        found = load_embedder(tmp_path / "out")(list(TEXTS))
        np.testing.assert_allclose(found, there, rtol=0, atol=1e-5)
        assert np.abs(found - load_embedder(folder)(list(TEXTS))).max() > 1e-3

    def test_modules_of_sharded_training_embed_alike(self, folders, name):
        from pipelines.models.frameworks.torch import Batch
        from pipelines.models.frameworks.torch_module import (
            Inputs,
            allocate,
            copy_weights,
            encoder_module,
        )

        spec, weights = read_encoder(folders(name))
        lengths = np.array([3, 11, 7, 16], np.int32)
        ids = np.random.default_rng(1).integers(4, spec.vocabulary, (4, 16), np.int32)
        tensors = {key: torch.tensor(value) for key, value in weights.items()}
        module = encoder_module(spec, TrainingSettings(precision="fp32"))
        allocate(module, torch.device("cpu"))
        copy_weights(module.weights, weights)
        assert sorted(module.weights) == sorted(weights)
        (found,) = module([Inputs(Batch.of(ids, lengths, torch.device("cpu")), None)])
        torch.testing.assert_close(found, torch_forward(spec, tensors, ids, lengths))


@pytest.mark.slow
@pytest.mark.parametrize("pooling", get_args(Pooling))
def test_pooling_is_sentence_transformers(tmp_path, pooling):
    folder = write_sentence_folder(tmp_path / pooling, FAMILIES["xlm-roberta"], pooling=pooling)
    assert read_encoder(folder)[0].pooling == pooling
    expected = library(folder).encode(list(TEXTS))
    for backend in BACKENDS:
        found = load_embedder(folder, backend=backend)(list(TEXTS))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5, err_msg=backend)


def test_dense_layers_are_sentence_transformers(folders):
    folder = folders("roberta")
    spec, weights = read_encoder(folder)
    assert (spec.hidden, spec.embedding_width) == (24, 12)
    assert spec.dense == (Dense(width=20), Dense(width=12, bias=False, activation="identity"))
    assert EncoderSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert {key: value.shape for key, value in weights.items() if key.startswith("dense.")} == {
        "dense.0.weight": (20, 24),
        "dense.0.bias": (20,),
        "dense.1.weight": (12, 20),
    }


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"use_residual": True}, "use_residual: True"),
        ({"activation_function": "torch.nn.modules.activation.GELU"}, "GELU"),
        ({"module_input_name": "token_embeddings"}, "token_embeddings"),
    ],
)
def test_other_dense_layers_are_refused(folders, tmp_path, changes, named):
    folder = shutil.copytree(folders("roberta"), tmp_path / "copy")
    path = folder / "2_Dense" / "config.json"
    storage.write_json(path, json.loads(path.read_text()) | changes)
    with pytest.raises(InputError, match=rf"^encoder\.start: .* has a dense layer .*{named}"):
        read_encoder(folder)


@pytest.mark.parametrize("name", ["roberta", "distilbert", "electra", "mpnet"])
def test_a_model_with_a_head_is_read_without_it(tmp_path, name):
    family = FAMILIES[name]
    config = transformers.AutoConfig.for_model(name, **family.config)
    model = transformers.AutoModelForMaskedLM.from_config(config)
    folder = write_plain(tmp_path / name, family, model)
    _, weights = read_encoder(folder)
    words = model.get_input_embeddings().weight.detach().numpy()
    np.testing.assert_array_equal(weights["embeddings.word_embeddings.weight"], words)


def test_positions_that_no_text_uses_are_left_out(folders):
    spec, weights = read_encoder(folders("xlm-roberta"))
    assert spec.positions == 38
    assert weights["embeddings.position_embeddings.weight"].shape == (38, 24)
    config = parse({"encoder": {"start": str(folders("xlm-roberta")), "max_length": 39}})
    with pytest.raises(InputError, match=r"^encoder\.max_length: 39 is more than the start's 38"):
        model_length(config)


def test_distances_are_in_the_librarys_buckets():
    model = transformers.models.mpnet.modeling_mpnet.MPNetEncoder
    places = torch.arange(300)
    expected = model.relative_position_bucket(places[None, :] - places[:, None], num_buckets=32)
    np.testing.assert_array_equal(relative_buckets(32, 300), expected.numpy())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_both_forms_of_attention_take_a_bias(folders, monkeypatch, precision):
    from pipelines.models.bert import torch as torch_attention
    from pipelines.models.frameworks.torch import embed, prepare

    spec, weights = read_encoder(folders("mpnet"))
    lengths = np.array([3, 11, 7, 16], np.int32)
    ids = np.random.default_rng(1).integers(4, spec.vocabulary, (4, 16), np.int32)
    found = []
    for longest in (0, 16):
        monkeypatch.setattr(torch_attention, "LONGEST_EXPLICIT", longest)
        leaves = {key: torch.tensor(value, requires_grad=True) for key, value in weights.items()}
        embed(prepare(spec, leaves, precision), ids, lengths)[:, ::2].sum().backward()
        found.append(leaves["encoder.relative_attention_bias.weight"].grad)
    assert found[1].abs().max() > 1e-3
    share = 1e-5 if precision == "fp32" else 0.1
    torch.testing.assert_close(*found, rtol=0, atol=share * float(found[1].abs().max()))


@pytest.mark.parametrize("kind", ["roberta", "mpnet"])
def test_a_random_start_needs_what_its_vocabulary_does_not_have(kind):
    with pytest.raises(InputError, match=rf"^encoder\.kind: `{kind}` starts from a checkpoint"):
        parse({"encoder": {"start": "random", "kind": kind}})


@pytest.mark.parametrize("kind", ["distilbert", "electra"])
def test_others_start_from_nothing(kind, tmp_path):
    encoder = {"start": "random", "kind": kind, "hidden": 16, "heads": 2, "layers": 1}
    spec, weights = start_encoder(parse({"encoder": encoder}), 50)
    check_weights(spec, weights)
    write_encoder(tmp_path / "out", spec, weights, default_start(), "")
    assert read_encoder(tmp_path / "out")[0] == spec


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta", "camembert", "mpnet"])
def test_texts_may_spell_the_padding_token_out(folders, name, tmp_path):
    folder, texts = (
        folders(name),
        ["one <pad> two three", "<pad> <pad> ten", "the model <pad>", "a"],
    )
    spec, weights = read_encoder(folder)
    expected = library(folder).encode(texts)
    forms = architecture_of(spec).forms
    for backend in (backend for backend in BACKENDS if backend in forms):
        found = load_embedder(folder, backend=backend)(texts)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5, err_msg=backend)
    # Training leaves the place of the token at zero.
    write_encoder(tmp_path / "written", spec, weights, folder, "")
    expected = library(tmp_path / "written").encode(texts)
    np.testing.assert_allclose(load_embedder(tmp_path / "written")(texts), expected, atol=1e-5)
    if name != "bert":
        # What stands behind the token moved up by one.
        assert not np.allclose(*library(folder).encode(["one <pad> two", "one <unk> two"]))
