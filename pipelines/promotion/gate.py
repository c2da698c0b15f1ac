"""The quality gate: may a model take the place of the one in service?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipelines.errors import InputError, PromotionRefused
from pipelines.evaluation.base import figure_named
from pipelines.settings import PromotionSettings

Figures = Mapping[str, Mapping[str, float]]
"""Figures by evaluation and metric, as :func:`pipelines.evaluation.stage.evaluate` gives them."""


@dataclass(frozen=True)
class Judgement:
    """What the gate says of one metric.

    Attributes:
        metric: `evaluation.metric`.
        value: Of the new model, times 100.
        served: Of the model in service, on the same texts; None where there is none.
        tolerance: How many points lower than ``served`` the value may be.
        minimum: The fewest points, if the settings name them.
    """

    metric: str
    value: float
    served: float | None
    tolerance: float
    minimum: float | None

    @property
    def refusal(self) -> PromotionRefused | None:
        """Why the model is refused, if it is. NaN never passes."""
        asked_for = -math.inf if self.minimum is None else self.minimum
        if math.isnan(self.value) or self.value < asked_for:
            return PromotionRefused(
                "promotion.minimum",
                f"{self.metric} is {self.value:.4f}, at least {asked_for:.4f} is asked for",
            )
        # There is nothing to compare with where the model in service has NaN.
        if self.served is None or not self.value < self.served - self.tolerance:
            return None
        return PromotionRefused(
            "promotion.tolerance",
            f"{self.metric} is {self.value:.4f}, the model in service has {self.served:.4f}, "
            f"{self.tolerance:g} less would do",
        )


def judge(settings: PromotionSettings, figures: Figures, served: Figures | None) -> list[Judgement]:
    """Compares the new figures with those of the model in service, metric by metric.

    Args:
        settings: ``promotion``.
        figures: Of the new model.
        served: Of the model in service, measured on the same texts; None where there is none.

    Raises:
        InputError: A metric was not measured.
    """
    return [
        Judgement(
            metric=metric,
            value=figure(figures, metric),
            served=None if served is None else figure(served, metric),
            tolerance=settings.tolerance.get(metric, 0.0),
            minimum=settings.minimum.get(metric),
        )
        for metric in settings.metrics
    ]


def evaluations(settings: PromotionSettings) -> list[str]:
    """The names of the evaluations that the gate looks at."""
    return list(dict.fromkeys(metric.rpartition(".")[0] for metric in settings.metrics))


def figure(figures: Figures, metric: str) -> float:
    """The value of `evaluation.metric`.

    Raises:
        InputError: It was not measured, or more of it is not better.
    """
    evaluation, _, name = metric.rpartition(".")
    if figure_named(name).better != "higher":
        raise InputError(
            "promotion.metrics",
            f"`{metric}` is not better the higher it is",
            f"one of {', '.join(_names(figures)) or 'none, since nothing was measured'}",
        )
    try:
        return figures[evaluation][name]
    except KeyError:
        raise InputError(
            "promotion.metrics",
            f"`{metric}` was not measured",
            f"one of {', '.join(_names(figures)) or 'none, since nothing was'}",
        ) from None


def _names(figures: Figures) -> Iterator[str]:
    for evaluation, values in figures.items():
        for name in values:
            if figure_named(name).better == "higher":
                yield f"{evaluation}.{name}"
