"""The modules of sentence-transformers around a transformer, and checks of its config.json.

Building a model of 1e8 layers costs minutes and gigabytes, and one of -1 layers trains without an
error. So sizes are compared with the names and shapes of stored weights before a model is built.
All refusals are an InputError with the key ``encoder.start``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, get_args

import numpy as np

from pipelines.errors import InputError
from pipelines.files import records, storage
from pipelines.models.adaptation import layer_of
from pipelines.models.architecture import NORMALISING, Modules
from pipelines.models.checkpoint_files import read_checkpoint
from pipelines.models.spec import Activation, Dense, EncoderSpec, Pooling
from pipelines.models.weights import (
    WEIGHT_FILE,
    Weights,
    check_weights,
    dense_name,
    save_weights,
)
from pipelines.tokens.model_files import (
    ADAPTER_FILE,
    ATTENTIONS,
    DENSE_KEYS,
    LENGTH_FILE,
    NORMALIZE_KEYS,
    POOLING_KEYS,
    TRANSFORMER,
    check_keys,
    read_known,
    read_length_file,
    read_options,
    tokenizer_arguments,
)

CONFIG_FILE = "config.json"
POOLING, DENSE = "Pooling", "Dense"

KEY = "encoder.start"
_POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
_POOLING_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""The library's older keys, which every release reads, and the newer names of their modes."""
_ACTIVATIONS: Mapping[str, Activation] = {
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.Tanh": "tanh",
    "torch.nn.Identity": "identity",
}


OTHER_MODEL = "Name a transformer with mean, cls, lasttoken or weightedmean pooling"
WHOLE_COPY = "Copy the whole folder of the model again, or name another model"


def refuse(folder: Path, problem: str, remedy: str = OTHER_MODEL) -> NoReturn:
    """Raise a :func:`refusal`."""
    raise refusal(folder, problem, remedy)


def refusal(folder: Path, problem: str, remedy: str = OTHER_MODEL) -> InputError:
    """Return the error of a transformer that cannot be the start."""
    return InputError(KEY, f"{folder} {problem}", remedy)


def read_head(folder: Path, modules: Modules) -> dict[str, Any]:
    """Return the modules after a transformer as fields of a spec; none for a plain checkpoint."""
    if not modules:
        return {}
    kinds = [kind for kind, _ in modules]
    layers = kinds.count(DENSE)
    normalise = kinds[-1] == NORMALISING
    expected = [TRANSFORMER, POOLING, *[DENSE] * layers, *[NORMALISING] * normalise]
    if kinds != expected:
        refuse(folder, f"has the modules {', '.join(kinds)}")
    if normalise:
        read_known(folder / modules[-1][1] / CONFIG_FILE, NORMALIZE_KEYS)
    return {
        "pooling": _pooling(folder, folder / modules[1][1]),
        "dense": read_dense(folder, modules),
        "normalise": normalise,
    }


def read_dense(folder: Path, modules: Modules) -> tuple[Dense, ...]:
    """Return the dense layers of a folder, in their order."""
    return tuple(_dense(folder, home) for home in _dense_homes(folder, modules))


def transformer_home(folder: Path, modules: Modules) -> Path:
    """Return the folder of the transformer's files; refuse an adapter beside the weights."""
    home = folder / modules[0][1] if modules else folder
    if (home / ADAPTER_FILE).is_file():
        raise InputError(
            KEY,
            f"{home / ADAPTER_FILE} changes the weights beside it",
            "Merge the adapter into its model with peft (merge_and_unload)",
        )
    return home


def whole_weights(folder: Path, modules: Modules, spec: EncoderSpec, encoder: Weights) -> Weights:
    """Return the weights of an encoder and its dense layers, checked against the spec."""
    weights = dict(encoder)
    for number, home in enumerate(_dense_homes(folder, modules)):
        found = read_checkpoint(home)
        if found is None:
            refuse(folder, f"has no {WEIGHT_FILE} in {home.name}", WHOLE_COPY)
        for name, value in found.items():
            part = name.removeprefix("linear.")
            weights[dense_name(number, part)] = np.ascontiguousarray(value, dtype=np.float32)
    try:
        check_weights(spec, weights)
    except ValueError as error:
        refuse(folder, f"does not fit its {CONFIG_FILE}: {error}", WHOLE_COPY)
    return weights


