"""Which of a run's states becomes its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pipelines.files.locations import Location
from pipelines.models.weights import Weights
from pipelines.runs.best import load_best, read_best
from pipelines.runs.checkpoint import Checkpoint, checkpoint_steps, load_checkpoint
from pipelines.settings import TrainingSettings


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A state, and why it is the one.

    Attributes:
        checkpoint: Whose ``encoder_weights`` the model has.
        reasons: For ``metrics.json``, beside the step: ``best_by`` and ``value``, ``averaged``
            (the steps of the checkpoints that it is the mean of), ``ema``.
    """

    checkpoint: Checkpoint
    reasons: Mapping[str, Any] = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, Any]:
        """The choice for ``metrics.json``."""
        return {"step": self.checkpoint.step, **self.reasons}


def choose(run_folder: Location, training: TrainingSettings, last_step: int) -> Choice:
    """The state that becomes the model of a run.

    Args:
        training: ``keep_best``, ``average_checkpoints`` and ``ema`` say which.
        last_step: Of the newest checkpoint, which is the model unless they say otherwise.
    """
    ema = {} if training.ema is None else {"ema": training.ema}
    best = read_best(run_folder, training.keep_best) if training.keep_best else None
    if best is not None:
        reasons = {"best_by": best.metric, "value": best.value, **ema}
        return Choice(checkpoint=load_best(run_folder), reasons=reasons)
    newest = load_checkpoint(run_folder, last_step)
    steps = [step for step in checkpoint_steps(run_folder) if step <= last_step]
    # The start is no state of training.
    steps = [step for step in steps[-training.average_checkpoints :] if step > 0]
    if len(steps) <= 1:
        return Choice(checkpoint=newest, reasons=ema)
    mean = replace(newest, weights=_mean_weights(run_folder, steps), moments={})
    return Choice(checkpoint=mean, reasons={"averaged": steps})


def told_choice(figures: Mapping[str, Any]) -> str:
    """A choice for people, from ``metrics.json``."""
    step = f"step {figures['step']:,}"
    if "averaged" in figures:
        steps = figures["averaged"]
        return f"the mean of the {len(steps)} checkpoints of steps {steps[0]:,} to {steps[-1]:,}"
    state = f"the state after {step}"
    if "ema" in figures:
        state = f"a moving average of the weights after {step} (decay {figures['ema']:g})"
    if "best_by" in figures:
        return f"{state}, the best by {figures['best_by']} ({figures['value']:.4g})"
    return state


def _mean_weights(run_folder: Location, steps: Sequence[int]) -> Weights:
    """The mean of the weights of checkpoints, of which one is in memory at a time."""
    first, *others = steps
    total = load_checkpoint(run_folder, first).weights
    for step in others:
        for name, value in load_checkpoint(run_folder, step).weights.items():
            total[name] = total[name] + value
    return {name: value / len(steps) for name, value in total.items()}
