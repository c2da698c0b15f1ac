"""What Spark gave a task beside its cores. Runs on an executor."""

from __future__ import annotations

from collections.abc import Sequence


def gpus_given_by_spark() -> Sequence[str]:
    """Addresses of the task's resource ``gpu``; none outside of a task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    resource = context.resources().get("gpu") if context is not None else None
    return resource.addresses if resource is not None else ()
