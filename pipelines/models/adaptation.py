"""Frozen weights and LoRA: the split of an encoder's weights, their join, and LoRA's folder.

An encoder's weights are arrays by name, and its forms are pure functions of them. So training has
two dicts: trained and frozen. :func:`effective` joins them in any framework; gradients pass through
it to the trained ones. `peft`, transformers and sentence-transformers read the base model's name in
an adapter's folder, load that model, and apply the adapter.

Source of LoRA: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022,
arXiv:2106.09685. All matrices of the layers are the default, as in Dettmers et al., "QLoRA:
Efficient Finetuning of Quantized LLMs", NeurIPS 2023, arXiv:2305.14314.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.files.copies import local_folder
from pipelines.files.locations import Location
from pipelines.models.weights import save_weights
from pipelines.settings import EncoderSettings
from pipelines.tokens.start import MODULES_FILE, folder_modules

_LAYER = re.compile(r"(?:^|\.)(?:layers?|h|block)\.(\d+)\.")
"""The number of a weight's layer, in the names of the families of encoders."""
_EMBEDDING = re.compile(r"(?:^|\.)(?:\w*embed\w*|wte|wpe)\.")
_MATRIX = ".weight"
_DENSE = "dense."
"""The prefix of the dense layers after pooling."""
DOWN, UP = ".lora_A.weight", ".lora_B.weight"
"""The factors of a target in place of its ``.weight``, in `peft`'s names: the first maps a layer's
input to few numbers, the second maps these to its output."""


OBJECTIVE = "objective."
"""The prefix of an objective's weights: trained beside the encoder's, and no part of it."""


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """Frozen weights of an encoder, fp32 by canonical name, and the factor of LoRA's product."""

    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    scale: float = 1.0


NOTHING = Frozen()
"""Of an encoder all of whose weights are trained."""


def split(
    encoder: EncoderSettings, weights: Mapping[str, np.ndarray], seed: int
) -> tuple[dict[str, np.ndarray], Frozen]:
    """Return the trained and the frozen part of an encoder; :func:`effective` is the inverse.

    The weights are all of the encoder's, in canonical order. LoRA's first factors follow from the
    seed. The second are zeros, so the encoder starts unchanged.

    Raises:
        InputError: The encoder has fewer layers, there is no such target, or nothing is trained.
    """
    frozen, fresh = _frozen_names(encoder, weights), fresh_names(encoder, weights)
    lora = encoder.lora
    if not lora.rank:
        trained = {name: value for name, value in weights.items() if name not in frozen}
        if not trained:
            raise InputError("encoder.freeze", "nothing is left to train", "Freeze fewer parts")
        return trained, Frozen(weights={name: weights[name] for name in weights if name in frozen})
    factors = _factors(_targets(encoder, weights, frozen), lora.rank, seed)
    # A layer that no checkpoint has is trained whole.
    trained = factors | {name: weights[name] for name in weights if name in fresh}
    kept = {name: value for name, value in weights.items() if name not in fresh}
    return trained, Frozen(weights=kept, scale=lora.alpha / lora.rank)


def effective(
    trained: Mapping[str, Any], frozen: Mapping[str, Any], scale: float
) -> dict[str, Any]:
    """Return the weights of the encoder, by canonical name, without those of an objective.

    Both mappings hold arrays, or tensors of one framework. For the scale see :class:`Frozen`.
    """
    weights = {name: value for name, value in trained.items() if _is_whole(name)}
    for name, value in frozen.items():
        module = name.removesuffix(_MATRIX)
        down = trained.get(module + DOWN)
        if down is None:
            weights[name] = value
        else:
            weights[name] = value + scale * (trained[module + UP] @ down)
    return weights


def changed(
    trained: Mapping[str, np.ndarray], frozen: Mapping[str, np.ndarray], scale: float
) -> dict[str, np.ndarray]:
    """Return the changed weights of the encoder; see :func:`effective`."""
    weights = effective(trained, frozen, scale)
    # An unadapted weight is the same object in both, however large it is.
    return {name: value for name, value in weights.items() if value is not frozen.get(name)}


def without_objective(trained: Mapping[str, Any]) -> dict[str, Any]:
    """Return the trained weights of the encoder itself."""
    return {name: value for name, value in trained.items() if not name.startswith(OBJECTIVE)}


def of_objective(trained: Mapping[str, Any]) -> dict[str, Any]:
    """Return the weights of the objective, by their names without :data:`OBJECTIVE`."""
    return {
        name.removeprefix(OBJECTIVE): value
        for name, value in trained.items()
        if name.startswith(OBJECTIVE)
    }


def fresh_names(encoder: EncoderSettings, names: Iterable[str]) -> set[str]:
    """Return the names of the layer of ``encoder.output_width``: the last dense one."""
    if encoder.output_width is None:
        return set()
    dense = [name for name in names if name.startswith(_DENSE)]
    last = max(int(name.split(".")[1]) for name in dense)
    return {name for name in dense if name.startswith(f"{_DENSE}{last}.")}


def factors_of(trained: Mapping[str, Any]) -> dict[str, Any]:
    """Return LoRA's factors among the trained weights."""
    return {name: value for name, value in trained.items() if name.endswith((DOWN, UP))}


def layer_of(name: str) -> int | None:
    """Return the number of a weight's layer; None outside of the layers."""
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def _is_whole(name: str) -> bool:
    """Return whether a trained weight is one of the encoder's, unfactored."""
    return not name.endswith((DOWN, UP)) and not name.startswith(OBJECTIVE)


