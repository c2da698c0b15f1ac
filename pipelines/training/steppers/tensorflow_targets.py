"""What a loss compares embeddings with, as TensorFlow is told of it before a graph is made."""

from __future__ import annotations

from typing import Any

from pipelines.lean_tensorflow import tensorflow as tf
from pipelines.losses.candidates import Picks
from pipelines.training.steppers.objectives import Objective

VECTORS = tf.TensorSpec([None, None], tf.float32)
_SCORES = {
    "scores": tf.TensorSpec([None], tf.float32),
    "candidate_scores": tf.TensorSpec([None, None], tf.float32),
}
_OWN, _EXCLUDED = tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 2], tf.int64)


def pick_specs(objective: Objective) -> Picks:
    """Of what anchors pick from."""
    return Picks(_OWN, _EXCLUDED, _vectors(objective) if objective.settings.uses_teacher else [])


def target_specs(objective: Objective) -> Any:
    """Of the targets of a granule; see :class:`pipelines.losses.targets.Targets`."""
    compared = {**_SCORES, "teacher": _vectors(objective)}
    return compared.get(objective.needs, pick_specs(objective))


def _vectors(objective: Objective) -> list[tf.TensorSpec]:
    return [VECTORS] * len(objective.sides)
