"""A config.json that its weights do not bear out is refused at once, whatever the family."""

import json
import time

import pytest
from tiny_checkpoints import FAMILIES, write_plain

from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.models.folder import read_encoder

NAN, INFINITE = float("nan"), float("inf")
KEYS = {
    "layers": ("num_hidden_layers", "n_layers", "n_layer"),
    "heads": ("num_attention_heads", "n_heads", "n_head"),
    "width": ("hidden_size", "dim", "n_embd"),
    "inner": ("intermediate_size", "hidden_dim"),
    "positions": ("max_position_embeddings", "n_positions"),
    "words": ("vocab_size",),
    "dropout": ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attn_pdrop"),
    "epsilon": ("layer_norm_eps", "rms_norm_eps", "layer_norm_epsilon", "norm_eps"),
}
IMPOSSIBLE = {
    "layers": (-1, 0, 3, 10**8, 1.5, "2", True),
    "heads": (0, -3, 5, 10**8, 2.5),
    "width": (0, -24, 48, 10**9, NAN),
    "inner": (0, -1, 41, 10**9),
    "positions": (0, -5),
    "words": (0, -1, 47, 10**9),
    "dropout": (-0.1, 1, 1.5, NAN),
    "epsilon": (NAN, INFINITE, 0, -1e-12, "x"),
}
BOUND = 3.0
"""Seconds of the processor; most take a hundredth of that."""


def config_of(folder):
    path = folder / "config.json"
    return path, json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_that_no_weights_have_are_refused(tmp_path, family):
    folder = write_plain(tmp_path / "start", FAMILIES[family])
    read_encoder(folder)
    path, config = config_of(folder)
    for part, values in IMPOSSIBLE.items():
        for key in (key for key in KEYS[part] if config.get(key) is not None):
            for value in values:
                storage.write_json(path, {**config, key: value})
                begun = time.process_time()
                with pytest.raises(InputError, match=r"^encoder\.start: "):
                    read_encoder(folder)
                assert time.process_time() - begun < BOUND, (key, value)


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "distilbert", "gpt2"])
@pytest.mark.parametrize("positions", [41, 10**9])
def test_more_positions_than_rows_are_refused(tmp_path, family, positions):
    folder = write_plain(tmp_path / "start", FAMILIES[family])
    path, config = config_of(folder)
    key = next(key for key in KEYS["positions"] if key in config)
    storage.write_json(path, {**config, key: positions})
    with pytest.raises(InputError, match=r"^encoder\.start: .*does not fit its config\.json"):
        read_encoder(folder)


def test_the_key_is_named(tmp_path):
    folder = write_plain(tmp_path / "start", FAMILIES["bert"])
    path, config = config_of(folder)
    for key, value, told in (
        ("num_hidden_layers", -1, "has `num_hidden_layers: -1` in config.json, but it must be at"),
        ("num_hidden_layers", 3, r"`num_hidden_layers: 3`\): the weight .*layer\.2\..* is missing"),
        ("num_hidden_layers", 10**8, "`num_hidden_layers: 100000000` in config.json, but it must"),
        (
            "num_attention_heads",
            5,
            "`num_attention_heads: 5` in config.json, but it must divide",
        ),
        ("layer_norm_eps", NAN, "`layer_norm_eps: nan` in config.json, but it must be a fi"),
    ):
        storage.write_json(path, {**config, key: value})
        with pytest.raises(InputError, match=told):
            read_encoder(folder)


@pytest.mark.parametrize("family", ["bert", "modernbert"])
@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_code_to_download_is_refused(tmp_path, family, key):
    folder = write_plain(tmp_path / "start", FAMILIES[family])
    path, config = config_of(folder)
    storage.write_json(path, {**config, key: "sdpa"})
    read_encoder(folder)
    for value in ("org/kernel", "org/kernel@main:function", {"": "sdpa", "text_config": "org/k"}):
        storage.write_json(path, {**config, key: value})
        with pytest.raises(InputError, match=rf"has `{key}: org/k.*downloads no code"):
            read_encoder(folder)
