"""What MPNet is made of; see :class:`pipelines.models.architecture.Architecture`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pipelines.models.bert.architecture import family_member
from pipelines.models.bert.spec import CONFIG_KEYS, BertSpec, Layout, refuse_random

BUCKETS = 32
"""Distances that attention tells apart: transformers counts so many, whatever config.json says."""
SKIPPED_ROWS = 2
"""Of the position table: MPNet takes token 1 for padding, whatever config.json says."""


@dataclass(frozen=True, kw_only=True)
class MPNetSpec(BertSpec):
    """BERT without segments, whose attention also sees how far apart two tokens are.

    Source: Song, Tan, Qin, Lu and Liu, "MPNet: Masked and Permuted Pre-training for Language
    Understanding", NeurIPS 2020, arXiv:2004.09297.
    """

    kind: ClassVar[str] = "mpnet"

    pad_token_id: int = 1
    type_vocabulary: int = 0
    relative_buckets: int = BUCKETS
    model_type: str = "mpnet"

    @property
    def placeless_token(self) -> int | None:
        """The token that MPNet takes for padding, which a text may spell out."""
        return SKIPPED_ROWS - 1


def skipped_rows(pad_token_id: int) -> int:
    """Rows of the position table that no text uses."""
    return SKIPPED_ROWS


MPNET = family_member(
    Layout(
        spec=MPNetSpec,
        classes={"mpnet": "MPNetModel"},
        keys={name: key for name, key in CONFIG_KEYS.items() if name != "type_vocabulary"},
        accepted={"hidden_act": ("gelu",), "relative_attention_num_buckets": (BUCKETS,)},
        names=(
            ("attention.self.query", "attention.attn.q"),
            ("attention.self.key", "attention.attn.k"),
            ("attention.self.value", "attention.attn.v"),
            ("attention.output.dense", "attention.attn.o"),
            ("attention.output.LayerNorm", "attention.LayerNorm"),
        ),
        prefix="mpnet.",
        skipped_rows=skipped_rows,
    ),
    models="MPNet (all-mpnet-base-v2 and others)",
    check_settings=refuse_random,
    # The attention of the others knows no bias with a gradient.
    without=("tensorflow", "mesh", "bigdl", "bigdl_memory", "openvino"),
)
