"""Dropout that nobody sets is what a checkpoint was made to be trained with."""

import json
import shutil

import numpy as np
import pytest
import torch
from tiny_checkpoints import FAMILIES, write_plain

from pipelines.models.folder import default_start, read_encoder, start_encoder, write_encoder
from pipelines.models.frameworks.torch import forward
from pipelines.models.spec import DropoutRates
from pipelines.settings.load import parse

LENGTHS = np.array([3, 11, 7, 16], np.int32)
IDS = np.random.default_rng(1).integers(4, 48, (4, 16), np.int32)
KEYS = {
    "xlm-roberta": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    "distilbert": ("dropout", "attention_dropout"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("dropout")
    return {name: write_plain(home / name, FAMILIES[name]) for name in KEYS}


def with_rates(folder, home, name, hidden, attention):
    copy = shutil.copytree(folder, home / "copy")
    config = json.loads((copy / "config.json").read_text())
    rates = dict(zip(KEYS[name], (hidden, attention), strict=True))
    (copy / "config.json").write_text(json.dumps(config | rates))
    return copy


def embeddings(folder, dropout, seed=(1, 2)):
    spec, weights = read_encoder(folder)
    tensors = {key: torch.tensor(value) for key, value in weights.items()}
    return forward(spec, tensors, IDS, LENGTHS, dropout=dropout, seed=seed).numpy()


@pytest.mark.parametrize("name", ["xlm-roberta", "distilbert"])
def test_it_is_read_and_written_back(folders, tmp_path, name):
    folder = with_rates(folders[name], tmp_path, name, 0.2, 0.3)
    spec, weights = read_encoder(folder)
    assert spec.own_dropout == DropoutRates(0.2, 0.3, own=True)
    write_encoder(tmp_path / "out", spec, weights, folder, "")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert [config[key] for key in KEYS[name]] == [0.2, 0.3]


def test_a_config_that_says_nothing_means_the_usual(folders):
    spec, _ = read_encoder(folders["xlm-roberta"])
    assert spec.own_dropout == DropoutRates(0.1, 0.1, own=True)
    assert read_encoder(default_start())[0].own_dropout == DropoutRates(0.1, 0.1, own=True)


def test_a_random_start_has_none():
    spec, _ = start_encoder(parse({"encoder": {"start": "random"}}), 50)
    assert spec.own_dropout is None


def test_unset_is_its_own_and_told_is_what_is_told(folders, tmp_path):
    folder = with_rates(folders["xlm-roberta"], tmp_path, "xlm-roberta", 0.2, 0.2)
    quiet, own, told = (embeddings(folder, share) for share in (0.0, None, 0.2))
    np.testing.assert_array_equal(own, told)
    assert np.abs(own - quiet).max() > 1e-3
    np.testing.assert_array_equal(quiet, embeddings(folder, 0.0, seed=None))
    with pytest.raises(ValueError, match="seed"):
        embeddings(folder, None, seed=None)


@pytest.mark.parametrize(("hidden", "attention"), [(0.2, 0.0), (0.0, 0.2)])
def test_hidden_states_and_attention_have_a_rate_of_their_own(folders, tmp_path, hidden, attention):
    folder = with_rates(folders["xlm-roberta"], tmp_path, "xlm-roberta", hidden, attention)
    found = embeddings(folder, None)
    for share in (0.0, 0.2):
        assert np.abs(found - embeddings(folder, share)).max() > 1e-3


@pytest.mark.slow
def test_tensorflow_has_the_same_rates(folders, tmp_path):
    tf = pytest.importorskip("tensorflow")
    from pipelines.models.frameworks.tensorflow import forward as tensorflow_forward

    folder = with_rates(folders["xlm-roberta"], tmp_path, "xlm-roberta", 0.0, 0.2)
    spec, weights = read_encoder(folder)
    tensors = {key: tf.constant(value) for key, value in weights.items()}

    def run(dropout):
        seed = tf.constant([1, 2])
        return tensorflow_forward(spec, tensors, IDS, LENGTHS, dropout=dropout, seed=seed).numpy()

    own = run(None)
    for share in (0.0, 0.2):
        assert np.abs(own - run(share)).max() > 1e-3
