"""An architecture of PyTorch alone: the mean of token embeddings, and a dense layer behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipelines.files import storage
from pipelines.models.architecture import Architecture, FolderFormat, Lengths
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import WORDS, load_weights, normal_weights, save_weights
from pipelines.tokens.vocabulary import copy_tokenizer

DENSE = "dense.weight"
MODULE = "ToyModule"


@dataclass(frozen=True, kw_only=True)
class ToySpec(EncoderSpec):
    kind: ClassVar[str] = "toy"

    width: int = 12


def toy_encoder(spec, weights, dtype, part):
    """Its form in PyTorch."""
    from torch.nn.functional import embedding, linear

    from pipelines.models.frameworks.torch import Encode

    class ToyEncoder(Encode):
        def hidden_states(
            self, batch, masks, *, activation_checkpointing=False, sparse_words=False
        ):
            return embedding(batch.token_ids, weights[WORDS], sparse=sparse_words)

        def pooled(self, hidden_states, batch):
            mean = batch.rectangle(hidden_states).sum(1) / batch.lengths[:, None]
            return linear(mean.to(dtype), weights[DENSE].to(dtype)).float()

    return ToyEncoder()


def read(folder, modules):
    home = folder / dict(modules)[MODULE]
    spec = ToySpec(
        **storage.read_json(home / "config.json"), normalise="Normalize" in dict(modules)
    )
    return spec, {
        name: np.asarray(value) for name, value in load_weights(home / "all.safetensors").items()
    }


def write(folder, spec, weights, tokenizer_folder):
    home = folder / "0_Toy"
    home.mkdir()
    copy_tokenizer(tokenizer_folder, home, spec.max_length)
    shape = {name: getattr(spec, name) for name in ("vocabulary", "hidden", "width", "max_length")}
    storage.write_json(home / "config.json", shape)
    save_weights(home / "all.safetensors", weights)
    return [(MODULE, "0_Toy")]


def lengths(folder, modules):
    own = storage.read_json(folder / dict(modules)[MODULE] / "config.json")["max_length"]
    return Lengths(own, 512)


TOY = Architecture(
    spec=ToySpec,
    models="none",
    check_settings=lambda encoder: None,
    shape=lambda encoder: {"width": encoder.intermediate or 12},
    random_lengths=lambda told: Lengths(told or 64, 512),
    weight_shapes=lambda spec: {
        WORDS: (spec.vocabulary, spec.width),
        DENSE: (spec.hidden, spec.width),
    },
    random_weights=normal_weights,
    folder=FolderFormat(
        recognises=lambda folder, modules: MODULE in dict(modules),
        read=read,
        write=write,
        lengths=lengths,
    ),
    described=lambda spec: f"of one dense layer of {spec.hidden}",
    described_settings=lambda encoder: f"a dense layer of {encoder.hidden}",
    forms={"torch": "toy_architecture:toy_encoder"},
)
