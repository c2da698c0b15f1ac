"""The learning rate of a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pipelines.settings import TrainingSettings

_DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
    "constant": lambda progress: 1.0,
}


@dataclass(frozen=True, kw_only=True)
class Horizon:
    """The planned end of a run from ``step`` on; ``last_step`` is one past the last step."""

    step: int
    last_step: int


@dataclass(frozen=True, kw_only=True)
class _Leg:
    """A rise and a fall of the rate, as shares of ``training.learning_rate``."""

    step: int
    top: int
    last_step: int
    start: float
    peak: float

    def share(self, step: int, schedule: str) -> float:
        if step < self.top:
            # Plus one: with a rate of zero the first step would change nothing.
            risen = (step - self.step + 1) / (self.top - self.step)
            return self.start + (self.peak - self.start) * risen
        progress = (step - self.top) / max(self.last_step - self.top, 1)
        return self.peak * _DECAYS[schedule](min(progress, 1.0))


def learning_rate(step: int, horizons: Sequence[Horizon], settings: TrainingSettings) -> float:
    """Return the rate of a step: linear warm-up, then a decay to zero at the planned end.

    If the end moves before the run reaches it, the rate decays from its current value to zero at
    the new end. After the end, the rate warms up and decays once more. So it never jumps, except to
    the start of a warm-up.

    Source of the second rise: Ibrahim et al., "Simple and Scalable Strategies to Continually
    Pre-train Large Language Models", TMLR 2024, arXiv:2403.08763.

    ``horizons`` are all planned ends from the first step on, also after a resume.
    """
    first, *later = horizons
    leg = _rise(0, first.last_step, 0.0, settings)
    for horizon in later:
        if horizon.step <= step:
            leg = _moved(leg, horizon, settings)
    return settings.learning_rate * leg.share(step, settings.schedule)


def _rise(step: int, last_step: int, start: float, settings: TrainingSettings) -> _Leg:
    # `warmup` is a share of the steps of this leg, not of the whole run.
    top = step + math.ceil(settings.warmup * (last_step - step))
    return _Leg(step=step, top=top, last_step=last_step, start=start, peak=1.0)


def _moved(leg: _Leg, horizon: Horizon, settings: TrainingSettings) -> _Leg:
    """Return the leg after the run's end was moved."""
    share = leg.share(horizon.step, settings.schedule)
    if horizon.step >= leg.last_step:
        return _rise(horizon.step, horizon.last_step, share, settings)
    if horizon.step < leg.top:
        return replace(leg, last_step=horizon.last_step)
    step, last_step = horizon.step, horizon.last_step
    return _Leg(step=step, top=step, last_step=last_step, start=share, peak=share)