def _frozen_names(encoder: EncoderSettings, weights: Mapping[str, Any]) -> set[str]:
    """Return the names of the frozen weights."""
    numbers = {name: layer_of(name) for name in weights}
    layers = len({number for number in numbers.values() if number is not None})
    if encoder.freeze.layers > layers:
        raise InputError(
            "encoder.freeze.layers",
            f"{encoder.freeze.layers} of {layers} layers cannot be frozen",
            f"Freeze at most {layers}",
        )
    frozen = {
        name
        for name, number in numbers.items()
        if number is not None and number < encoder.freeze.layers
    }
    if encoder.freeze.embeddings:
        outside = (name for name, number in numbers.items() if number is None)
        frozen |= {name for name in outside if _EMBEDDING.search(name)}
    return frozen


def _targets(
    encoder: EncoderSettings, weights: Mapping[str, np.ndarray], frozen: set[str]
) -> dict[str, tuple[int, ...]]:
    """Return the modules that LoRA adapts, with the shapes of their matrices."""
    matrices = {
        name.removesuffix(_MATRIX): value.shape
        for name, value in weights.items()
        if value.ndim == 2 and name.endswith(_MATRIX) and layer_of(name) is not None
    }
    asked = encoder.lora.targets
    for target in asked:
        if not any(_ends(name, target) for name in matrices):
            known = dict.fromkeys(name.rpartition(".")[2] for name in matrices)
            raise InputError(
                "encoder.lora.targets",
                f"no matrix has a name that ends in `{target}`",
                f"Choose one of {', '.join(known)}"
                if known
                else "Leave LoRA out: there are no layers",
            )
    chosen = {
        name: shape
        for name, shape in matrices.items()
        if name + _MATRIX not in frozen
        and (not asked or any(_ends(name, target) for target in asked))
    }
    if not chosen:
        raise InputError(
            "encoder.lora.rank",
            "no layer has a matrix for LoRA to adapt",
            "Leave it out, or lower encoder.freeze.layers",
        )
    return chosen


def _ends(name: str, target: str) -> bool:
    return f".{name}".endswith(f".{target}")


def _factors(targets: Mapping[str, tuple[int, ...]], rank: int, seed: int) -> dict[str, np.ndarray]:
    """Return fresh factors of each target, as `peft` draws them (Kaiming, slope of √5)."""
    # Philox is specified to the bit, so the numbers depend on neither the machine nor the release.
    generator = np.random.Generator(np.random.Philox(seed))
    factors = {}
    for name, (outputs, inputs) in targets.items():
        drawn = generator.random((rank, inputs), dtype=np.float32)
        factors[name + DOWN] = (2 * drawn - 1) / np.float32(math.sqrt(inputs))
        factors[name + UP] = np.zeros((outputs, rank), np.float32)
    return factors


CONFIG_FILE, ADAPTER_FILE = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_OF_THE_BASE = ("config.json", "model*.safetensors*")
"""Files that make a folder a whole model: libraries then do not look for its base."""


def exports_adapter(encoder: EncoderSettings) -> bool:
    """Return whether an adapter is written beside the model."""
    return encoder.lora.rank > 0 and encoder.lora.export == "adapter"


def check_names(stored_name: Callable[[str], str], trained: Mapping[str, Any]) -> None:
    """Refuse factors whose matrices `peft` would not find by their names in the model's files."""
    for name in factors_of(trained):
        module = name.removesuffix(DOWN).removesuffix(UP)
        if stored_name(f"{module}.weight") != f"{module}.weight":
            raise InputError(
                "encoder.lora.export",
                f"`peft` would find no {module} in this architecture",
                "Set it to merged",
            )


def write_adapter(
    folder: Location,
    trained: Mapping[str, np.ndarray],
    scale: float,
    model: Location,
    base: Location,
) -> None:
    """Write an adapter of factors by name, whole or not at all; replace an existing folder.

    Trained weights without factors are left out: the modules of ``model`` have them.

    Args:
        scale: Of the factors' products.
        model: A sentence-transformers folder of the merged model. All but its weights is copied:
            modules, tokenizer, prompts and card.
        base: The folder of the factors' base model, as users will find it.
    """
    merged, factors = local_folder(model), factors_of(trained)
    with storage.built_folder(folder) as aside:
        storage.copy_folder(merged, aside)
        _to_root(aside)
        for file in (file for pattern in _OF_THE_BASE for file in aside.glob(pattern)):
            file.unlink()
        storage.write_json(aside / CONFIG_FILE, _config(factors, scale, str(base)))
        save_weights(
            aside / ADAPTER_FILE, {f"{_PREFIX}{name}": value for name, value in factors.items()}
        )


def _to_root(folder: Path) -> None:
    """Move the transformer of a model to its root: libraries apply only an adapter in the root."""
    (_, path), *_ = folder_modules(folder)
    if not path:
        return
    for file in (folder / path).iterdir():
        file.rename(folder / file.name)
    (folder / path).rmdir()
    modules = storage.read_json(folder / MODULES_FILE)
    modules[0]["path"] = ""
    storage.write_json(folder / MODULES_FILE, modules)


def _config(trained: Mapping[str, np.ndarray], scale: float, base: str) -> dict[str, Any]:
    """Return the configuration for `peft`; missing keys have its defaults."""
    ranks = {
        name.removesuffix(DOWN): len(factor) for name, factor in trained.items() if DOWN in name
    }
    # One rank for all: `split` knows no other.
    (rank,) = set(ranks.values())
    return {
        "peft_type": "LORA",
        "task_type": "FEATURE_EXTRACTION",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": scale * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(ranks),
    }
