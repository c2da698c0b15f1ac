"""Model folders held against the rules by which Text Embeddings Inference 1.9.3 reads a folder.

The server is no package of PyPI or npm, so these rules are written down from its source: the files
that it opens, the keys that its parser asks for, and what it does without them. Where the server
would go on with a warning and compute something else, the rule here says `silent`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from tiny_checkpoints import FAMILIES, write_plain
from tokenizers import Tokenizer

from pipelines.models.folder import read_encoder, write_encoder
from pipelines.models.lsa.modules import with_terms
from pipelines.models.spec import Dense
from pipelines.models.static.architecture import StaticSpec
from pipelines.models.weights import dense_name, random_weights
from pipelines.tokens.start import Prompts

MODULE_TYPES = {
    f"sentence_transformers.models.{kind}"
    for kind in ("Transformer", "Pooling", "Dense", "Normalize")
}
ACTIVATIONS = ("torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity")
HIDDEN_ACTIVATIONS = (*("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swiglu", "tanh"),)
POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
}
_LAYERS = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
_SHAPE = (*_LAYERS, "intermediate_size", "max_position_embeddings")
_BERT = (
    *(*_SHAPE, "hidden_act", "hidden_dropout_prob", "type_vocab_size", "initializer_range"),
    *("layer_norm_eps", "pad_token_id"),
)
_DECODER = (*_SHAPE, "num_key_value_heads", "rms_norm_eps")
NEEDED = {
    "bert": _BERT,
    "camembert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "distilbert": (
        *("vocab_size", "dim", "n_layers", "n_heads", "hidden_dim", "activation"),
        *("max_position_embeddings", "pad_token_id"),
    ),
    "mpnet": (
        *(*_SHAPE, "hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob"),
        *("initializer_range", "layer_norm_eps", "relative_attention_num_buckets"),
    ),
    "modernbert": (
        *(*_SHAPE, "hidden_activation", "initializer_range", "initializer_cutoff_factor"),
        *("norm_eps", "norm_bias", "pad_token_id", "eos_token_id", "bos_token_id"),
        *("cls_token_id", "sep_token_id", "global_rope_theta", "attention_bias"),
        *("attention_dropout", "global_attn_every_n_layers", "local_attention"),
        *("local_rope_theta", "classifier_activation"),
    ),
    "qwen3": (*_DECODER, "attention_bias", "hidden_act", "use_sliding_window", "eos_token_id"),
    "llama": (*_DECODER, "hidden_act", "initializer_range"),
    "gemma3_text": (
        *(*_DECODER, "attention_bias", "pad_token_id", "hidden_activation"),
        *("query_pre_attn_scalar", "rope_local_base_freq", "_sliding_window_pattern"),
        "use_bidirectional_attention",
    ),
}
"""Keys of config.json without which the server has no model, by type. It needs a GPU for llama."""


class RefusedError(Exception):
    """The server does not start."""


@dataclass(frozen=True)
class Served:
    """What the server computes of a folder."""

    pooling: str
    dense: tuple[str, ...]
    length: int
    prompts: dict[str, str]


def served(folder: Path) -> Served:
    """Read a folder by the server's rules."""
    config = loaded(folder / "config.json")
    if not isinstance(config.get("architectures"), list) or "model_type" not in config:
        raise RefusedError("Failed to parse `config.json`")
    if any(name.endswith("Classification") for name in config["architectures"]):
        raise AssertionError("silent: the server takes it for a classifier")
    pooling = pooling_of(folder, config)
    try:
        Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:
        raise RefusedError("tokenizer.json not found") from error
    if not isinstance(config.get("max_position_embeddings"), int):
        raise RefusedError("`max_position_embeddings` should be defined")
    length = loaded(folder / "sentence_bert_config.json")["max_seq_length"]
    assert type(length) is int
    prompts = loaded(folder / "config_sentence_transformers.json")["prompts"]
    assert all(isinstance(text, str) for text in prompts.values())
    check_model(folder, config)
    return Served(pooling, dense_of(folder), length, prompts)


def loaded(path: Path) -> dict:
    if not path.is_file():
        raise RefusedError(f"`{path.name}` not found")
    return json.loads(path.read_text())


def pooling_of(folder: Path, config: dict) -> str:
    path = folder / "1_Pooling" / "config.json"
    if not path.is_file():
        assert "bert" not in config["model_type"], "silent: the server takes the first token"
        raise RefusedError("The `--pooling` arg is not set")
    modes = json.loads(path.read_text())
    assert {"pooling_mode_cls_token", "pooling_mode_mean_tokens"} <= modes.keys()
    named = [name for key, name in POOLINGS.items() if modes.get(key)]
    if not named:
        raise RefusedError("Pooling config is not supported")
    others = [key for key, on in modes.items() if key.startswith("pooling_mode") and on]
    assert len(others) == 1, "silent: the server takes the first of several"
    return named[0]


