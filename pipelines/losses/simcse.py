"""Unsupervised SimCSE: a text picks itself, under another dropout mask, among all texts.

The loss is that of :mod:`.in_batch_negatives`, with the same text on both sides.

Source: Gao, Yao and Chen, "SimCSE: Simple Contrastive Learning of Sentence Embeddings", EMNLP 2021,
arXiv:2104.08821, section 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.errors import InputError
from pipelines.losses import in_batch_negatives
from pipelines.losses.loss import Loss

if TYPE_CHECKING:
    from pipelines.settings import Config


class SimcseSettings(in_batch_negatives.InBatchNegativesSettings):
    """How similarities are compared, and with what: as where the partner is another text."""


def check(config: Config) -> None:
    """Refuses a training in which both sides would have the same embedding."""
    in_batch_negatives.check_comparisons(config)
    if not config.training.dropout:
        raise InputError(
            "training.dropout",
            "`simcse` tells a text's two embeddings apart by dropout alone",
            "for example 0.1",
        )


LOSS = Loss(
    name="simcse",
    needs="singles",
    sides=("anchor", "anchor"),
    uses_negatives=True,
    settings=SimcseSettings,
    # None for BigDL, whose graphs have no dropout.
    forms={"tensorflow": in_batch_negatives.tensorflow, "torch": in_batch_negatives.torch},
    check=check,
)
