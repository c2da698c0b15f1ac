"""The quality gate: it decides whether a model may replace the one in service."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pipelines.catalog import EVALUATIONS
from pipelines.errors import InputError, PromotionRefused
from pipelines.evaluation.base import figure_named
from pipelines.evaluation.intervals import (
    BETTER,
    CONFIDENCE,
    NOT_SIGNIFICANT,
    UNSEEN,
    WORSE,
    Interval,
)
from pipelines.evaluation.sets import Role
from pipelines.settings import PromotionSettings

Figures = Mapping[str, Mapping[str, float]]
"""Values by evaluation and metric, as :func:`pipelines.evaluation.sets.evaluate` returns them."""


_OF_EARLIER_RELEASES = "retrieval.ndcg@10"
_NAME_SETS = "Name sets in evaluation.retrieval_sets, and evaluate again"


@dataclass(frozen=True)
class Judgement:
    """The gate's judgement of one metric.

    Attributes:
        metric: `evaluation.metric`.
        value: Value of the new model, times 100.
        served: Value of the model in service, on the same texts; None for the first model.
        interval: Interval of the difference to the reference; None if unknown.
        tolerance: Points by which the value may be below the reference.
        minimum: Least points, if the settings name them.
        required: See ``promotion.required``.
        start: Value of the start of the training, the reference of the first model; None for later
            models, or without a wish for that comparison.
        confidence: Confidence of the interval.
    """

    metric: str
    value: float
    served: float | None
    tolerance: float
    minimum: float | None
    interval: Interval | None = None
    required: Literal["not_worse", "better"] = "not_worse"
    start: float | None = None
    confidence: float = CONFIDENCE

    @property
    def refusal(self) -> PromotionRefused | None:
        """The reason to refuse the model, if any. NaN never passes."""
        asked_for = -math.inf if self.minimum is None else self.minimum
        if math.isnan(self.value) or self.value < asked_for:
            return PromotionRefused(
                "promotion.minimum",
                f"{self.metric} is {self.value:.4f}, and the minimum is {asked_for:.4f}.",
            )
        # A NaN of the other model leaves nothing to compare with.
        if self.reference is None or math.isnan(self.reference):
            return None
        if self.required == "better" and self.verdict != BETTER:
            return self._refused("promotion.required", "It must be better.")
        if self.verdict == WORSE and self.high < -self.tolerance:
            return self._refused("promotion.tolerance", f"The tolerance is {self.tolerance:g}.")
        return None

    @property
    def reference(self) -> float | None:
        """The value to compare with."""
        return self.start if self.served is None else self.served

    @property
    def verdict(self) -> str:
        """`better`, `worse` or `not significant`, as in verdicts; by the values without interval.

        Confidence needs no correction for several metrics, since all of them must pass.
        """
        # Without an interval even the smallest difference counts: it is the only evidence.
        if self.interval is not None and abs(self._difference) <= UNSEEN:
            return NOT_SIGNIFICANT
        if self.interval is not None:
            return self.interval.verdict(confidence=self.confidence)
        if self.low == 0:
            return NOT_SIGNIFICANT
        return BETTER if self.low > 0 else WORSE

    @property
    def low(self) -> float:
        """The lower bound of the difference; the difference itself without an interval."""
        return self._difference if self.interval is None else self.interval.low

    @property
    def high(self) -> float:
        """The upper bound of the difference; the difference itself without an interval."""
        return self._difference if self.interval is None else self.interval.high

    @property
    def _difference(self) -> float:
        assert self.reference is not None
        return self.value - self.reference

    @property
    def _evidence(self) -> str:
        """Return the test's result if only the test denies a gain."""
        interval = self.interval
        if interval is None or interval.p is None or interval.low <= 0 or self.verdict == BETTER:
            return ""
        return f", {interval.differing} differ, p {interval.p:.2g}"

    def _refused(self, key: str, demand: str) -> PromotionRefused:
        lies, model = "", "the start" if self.served is None else "the model in service"
        if self.interval is not None:
            lies = f" (the difference is {self.low:+.2f} to {self.high:+.2f}{self._evidence})"
        return PromotionRefused(
            key,
            f"{self.metric} is {self.value:.4f}, and {model} has {self.reference:.4f}{lies}. "
            f"{demand}",
        )


