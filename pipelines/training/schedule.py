"""The learning rate of a step."""

from __future__ import annotations

import math
from collections.abc import Callable

from pipelines.settings import TrainingSettings

_DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
    "constant": lambda progress: 1.0,
}


def learning_rate(step: int, steps: int, settings: TrainingSettings) -> float:
    """The rate of a step: linear warm-up, then the decay, which would reach zero at ``steps``.

    Args:
        step: Number of the step, from 0.
        steps: Steps of the whole run, not only of what is left of it after a resume.
        settings: Rate, schedule and warm-up share.
    """
    warmup_steps = math.ceil(settings.warmup * steps)
    if step < warmup_steps:
        return settings.learning_rate * (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(steps - warmup_steps, 1)
    return settings.learning_rate * _DECAYS[settings.schedule](progress)
