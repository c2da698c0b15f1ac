"""In which precision a worker multiplies matrices. Runs on an executor."""

from __future__ import annotations

from pipelines.settings import TrainingSettings


def with_precision(training: TrainingSettings, *, on_gpu: bool) -> TrainingSettings:
    """The settings with what ``precision: auto`` means here.

    Args:
        training: The settings.
        on_gpu: Whether the worker computes on a GPU, which is the faster in bf16; a CPU may have
            no instructions for it, and then takes many times as long.
    """
    if training.precision != "auto":
        return training
    return training.model_copy(update={"precision": "bf16" if on_gpu else "fp32"})
