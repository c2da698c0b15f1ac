"""What can be measured of a model, in the order in which it is measured and shown.

A new evaluation is a file with a :class:`pipelines.evaluation.base.Evaluation`, and a line here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.registry import Registry

if TYPE_CHECKING:
    from pipelines.evaluation.base import Evaluation

EVALUATIONS: Registry[Evaluation] = Registry(
    kind="evaluation",
    key="evaluation",
    entries={
        "retrieval": "pipelines.evaluation.retrieval:EVALUATION",
        "geometry": "pipelines.evaluation.geometry:EVALUATION",
        "similarity": "pipelines.evaluation.similarity:EVALUATION",
        "classification": "pipelines.evaluation.classification:EVALUATION",
        "retrieval_sets": "pipelines.evaluation.beir:EVALUATION",
    },
)
