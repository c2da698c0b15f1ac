"""The weights of a checkpoint in whichever files they stand."""

import json
import os
import pickle
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_checkpoints import FAMILIES, random_model, write_plain

from pipelines.errors import InputError
from pipelines.models.checkpoint_files import read_checkpoint
from pipelines.models.folder import read_encoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("plain")
    return write_plain(home, FAMILIES["roberta"], random_model(FAMILIES["roberta"]))


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def split(folder, save=save_file, name="model.safetensors"):
    """Has the weights in two files with an index, as large models do."""
    weights = random_model(FAMILIES["roberta"]).state_dict()
    (folder / "model.safetensors").unlink()
    stem, _, ending = name.rpartition(".")
    names = {
        key: f"{stem}-{1 + number % 2:05}-of-00002.{ending}" for number, key in enumerate(weights)
    }
    for file in set(names.values()):
        save({key: weights[key] for key, place in names.items() if place == file}, folder / file)
    (folder / f"{name}.index.json").write_text(json.dumps({"weight_map": names}))


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_several_safetensors_are_one(folder, copy):
    split(copy)
    assert_equal(read_encoder(copy)[1], read_encoder(folder)[1])


def test_pickles_are_read_by_the_restricted_reader_and_that_is_said(folder, copy, caplog):
    weights = random_model(FAMILIES["roberta"]).state_dict()
    (copy / "model.safetensors").unlink()
    torch.save(weights, copy / "pytorch_model.bin")
    assert_equal(read_encoder(copy)[1], read_encoder(folder)[1])
    assert "torch.load(weights_only=True) reads pytorch_model.bin" in caplog.text


def test_several_pickles_are_one(folder, copy):
    split(copy, torch.save, "pytorch_model.bin")
    assert_equal(read_encoder(copy)[1], read_encoder(folder)[1])


def test_a_pickle_that_asks_for_code_is_refused(copy):
    class Asking:
        def __reduce__(self):
            return os.system, ("touch ran",)

    (copy / "model.safetensors").unlink()
    for save in (torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))):
        save({"weight": Asking()}, copy / "pytorch_model.bin")
        with pytest.raises(InputError, match=r"^encoder\.start: .*pytorch_model\.bin") as caught:
            read_encoder(copy)
        assert "\n" not in str(caught.value)
        # The library says how to have the code run.
        assert "weights_only" not in str(caught.value)
        assert "can still" not in str(caught.value)


def test_bfloat16_is_widened(folder, tmp_path):
    weights = random_model(FAMILIES["roberta"]).state_dict()
    mixed = {
        name: value.bfloat16() if value.ndim == 2 else value for name, value in weights.items()
    }
    for save, name in ((save_file, "model.safetensors"), (torch.save, "pytorch_model.bin")):
        home = tmp_path / name
        home.mkdir()
        save(mixed, home / name)
        assert_equal(read_checkpoint(home), {key: value.float() for key, value in mixed.items()})


@pytest.mark.parametrize("listed", ["model-00003-of-00002.safetensors", "../elsewhere.safetensors"])
def test_a_file_that_an_index_names_must_be_there_and_in_the_folder(copy, listed):
    split(copy)
    shutil.copy(copy / "model-00001-of-00002.safetensors", copy.parent / "elsewhere.safetensors")
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": listed}}))
    with pytest.raises(InputError, match=rf"^encoder\.start: .* has no {listed}, which model"):
        read_encoder(copy)


def test_two_encoders_in_one_file_are_refused(copy):
    weights = random_model(FAMILIES["roberta"]).state_dict()
    both = {
        f"{side}.{name}": value.clone()
        for side in ("one", "two")
        for name, value in weights.items()
    }
    save_file(both, copy / "model.safetensors")
    with pytest.raises(InputError, match=r"holds several encoders: one\., two\."):
        read_encoder(copy)
    save_file({f"any.{name}": value for name, value in weights.items()}, copy / "model.safetensors")
    assert len(read_encoder(copy)[1]) == len(weights) - 2
