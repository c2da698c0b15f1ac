"""A LoRA adapter as `peft` writes it: a folder with the factors alone, and where their base is.

`peft`, transformers and sentence-transformers load the base from where the folder says it is, and
put the adapter on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.files.copies import local_folder
from pipelines.files.locations import Location
from pipelines.models.adaptation import DOWN, UP
from pipelines.models.weights import save_weights
from pipelines.settings import EncoderSettings
from pipelines.tokens.start import MODULES_FILE, folder_modules

CONFIG_FILE, ADAPTER_FILE = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_OF_THE_BASE = ("config.json", "model*.safetensors*")
"""Files that would make the folder a whole model, whose base is not looked for."""


def exports_adapter(encoder: EncoderSettings) -> bool:
    """Whether an adapter is to be written beside the model."""
    return encoder.lora.rank > 0 and encoder.lora.export == "adapter"


def check_names(stored_name: Callable[[str], str], trained: Iterable[str]) -> None:
    """Makes sure that the matrices of a model have the names in its files that the factors have.

    Args:
        stored_name: From the canonical name of a weight to that in the files.
        trained: Names of factors.

    Raises:
        InputError: With the key ``encoder.lora.export``: `peft` would not find them.
    """
    for name in trained:
        module = name.removesuffix(DOWN).removesuffix(UP)
        if stored_name(f"{module}.weight") != f"{module}.weight":
            raise InputError(
                "encoder.lora.export",
                f"`peft` would find no {module} in this architecture",
                "set it to merged",
            )


def write_adapter(
    folder: Location,
    trained: Mapping[str, np.ndarray],
    scale: float,
    model: Location,
    base: Location,
) -> None:
    """Writes an adapter, whole or not at all.

    Args:
        folder: Replaced if it exists.
        trained: The factors, by name.
        scale: What their products are multiplied by.
        model: A sentence-transformers folder of the merged model, all of which but the weights goes
            into the folder: modules, tokenizer, prompts and card.
        base: The folder of the model that the factors were trained on, as it is to be found later.
    """
    merged = local_folder(model)
    with storage.built_folder(folder) as aside:
        storage.copy_folder(merged, aside)
        _to_root(aside)
        for file in (file for pattern in _OF_THE_BASE for file in aside.glob(pattern)):
            file.unlink()
        storage.write_json(aside / CONFIG_FILE, _config(trained, scale, str(base)))
        save_weights(
            aside / ADAPTER_FILE, {f"{_PREFIX}{name}": value for name, value in trained.items()}
        )


def _to_root(folder: Path) -> None:
    """Move the transformer of a model to its root: an adapter elsewhere is not put on its base."""
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
    """What `peft` reads; keys that are left out have its defaults."""
    ranks = {name.removesuffix(DOWN): len(one) for name, one in trained.items() if DOWN in name}
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
