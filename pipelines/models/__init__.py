"""The architectures of encoders, by name. A new one is a folder here, and a line below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.registry import Registry

if TYPE_CHECKING:
    from pipelines.models.architecture import Architecture

ARCHITECTURES: Registry[Architecture] = Registry(
    kind="architecture",
    key="encoder.kind",
    entries={
        "bert": "pipelines.models.bert.architecture:BERT",
        "roberta": "pipelines.models.roberta.architecture:ROBERTA",
        "distilbert": "pipelines.models.distilbert.architecture:DISTILBERT",
        "electra": "pipelines.models.electra.architecture:ELECTRA",
        "mpnet": "pipelines.models.mpnet.architecture:MPNET",
        "static": "pipelines.models.static.architecture:STATIC",
        # Takes what the others do not, so it comes last.
        "hf": "pipelines.models.hf.architecture:HF",
    },
    renamed={"transformer": "bert", "bag": "static"},
)
"""The first one reads the folders that no other recognises, and refuses them if it must."""
