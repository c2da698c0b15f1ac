"""Weights: drawn from the seed, kept in files, and refused where a name or a shape is wrong."""

import dataclasses
import multiprocessing
import os
import pwd
import shutil
import stat
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.models.bert.spec import BertSpec
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import (
    check_weights,
    load_weights,
    random_weights,
    save_weights,
    weight_shapes,
)

SPEC = BertSpec(vocabulary=50, layers=2, hidden=16, heads=2, intermediate=24, positions=32)


@given(
    layers=st.integers(1, 4),
    heads=st.integers(1, 4),
    pooling=st.sampled_from(["mean", "cls"]),
    normalise=st.booleans(),
    epsilon=st.floats(1e-12, 1e-5),
)
def test_a_spec_survives_json(layers, heads, pooling, normalise, epsilon):
    spec = BertSpec(
        vocabulary=7,
        layers=layers,
        hidden=8 * heads,
        heads=heads,
        intermediate=9,
        pooling=pooling,
        normalise=normalise,
        layer_norm_epsilon=epsilon,
    )
    assert EncoderSpec.from_json(spec.to_json()) == spec


def test_the_names_are_those_of_hugging_face():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=SPEC.vocabulary,
        num_hidden_layers=SPEC.layers,
        hidden_size=SPEC.hidden,
        num_attention_heads=SPEC.heads,
        intermediate_size=SPEC.intermediate,
        max_position_embeddings=SPEC.positions,
    )
    model = transformers.BertModel(config, add_pooling_layer=False)
    expected = {name: tuple(value.shape) for name, value in model.named_parameters()}
    assert weight_shapes(SPEC) == expected
    assert list(weight_shapes(SPEC)) == list(expected)


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_fresh_weights_follow_from_the_seed(seed):
    first, again, other = (random_weights(SPEC, number) for number in (seed, seed, seed + 1))
    check_weights(SPEC, first)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    matrix = "encoder.layer.1.output.dense.weight"
    assert not np.array_equal(first[matrix], other[matrix])


def test_fresh_weights_are_distributed_as_in_bert():
    weights = random_weights(dataclasses.replace(SPEC, vocabulary=5000), 3)
    words = weights["embeddings.word_embeddings.weight"]
    assert words[1:].std() == pytest.approx(0.02, rel=0.02)
    assert words[1:].mean() == pytest.approx(0.0, abs=2e-4)
    assert not words[SPEC.pad_token_id].any()
    assert (weights["encoder.layer.0.output.LayerNorm.weight"] == 1).all()
    assert not weights["encoder.layer.0.output.dense.bias"].any()


def test_weights_survive_a_file_whatever_their_memory_order(tmp_path):
    weights = random_weights(SPEC, 1)
    name = "encoder.layer.0.intermediate.dense.weight"
    turned = {**weights, name: np.asfortranarray(weights[name])}
    save_weights(tmp_path / "model.safetensors", turned)
    read = load_weights(tmp_path / "model.safetensors")
    assert set(read) == set(weights)
    assert all(np.array_equal(read[key], weights[key]) for key in weights)


@pytest.fixture
def usual_mask():
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_a_file_has_the_mode_of_any_file(tmp_path, usual_mask, mask, mode):
    os.umask(mask)
    path = tmp_path / "model.safetensors"
    for _ in range(2):
        save_weights(path, random_weights(SPEC, 1))
        assert stat.S_IMODE(path.stat().st_mode) == mode
    path.chmod(0o664)
    save_weights(path, random_weights(SPEC, 1))
    assert stat.S_IMODE(path.stat().st_mode) == 0o664, "as a file that is written to keeps it"


def read_as(user: int, path: Path) -> None:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    weights, expected = load_weights(path), random_weights(SPEC, 1)
    assert all(np.array_equal(weights[name], expected[name]) for name in expected)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_can_read_it(usual_mask):
    # Not below pytest's folders, which are the owner's alone.
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        save_weights(folder / "model.safetensors", random_weights(SPEC, 1))
        nobody = pwd.getpwnam("nobody").pw_uid
        reader = multiprocessing.get_context("fork").Process(
            target=read_as, args=(nobody, folder / "model.safetensors")
        )
        reader.start()
        reader.join(60)
        assert reader.exitcode == 0
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.pop("embeddings.LayerNorm.bias"), "missing"),
        (lambda weights: weights.update(extra=np.zeros(1, np.float32)), "extra is not one"),
        (
            lambda weights: weights.update({"embeddings.LayerNorm.bias": np.zeros(16)}),
            r"float64\[16\]",
        ),
        (
            lambda weights: weights.update({"embeddings.LayerNorm.bias": np.zeros(15, np.float32)}),
            r"float32\[15\]",
        ),
    ],
)
def test_wrong_weights_are_refused_by_name(change, message):
    weights = random_weights(SPEC, 1)
    change(weights)
    with pytest.raises(ValueError, match=message):
        check_weights(SPEC, weights)
