"""What encoders of `transformers` are made of; see :mod:`pipelines.models.architecture`."""

from __future__ import annotations

from pipelines.models.architecture import Architecture, FolderFormat
from pipelines.models.hf import folder, spec
from pipelines.models.hf.spec import DIVISION

HF = Architecture(
    spec=spec.HfSpec,
    models="ModernBERT, GTE, Nomic, Qwen3, Gemma, Llama and what else transformers itself knows",
    check_settings=spec.refuse_random,
    shape=spec.shape,
    random_lengths=spec.random_lengths,
    weight_shapes=folder.weight_shapes,
    random_weights=spec.random_weights,
    folder=FolderFormat(
        recognises=folder.recognises,
        read=folder.read,
        write=folder.write,
        lengths=folder.lengths,
    ),
    described=spec.described,
    described_settings=spec.described_settings,
    forms={
        "torch": "pipelines.models.hf.torch:HfEncoder",
        "torch_module": "pipelines.models.hf.torch:hf_module",
    },
    division=DIVISION,
    rewrites=("tokens",),
)