def write_head(
    folder: Path, spec: EncoderSpec, pooling: Pooling, weights: Mapping[str, np.ndarray]
) -> list[tuple[str, str]]:
    """Write the modules after a transformer into its root; return class and path of all."""
    storage.write_json(
        folder / LENGTH_FILE, {"max_seq_length": spec.max_length, "do_lower_case": False}
    )
    modules = [(TRANSFORMER, ""), (POOLING, f"1_{POOLING}")]
    storage.write_json(
        folder / modules[1][1] / CONFIG_FILE,
        {
            "word_embedding_dimension": spec.hidden,
            **{key: mode == pooling for key, mode in _POOLING_KEYS.items()},
            "include_prompt": True,
        },
    )
    return modules + write_dense(folder, spec, weights, len(modules))


def write_dense(
    folder: Path, spec: EncoderSpec, weights: Mapping[str, np.ndarray], before: int
) -> list[tuple[str, str]]:
    """Write the dense layers after ``before`` modules; return class and path of each."""
    modules, width = [], spec.hidden
    for number, layer in enumerate(spec.dense):
        modules.append((DENSE, f"{before + number}_{DENSE}"))
        _write_dense(folder / modules[-1][1], layer, width, number, weights)
        width = layer.width
    return modules


def stored_length(home: Path, most: int) -> int:
    """Return the length in the files beside a transformer, at most ``most`` tokens."""
    options = read_options(home, KEY, of_transformer=True)
    lengths = (
        tokenizer_arguments(home).get("model_max_length"),
        read_length_file(home).get("max_seq_length"),
        options.get("model_max_length"),
        options.get("max_len"),
    )
    return next((int(min(length, most)) for length in lengths if length), most)


def _pooling(folder: Path, home: Path) -> Pooling:
    path = home / CONFIG_FILE
    config = records.read_object(path)
    if config.get("include_prompt", True) is False:
        refuse(folder, "leaves prompts out of its pooling (`include_prompt: false`)")
    check_keys(path, config, POOLING_KEYS)
    chosen = [
        _POOLING_KEYS.get(key, key)
        for key, value in config.items()
        if key.startswith("pooling_mode_") and value
    ]
    # Newer releases write `pooling_mode`, older ones a key for each mode.
    named = config.get("pooling_mode", chosen)
    modes = [named] if isinstance(named, str) else list(named)
    found = next((mode for mode in _POOLINGS if modes == [mode]), None)
    if found is None:
        refuse(folder, f"pools by {' and '.join(modes) or 'nothing'}")
    return found


def _dense_homes(folder: Path, modules: Modules) -> Iterator[Path]:
    return (folder / path for kind, path in modules if kind == DENSE)


def _dense(folder: Path, home: Path) -> Dense:
    path = home / CONFIG_FILE
    config = records.read_object(path)
    activation = config.get("activation_function", "torch.nn.Tanh")
    unknown = {
        "activation_function": activation if activation not in _ACTIVATIONS else None,
        "use_residual": config.get("use_residual"),
        "module_input_name": config.get("module_input_name", "sentence_embedding")
        != "sentence_embedding",
    }
    for key, value in unknown.items():
        if value:
            refuse(folder, f"has a dense layer with `{key}: {config[key]}`")
    check_keys(path, config, DENSE_KEYS)
    return Dense(
        width=config["out_features"],
        bias=config.get("bias", True),
        activation=_ACTIVATIONS[activation],
    )


def _write_dense(
    home: Path, layer: Dense, width: int, number: int, weights: Mapping[str, np.ndarray]
) -> None:
    # The first of its names is the one that the library writes.
    names = {name: path for path, name in reversed(list(_ACTIVATIONS.items()))}
    storage.write_json(
        home / CONFIG_FILE,
        {
            "in_features": width,
            "out_features": layer.width,
            "bias": layer.bias,
            "activation_function": names[layer.activation],
        },
    )
    parts = ("weight", "bias") if layer.bias else ("weight",)
    save_weights(
        home / WEIGHT_FILE,
        {f"linear.{part}": weights[dense_name(number, part)] for part in parts},
    )


