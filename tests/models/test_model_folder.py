"""Model folders: written as sentence-transformers has them, and read or refused by name."""

import dataclasses
import json
import shutil
from typing import get_args

import numpy as np
import pytest
from tiny_checkpoints import edit

from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.models.folder import default_start, read_encoder, start_encoder, write_encoder
from pipelines.models.spec import Pooling
from pipelines.models.weights import load_weights, random_weights, save_weights
from pipelines.settings import Config
from pipelines.settings.load import parse


@pytest.fixture
def folder(small_folder, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(small_folder, tmp_path / "copy")


@pytest.mark.parametrize("pooling", get_args(Pooling))
@pytest.mark.parametrize("normalise", [True, False])
def test_round_trip(small_folder, tmp_path, pooling, normalise):
    spec, weights = read_encoder(small_folder)
    spec = dataclasses.replace(spec, pooling=pooling, normalise=normalise, max_length=48)
    write_encoder(tmp_path / "out", spec, weights, small_folder, "# Card\n")
    read_spec, read_weights = read_encoder(tmp_path / "out")
    assert read_spec == spec
    assert list(read_weights) == list(weights)
    assert all(np.array_equal(read_weights[name], weights[name]) for name in weights)
    assert (tmp_path / "out" / "README.md").read_text() == "# Card\n"


def test_the_older_key_names_are_written(small_folder):
    pooling = json.loads((small_folder / "1_Pooling/config.json").read_text())
    assert pooling["word_embedding_dimension"] == 64
    assert pooling["pooling_mode_mean_tokens"] is True
    modules = json.loads((small_folder / "modules.json").read_text())
    assert [module["type"] for module in modules] == [
        "sentence_transformers.models.Transformer",
        "sentence_transformers.models.Pooling",
    ]


def test_what_sentence_transformers_saves_is_read(small_folder, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    library.SentenceTransformer(str(small_folder), device="cpu").save(str(tmp_path / "saved"))
    spec, weights = read_encoder(tmp_path / "saved")
    expected_spec, expected = read_encoder(small_folder)
    assert spec == expected_spec
    assert all(np.array_equal(weights[name], expected[name]) for name in expected)


def test_a_plain_checkpoint_with_prefix_head_and_half_precision_is_read(folder):
    expected_spec, expected = read_encoder(folder)
    (folder / "modules.json").unlink()
    weights = {f"bert.{name}": value.astype(np.float16) for name, value in expected.items()}
    weights["cls.predictions.bias"] = np.zeros(3, np.float32)
    weights["bert.embeddings.position_ids"] = np.arange(512)
    save_weights(folder / "model.safetensors", weights)
    spec, read = read_encoder(folder)
    assert spec == dataclasses.replace(expected_spec, pooling="mean", normalise=True)
    assert list(read) == list(expected)
    assert all(value.dtype == np.float32 for value in read.values())
    assert all(np.allclose(read[name], expected[name], atol=1e-4) for name in expected)


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("config.json", {"hidden_act": "gelu_new"}, "gelu_new"),
        ("config.json", {"position_embedding_type": "relative_key"}, "relative_key"),
        ("config.json", {"is_decoder": True}, "is_decoder"),
        ("config.json", {"num_hidden_layers": 3}, "layer.2"),
        ("config.json", {"hidden_size": 128}, r"\b64\b"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "by mean and max"),
        ("1_Pooling/config.json", {"pooling_mode": "max"}, "pools by max"),
        ("1_Pooling/config.json", {"include_prompt": False}, "include_prompt"),
    ],
)
def test_other_models_are_refused(folder, name, changes, named):
    edit(folder / name, **changes)
    with pytest.raises(InputError, match=named) as caught:
        read_encoder(folder)
    assert caught.value.key == "encoder.start"
    assert "\n" not in str(caught.value)


def test_further_modules_are_refused(folder):
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": "2_LSTM", "type": "a.models.LSTM"})
    storage.write_json(folder / "modules.json", modules)
    with pytest.raises(InputError, match="Transformer, Pooling, LSTM"):
        read_encoder(folder)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(folder, missing):
    (folder / missing).unlink()
    with pytest.raises(InputError, match=missing):
        read_encoder(folder)


def test_a_failed_write_leaves_the_folder_as_it_was(folder, tmp_path):
    spec, weights = read_encoder(folder)
    before = load_weights(folder / "model.safetensors")
    with pytest.raises(InputError):
        write_encoder(folder, spec, weights, tmp_path / "nothing", "")
    after = load_weights(folder / "model.safetensors")
    assert all(np.array_equal(after[name], before[name]) for name in before)
    assert not list(folder.parent.glob(".*"))


class TestStart:
    def test_random_takes_the_shape_and_the_seed_of_the_settings(self):
        encoder = {"start": "random", "layers": 2, "hidden": 32, "heads": 2, "pooling": "cls"}
        config = parse({"encoder": encoder, "tokens": {"max_length": 40}})
        spec, weights = start_encoder(config, 300)
        assert (spec.vocabulary, spec.layers, spec.hidden, spec.heads) == (300, 2, 32, 2)
        assert (spec.intermediate, spec.pooling) == (128, "cls")
        assert (spec.max_length, spec.positions) == (40, 512)
        expected = random_weights(spec, config.training.seed)
        assert all(np.array_equal(weights[name], expected[name]) for name in expected)

    def test_default_is_the_packaged_model(self):
        spec, _ = start_encoder(Config(), 30522)
        assert (spec.layers, spec.hidden, spec.max_length) == (6, 384, 256)
        assert (spec.pooling, spec.normalise) == ("mean", True)

    def test_a_sentence_folder_keeps_its_head_and_a_plain_one_takes_the_settings(self, folder):
        encoder = {"start": str(folder), "pooling": "cls", "normalise": True}
        config = parse({"encoder": encoder})
        kept, _ = start_encoder(config, 600)
        assert (kept.pooling, kept.normalise) == ("mean", False)
        (folder / "modules.json").unlink()
        taken, _ = start_encoder(config, 600)
        assert (taken.pooling, taken.normalise) == ("cls", True)

    @pytest.mark.parametrize(
        ("tree", "vocabulary", "key"),
        [
            ({"encoder": {"start": "/no/such/folder"}}, 600, "encoder.start"),
            ({}, 30523, "tokens.vocabulary"),
            ({"tokens": {"vocabulary": "train"}}, 30522, "tokens.vocabulary"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, tree, vocabulary, key):
        with pytest.raises(InputError) as caught:
            start_encoder(parse(tree), vocabulary)
        assert caught.value.key == key

    def test_too_few_positions_are_refused(self, folder):
        spec, weights = read_encoder(folder)
        spec = dataclasses.replace(spec, positions=16, max_length=16)
        name = "embeddings.position_embeddings.weight"
        write_encoder(folder, spec, {**weights, name: weights[name][:16]}, default_start(), "")
        start = {"start": str(folder)}
        assert start_encoder(parse({"encoder": start}), 600)[0].max_length == 16
        cases = [
            ("tokens.max_length", {"encoder": start, "tokens": {"max_length": 17}}),
            ("encoder.max_length", {"encoder": start | {"max_length": 17}}),
        ]
        for key, tree in cases:
            with pytest.raises(InputError, match=f"^{key}: 17 is more .*. Set it to at most 16"):
                start_encoder(parse(tree), 600)