def compared_metrics(
    settings: PromotionSettings, sets: Mapping[str, Mapping[str, str]]
) -> tuple[str, ...]:
    """Return the metrics to compare: the named ones, or the first of each set.

    Unless the settings name some, metrics with a limit are compared too. Judged queries decide, and
    guards show losses. Without judged queries, held-out pairs of the corpus are a proxy, as in
    :func:`pipelines.report.verdict.verdict`.

    ``sets`` describe each set of the run (:func:`pipelines.evaluation.sets.told_sets`); runs of
    earlier releases have none.

    Raises:
        InputError: Nothing was measured to compare by.
    """
    if settings.metrics is not None:
        return settings.metrics
    by_role: dict[str, list[str]] = {role: [] for role in Role}
    for name, known in sets.items():
        by_role[known["role"]] += _first_metric(name, known["evaluation"])
    # The first held-out set holds the queries of all sources.
    deciding = by_role[Role.JUDGED] or by_role[Role.HELD_OUT][:1]
    metrics = (*deciding, *by_role[Role.GUARD]) if sets else (_OF_EARLIER_RELEASES,)
    if not metrics:
        raise InputError(
            "promotion.metrics", "the run has no figure to compare models by", _NAME_SETS
        )
    # A metric with a limit needs its comparison, whatever else decides.
    return tuple(dict.fromkeys((*metrics, *settings.tolerance, *settings.minimum)))


def _first_metric(name: str, evaluation: str) -> list[str]:
    """Return the first metric of a set with `higher` as better, if any."""
    figures = EVALUATIONS.load(evaluation).figures
    return [f"{name}.{figure.name}" for figure in figures if figure.better == "higher"][:1]


def judge(
    settings: PromotionSettings,
    metrics: Sequence[str],
    figures: Figures,
    served: Figures | None,
    intervals: Mapping[str, Mapping[str, Interval]] | None = None,
    start: Figures | None = None,
) -> list[Judgement]:
    """Compare a new model with the model in service, or the first one with its start.

    ``metrics`` are from :func:`compared_metrics`. ``served`` figures are on the same texts; None
    for the first model: its reference is the ``start``. ``intervals`` of the differences are by
    evaluation and metric, where known.

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
            interval=_interval(intervals or {}, metric),
            required=settings.required,
            start=None if start is None else figure(start, metric),
            confidence=settings.confidence if start is None else CONFIDENCE,
        )
        for metric in metrics
    ]


def _interval(intervals: Mapping[str, Mapping[str, Interval]], metric: str) -> Interval | None:
    evaluation, _, name = metric.rpartition(".")
    return intervals.get(evaluation, {}).get(name)


def evaluations(metrics: Sequence[str]) -> list[str]:
    """Return the names of the metrics' sets."""
    return list(dict.fromkeys(metric.rpartition(".")[0] for metric in metrics))


def figure(figures: Figures, metric: str) -> float:
    """Return the value of `evaluation.metric`.

    Raises:
        InputError: It was not measured, or higher is not better.
    """
    evaluation, _, name = metric.rpartition(".")
    known = ", ".join(
        f"{measured_set}.{measured}"
        for measured_set, values in figures.items()
        for measured in values
        if figure_named(measured).better == "higher"
    )
    remedy = f"Choose one of {known or 'the metrics that `evaluate` measures'}"
    if figure_named(name).better != "higher":
        problem = f"a higher `{metric}` is no better"
        raise InputError("promotion.metrics", problem, remedy)
    try:
        return figures[evaluation][name]
    except KeyError:
        problem = f"`{metric}` was not measured"
        raise InputError("promotion.metrics", problem, remedy) from None
