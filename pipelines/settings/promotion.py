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
    """Folder of served models; `current` in it is in service."""
    metrics: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Metrics that must not fall, as in `metrics.json`. Null: the first of each judged set and
    guard, or of held-out pairs without judged sets; see
    [promotion](../guides/serving.md#adjust-the-gate)."""
    tolerance: Mapping[str, Annotated[Points, Field(ge=0)]] = Field(default_factory=dict)
    """Allowed loss by metric, in points below the model in service (first model: its start);
    otherwise 0. Without an interval, any larger loss is refused."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Confidence of the deciding interval, a paired bootstrap of the difference over queries (or
    pairs)."""
    required: Literal["not_worse", "better"] = "not_worse"
    """`not_worse`: refuse a worse model if its whole interval is below the tolerance; `better`:
    refuse unless better by interval and test."""
    minimum: Mapping[str, Points] = Field(default_factory=dict)
    """Least points by metric, for the first promotion too."""
    accept: tuple[Doubt, ...] = ()
    """Doubts to accept, by name; see [promotion](../guides/serving.md#resolve-doubts)."""
    keep: int = Field(default=3, ge=1)
    """Former models to keep for a rollback."""

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
                    "Name the evaluation too, as in retrieval.ndcg@10",
                )
        for key, by_metric in (("tolerance", self.tolerance), ("minimum", self.minimum)):
            for name in by_metric:
                if name not in self.metrics:
                    raise InputError(
                        f"promotion.{key}",
                        f"`{name}` is not one of promotion.metrics",
                        f"Choose one of {', '.join(self.metrics)}, or add it there",
                    )
