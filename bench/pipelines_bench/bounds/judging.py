"""Whether a figure is within its bound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines_bench.bounds.entries import YARDSTICK, Bound, Run

_SAID: Mapping[str, str] = {
    "at_least": "at least",
    "at_most": "at most",
    "exactly": "exactly",
}


@dataclass(frozen=True)
class Verdict:
    """What became of a bound.

    Attributes:
        run: Whose figure it is.
        bound: The bound.
        figure: What was found; None where there is none.
        problem: Why it is broken; empty if it is held.
    """

    run: Run
    bound: Bound
    figure: float | None
    problem: str

    @property
    def is_broken(self) -> bool:
        """Whether the figure is beyond the bound, or is missing."""
        return bool(self.problem)

    @property
    def limit(self) -> str:
        """The bound in words."""
        return limit_in_words(self.bound)

    @property
    def told(self) -> str:
        """The figure for people."""
        if self.figure is None:
            return "not measured here" if not self.problem else "none"
        whole = float(self.figure).is_integer() and self.bound.kind == "count"
        return f"{self.figure:,.0f}" if whole else f"{self.figure:,.4g}"


def limit_in_words(bound: Bound) -> str:
    """What a bound's figure must be, for people."""
    name, value = bound.limit
    return f"{_SAID[name]} {value:,.0f}" if value.is_integer() else f"{_SAID[name]} {value:,g}"


def judged(run: Run, figures: Mapping[str, Any], yardstick: float) -> list[Verdict]:
    """The verdicts of a run.

    Args:
        figures: That its benchmark returned.
        yardstick: CPU seconds of the yardstick on this machine.
    """
    return [_verdict(run, bound, {**figures, YARDSTICK: yardstick}) for bound in run.bounds]


def failed(run: Run, why: str) -> list[Verdict]:
    """The verdicts of a run that has no figures."""
    return [Verdict(run, bound, None, f"it was not measured ({why})") for bound in run.bounds]


def _verdict(run: Run, bound: Bound, figures: Mapping[str, Any]) -> Verdict:
    places = [bound.figure] if bound.over is None else [bound.figure, bound.over]
    found = []
    for place in places:
        try:
            found.append(_at(figures, place.split(".")))
        except LookupError:
            return Verdict(run, bound, None, f"the benchmark gives no {place}")
    if None in found:
        why = "" if bound.optional else "the benchmark could not measure it"
        return Verdict(run, bound, None, why)
    figure = float(found[0]) if bound.over is None else _ratio(*found)
    verdict = Verdict(run, bound, figure, "")
    if is_within(figure, *bound.limit):
        return verdict
    return Verdict(run, bound, figure, f"{verdict.told} is not {verdict.limit}")


def is_within(figure: float, limit: str, value: float) -> bool:
    """Whether a figure keeps to a limit; what is no number keeps to none.

    Args:
        limit: A name of :data:`pipelines_bench.bounds.entries.LIMITS`.
        value: Of the limit.
    """
    if limit == "at_least":
        return figure >= value
    return figure <= value if limit == "at_most" else figure == value


def _ratio(figure: float, over: float) -> float:
    return figure / over if over else math.nan


def _at(figures: Any, place: Sequence[str]) -> Any:
    """What is at a place of nested mappings and lists.

    Raises:
        LookupError: There is no such place.
    """
    for name in place:
        if isinstance(figures, Mapping):
            figures = figures[name]
        elif isinstance(figures, Sequence) and not isinstance(figures, str) and name.isdigit():
            figures = figures[int(name)]
        else:
            raise LookupError(name)
    if figures is not None and not isinstance(figures, int | float):
        raise LookupError(f"{place[-1]} is no number")
    return figures
