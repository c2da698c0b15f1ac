"""What the evaluations give for files and folders, as a job would ask for them."""

from typing import Any

from pipelines.evaluation.stage import evaluate
from pipelines.settings.load import parse


def measured_on(spark, model, **evaluation: Any) -> dict[str, dict[str, float]]:
    """The figures of a model on the sets that settings of the section `evaluation` name."""
    section = {"retrieval": False, "geometry": False} | evaluation
    return evaluate(spark, parse({"evaluation": section}), model)
