"""Language models of either kind, for `compare` to train instead of a sentence encoder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.settings import Config
from pipelines.settings.load import parse
from pipelines.tokens.start import default_start

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
POSITIONS = 512
SEED = 17


@dataclass(frozen=True)
class Size:
    """Of a decoder of the shape of GPT-2 (Radford et al., 2019).

    Attributes:
        layers: How many.
        hidden: Width.
        heads: Of attention.
    """

    layers: int
    hidden: int
    heads: int


SIZES: Mapping[str, Size] = {
    "causal": Size(4, 256, 4),
    # With the packaged vocabulary of 30,522 words, 109 million parameters.
    "causal-100m": Size(12, 768, 12),
}


def masked(config: Config, folder: Path) -> Config:
    """Masked language modelling, of the texts of the corpus one by one."""
    return _language_model(config, {"name": "mlm"}, {})


def causal(config: Config, folder: Path, size: Size) -> Config:
    """Causal language modelling by a random decoder, with the packaged vocabulary."""
    start = folder / f"decoder-{size.layers}x{size.hidden}"
    if not start.is_dir():
        write_decoder(start, size)
    shape = {"start": str(start), "pooling": "lasttoken"}
    return _language_model(config, {"name": "clm"}, shape)


def _language_model(
    config: Config, objective: Mapping[str, Any], encoder_settings: Mapping[str, Any]
) -> Config:
    tree = config.model_dump(mode="json")
    tree["objective"] = dict(objective)
    # Whatever engines train it: no other framework has these objectives.
    tree["training"] |= {"engine": "local", "mode": "sync", "framework": "torch"}
    tree["encoder"] |= encoder_settings
    tree["corpus"] |= {"pairs": "single", "evaluation_share": 0.0}
    tree["tokens"] |= {"vocabulary": "start"} if encoder_settings else {}
    tree["prepared"]["folder"] = f"{config.prepared.folder}-{objective['name']}"
    return parse(tree)


def write_decoder(folder: Path, size: Size) -> None:
    """Writes a checkpoint folder with random weights, the same on every machine.

    Args:
        folder: Which is not there; none is left unless it is whole.
        size: Of the decoder.
    """
    import torch
    from transformers import AutoModel, GPT2Config

    tokenizer = default_start()
    aside = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    words = len((tokenizer / "vocab.txt").read_text(encoding="utf-8").splitlines())
    config = GPT2Config(
        vocab_size=words,
        n_positions=POSITIONS,
        n_embd=size.hidden,
        n_layer=size.layers,
        n_head=size.heads,
        pad_token_id=0,
        # The ends of a text in the packaged vocabulary, [CLS] and [SEP].
        bos_token_id=101,
        eos_token_id=102,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        AutoModel.from_config(config).save_pretrained(aside)
    for name in TOKENIZER:
        shutil.copyfile(tokenizer / name, aside / name)
    aside.rename(folder)


WORKLOADS: Mapping[str, Callable[[Config, Path], Config]] = {
    "masked": masked,
    **{name: partial(causal, size=size) for name, size in SIZES.items()},
}
"""By name: what makes of the settings those of a workload, given a folder for what it needs."""