_IMPLEMENTATIONS = {
    "attn_implementation": ATTENTIONS,
    "experts_implementation": ("eager", "grouped_mm", "batched_mm"),
}
"""Known implementations in config.json: other names are of code to download."""
_EPSILON = re.compile(r"(?:^|_)(?:eps|epsilon)$")
_SHARE = re.compile(r"(?:^|_)(?:dropout(?:_prob)?|pdrop)$")
_COUNT = re.compile(r"(?:^|_)(?:layers?|heads?|groups?|blocks?|experts?)(?:_num)?$")
_MOST = 16_384
"""The most layers, heads or groups of any model; more indicate a damaged file."""
_POSITIONS = re.compile(r"(?:^|[._])(?:position_embeddings?|embed_positions|wpe)\.weight$")


def check_implementations(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse the names of implementations to download."""
    for key, value in _entries(config):
        # Also by the library's private names, `_attn_implementation` and with `_internal`.
        known = _IMPLEMENTATIONS.get(key.lstrip("_").removesuffix("_internal"), ())
        names = value.values() if isinstance(value, Mapping) else [value]
        for name in names if known else ():
            if name is not None and name not in known:
                refuse(folder, f"has `{key}: {name}`, and sentence-pipelines downloads no code")


def check_size(folder: Path, key: str, value: Any, least: int = 1) -> None:
    """Refuse a size that is too small; raise a TypeError if it is no whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{key} in {CONFIG_FILE} is {value!r}, no whole number")
    if value < least:
        _refuse(folder, key, value, f"be at least {least}")


def check_heads(folder: Path, key: str, heads: int, width: int) -> None:
    """Refuse heads that do not share a width evenly."""
    check_size(folder, key, heads)
    if width % heads:
        _refuse(folder, key, heads, f"divide {width}")


def check_layers(folder: Path, key: str, layers: Any, names: Iterable[str]) -> None:
    """Refuse a number of layers below 1, or above the layers with weights.

    The key is config.json's. Names of weights without any layer are of shared layers.
    """
    check_size(folder, key, layers)
    stored = {number: name for name in names if (number := layer_of(name)) is not None}
    if not stored or layers <= max(stored) + 1:
        return
    last = max(stored)
    missing = stored[last].replace(f".{last}.", f".{last + 1}.", 1)
    problem = f"does not fit its {CONFIG_FILE} (`{key}: {layers}`): the weight {missing} is missing"
    refuse(folder, problem, WHOLE_COPY)


def check_numbers(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse numbers beyond those of any model."""
    for key, value in _entries(config):
        if isinstance(value, float) and not math.isfinite(value):
            _refuse(folder, key, value, "be a finite number")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if _EPSILON.search(key) and value is not None and not (is_number and 0 < value < 1):
            _refuse(folder, key, value, "be between 0 and 1")
        if _SHARE.search(key) and is_number and not 0 <= value < 1:
            _refuse(folder, key, value, "be at least 0 and less than 1")
        if is_number and _COUNT.search(key) and abs(value) > _MOST:
            _refuse(folder, key, value, f"be at most {_MOST}")


def check_positions(folder: Path, positions: int | None, shapes: Mapping[str, Any]) -> None:
    """Refuse more positions than the weights' position table, if there is one, has rows."""
    rows = [shape[0] for name, shape in shapes.items() if _POSITIONS.search(name)]
    if positions and rows and positions > max(rows):
        difference = f"it names {positions} positions, and the weights have {max(rows)}"
        refuse(folder, f"does not fit its {CONFIG_FILE}: {difference}", WHOLE_COPY)


def _entries(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of a configuration, and of those inside it."""
    for key, value in config.items():
        yield key, value
        if isinstance(value, Mapping):
            yield from _entries(value)


def _refuse(folder: Path, key: str, value: Any, limit: str) -> NoReturn:
    """Refuse a value of config.json; the limit follows "must"."""
    refuse(folder, f"has `{key}: {value}` in {CONFIG_FILE}, but it must {limit}", WHOLE_COPY)
