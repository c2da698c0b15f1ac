"""What RoBERTa is made of; see :class:`pipelines.models.architecture.Architecture`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pipelines.models.bert.architecture import ACCEPTED, family_member
from pipelines.models.bert.spec import BertSpec, Layout, refuse_random


@dataclass(frozen=True, kw_only=True)
class RobertaSpec(BertSpec):
    """BERT whose positions are counted from behind the padding token's id.

    The rows of the position table before that are no part of the weights here. A text that spells
    the padding token out uses the last of them, which training leaves at zero.

    Sources: Liu et al., "RoBERTa: A Robustly Optimized BERT Pretraining Approach", 2019,
    arXiv:1907.11692; Conneau et al., "Unsupervised Cross-lingual Representation Learning at Scale",
    ACL 2020, arXiv:1911.02116.
    """

    kind: ClassVar[str] = "roberta"

    pad_token_id: int = 1
    model_type: str = "roberta"

    @property
    def placeless_token(self) -> int | None:
        """The padding token, which a text may spell out."""
        return self.pad_token_id


def rows_up_to_padding(pad_token_id: int) -> int:
    """Rows of the position table that no text uses: that of padding, and those before it."""
    return pad_token_id + 1


ROBERTA = family_member(
    Layout(
        spec=RobertaSpec,
        classes={
            "roberta": "RobertaModel",
            "xlm-roberta": "XLMRobertaModel",
            "camembert": "CamembertModel",
        },
        accepted=ACCEPTED,
        prefix="roberta.",
        skipped_rows=rows_up_to_padding,
    ),
    models="RoBERTa, XLM-R (multilingual E5, BGE-M3, Arctic Embed L 2), CamemBERT",
    # Vocabularies that are trained here have other ids for the special tokens.
    check_settings=refuse_random,
)
