"""The section `promotion` of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from pipelines.errors import InputError
from pipelines.settings.base import Settings, StoredPath

Doubt = Literal[
    "worse_than_start",
    "seen_in_training",
    "chosen_by_judge",
    "unmoved_weights",
    "collapsed_embeddings",
    "easy_negatives",
    "constant_scores",
]
"""A reason against a model that only a person can overrule."""
WORSE_THAN_START: Doubt = "worse_than_start"

Points = float
"""A figure times 100, as in the evaluation."""


class PromotionSettings(Settings):
    """The rules by which a model replaces the one in service."""

    target: StoredPath | None = None
    """Folder that models are served from; `current` in it is the one in service."""
    metrics: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Metrics that must not fall, each after its evaluation, as in `metrics.json`. Unset: the first
    one of every judged set and guard, or of held-out pairs where no set is judged; see
    [promotion](../guides/serving.md#adjust-the-gate)."""
    tolerance: Mapping[str, Annotated[Points, Field(ge=0)]] = Field(default_factory=dict)
    """By metric, how many points lower than the model in service it may be (the first model: than
    its start); 0 unless set. What has no interval is refused where it is lower by more."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Of the interval of a difference to the model in service, by paired bootstrap over the queries
    (or pairs): what is decided by."""
    required: Literal["not_worse", "better"] = "not_worse"
    """`not_worse`: refused where it is worse and the whole interval is lower than the tolerance
    allows; `better`: refused unless it is better, by interval and test."""
    minimum: Mapping[str, Points] = Field(default_factory=dict)
    """By metric, the least points; they hold for the first promotion too."""
    accept: tuple[Doubt, ...] = ()
    """Doubts that do not keep a model out of service, by name; see
    [promotion](../guides/serving.md#resolve-doubts)."""
    keep: int = Field(default=3, ge=1)
    """Models formerly in service that are kept for a rollback."""

    def check(self) -> None:
        """Refuse metrics without an evaluation, and limits of metrics that are not compared.

        Without `metrics`, the sets of a run and the limits decide; see
        :func:`pipelines.promotion.gate.compared_metrics`.
        """
        if self.metrics is None:
            return
        for name in self.metrics:
            if not all(name.rpartition(".")):
                raise InputError(
                    "promotion.metrics",
                    f"`{name}` names no evaluation",
                    "for example retrieval.ndcg@10",
                )
        for key, by_metric in (("tolerance", self.tolerance), ("minimum", self.minimum)):
            for name in by_metric:
                if name not in self.metrics:
                    raise InputError(
                        f"promotion.{key}",
                        f"`{name}` is not one of promotion.metrics",
                        f"one of {', '.join(self.metrics)}, or add it there",
                    )
