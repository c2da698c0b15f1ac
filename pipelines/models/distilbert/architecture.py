"""What DistilBERT is made of; see :class:`pipelines.models.architecture.Architecture`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pipelines.models.bert.architecture import family_member
from pipelines.models.bert.spec import BertSpec, Layout


@dataclass(frozen=True, kw_only=True)
class DistilBertSpec(BertSpec):
    """BERT without segments.

    Source: Sanh, Debut, Chaumond and Wolf, "DistilBERT, a distilled version of BERT: smaller,
    faster, cheaper and lighter", 2019, arXiv:1910.01108.
    """

    kind: ClassVar[str] = "distilbert"

    type_vocabulary: int = 0
    model_type: str = "distilbert"


DISTILBERT = family_member(
    Layout(
        spec=DistilBertSpec,
        classes={"distilbert": "DistilBertModel"},
        keys={
            "vocabulary": "vocab_size",
            "layers": "n_layers",
            "hidden": "dim",
            "heads": "n_heads",
            "intermediate": "hidden_dim",
            "positions": "max_position_embeddings",
            "pad_token_id": "pad_token_id",
        },
        accepted={"activation": ("gelu",)},
        dropout=("dropout", "attention_dropout"),
        names=(
            ("encoder.layer.", "transformer.layer."),
            ("attention.self.query", "attention.q_lin"),
            ("attention.self.key", "attention.k_lin"),
            ("attention.self.value", "attention.v_lin"),
            ("attention.output.dense", "attention.out_lin"),
            ("attention.output.LayerNorm", "sa_layer_norm"),
            ("intermediate.dense", "ffn.lin1"),
            ("output.dense", "ffn.lin2"),
            ("output.LayerNorm", "output_layer_norm"),
        ),
        prefix="distilbert.",
        pooler=False,
    ),
    models="DistilBERT",
)
