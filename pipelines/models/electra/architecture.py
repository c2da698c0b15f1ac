"""What ELECTRA is made of; see :class:`pipelines.models.architecture.Architecture`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pipelines.models.bert.architecture import ACCEPTED, family_member
from pipelines.models.bert.spec import CONFIG_KEYS, BertSpec, Layout


@dataclass(frozen=True, kw_only=True)
class ElectraSpec(BertSpec):
    """BERT whose words may be narrower than its layers.

    Source: Clark, Luong, Le and Manning, "ELECTRA: Pre-training Text Encoders as Discriminators
    Rather Than Generators", ICLR 2020, arXiv:2003.10555.
    """

    kind: ClassVar[str] = "electra"

    embedding_size: int | None = 128
    model_type: str = "electra"


ELECTRA = family_member(
    Layout(
        spec=ElectraSpec,
        classes={"electra": "ElectraModel"},
        keys={**CONFIG_KEYS, "embedding_size": "embedding_size"},
        accepted=ACCEPTED,
        prefix="electra.",
        pooler=False,
    ),
    models="ELECTRA's discriminator",
)