def check_model(folder: Path, config: dict) -> None:
    needed = NEEDED.get(config["model_type"])
    if needed is None or any(config.get(key) is None for key in needed):
        raise RefusedError("Model is not supported")
    for key in ("hidden_act", "hidden_activation", "activation"):
        if config.get(key, "gelu") not in HIDDEN_ACTIVATIONS:
            raise RefusedError("Model is not supported")
    with safe_open(str(folder / "model.safetensors"), framework="numpy") as weights:
        assert weights.keys()


def dense_of(folder: Path) -> tuple[str, ...]:
    modules = json.loads((folder / "modules.json").read_text())
    kinds = [module["type"] for module in modules]
    # With one unknown name, the server leaves all dense layers out and only warns.
    assert set(kinds) <= MODULE_TYPES, "silent: the server leaves modules out"
    assert all(type(module["idx"]) is int and module["name"] for module in modules)
    order = [kind.rpartition(".")[2] for kind in kinds]
    dense = [module["path"] for module in modules if module["type"].endswith("Dense")]
    expected = ["Transformer", "Pooling", *["Dense"] * len(dense)]
    assert order in (expected, [*expected, "Normalize"]), "silent: it has this order only"
    for path in dense:
        layer = json.loads((folder / path / "config.json").read_text())
        assert type(layer["bias"]) is bool
        assert layer["activation_function"] in ACTIVATIONS
        assert layer.get("module_output_name") is None
        assert (folder / path / "model.safetensors").is_file()
    return tuple(dense)


def rewritten(start: Path, folder: Path, **changes: object) -> tuple:
    """Write the encoder of a checkpoint as training does; return its spec."""
    spec, weights = read_encoder(start)
    spec = replace(spec, **changes)
    numbers = np.random.default_rng(1)
    width = spec.hidden
    for number, layer in enumerate(spec.dense):
        weights[dense_name(number, "weight")] = numbers.normal(size=(layer.width, width))
        weights[dense_name(number, "bias")] = numbers.normal(size=layer.width)
        width = layer.width
    weights = {name: np.asarray(value, np.float32) for name, value in weights.items()}
    write_encoder(folder, spec, weights, start, "")
    return spec, weights


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_family_is_served_as_it_is_or_refused(name, tmp_path):
    pooling = "lasttoken" if name in ("qwen3", "llama") else "mean"
    family = FAMILIES[name]
    # Published checkpoints name it, and the server asks for it.
    named = replace(family, config={**family.config, "eos_token_id": 2})
    start = write_plain(tmp_path / "start", named)
    spec, _ = rewritten(start, tmp_path / "model", pooling=pooling)
    if name in ("electra", "gpt2"):
        with pytest.raises(RefusedError, match=r"not supported|max_position"):
            served(tmp_path / "model")
        return
    found = served(tmp_path / "model")
    assert (found.pooling, found.dense, found.length) == (pooling, (), spec.max_length)


def test_dense_layers_and_prompts_are_served(plain, tmp_path):
    prompts = Prompts.from_json({"prompts": {"query": "query: ", "passage": "passage: "}})
    layers = (Dense(width=20), Dense(width=12, activation="identity"))
    rewritten(plain("bert"), tmp_path / "model", dense=layers, prompts=prompts, pooling="cls")
    found = served(tmp_path / "model")
    assert (found.pooling, found.dense) == ("cls", ("2_Dense", "3_Dense"))
    assert found.prompts["query"] == "query: "
    assert found.prompts["document"] == "passage: "


def test_another_pooling_is_refused(plain, tmp_path):
    spec, _ = rewritten(plain("llama"), tmp_path / "model", pooling="weightedmean")
    assert read_encoder(tmp_path / "model")[0] == spec
    with pytest.raises(RefusedError, match=r"config\.json. not found"):
        served(tmp_path / "model")


@pytest.mark.parametrize("name", ["bert", "xlm-roberta", "modernbert", "qwen3"])
def test_lexical_features_are_refused_and_not_left_out(name, plain, tmp_path):
    spec, weights = read_encoder(plain(name))
    vectors = np.ones((spec.vocabulary, 4), np.float32)
    write_encoder(tmp_path / "model", *with_terms(spec, weights, vectors), plain(name), "")
    with pytest.raises(RefusedError, match=r"config\.json. not found"):
        served(tmp_path / "model")


def test_static_embeddings_are_refused(small_folder, tmp_path):
    spec = StaticSpec(vocabulary=700, hidden=8)
    write_encoder(tmp_path / "model", spec, random_weights(spec, 1), small_folder, "")
    with pytest.raises(RefusedError, match=r"config\.json. not found"):
        served(tmp_path / "model")
