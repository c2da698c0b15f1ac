"""The worker, with a Keras that skips its imports for drawing and wrapping. Runs on executors.

Matplotlib and scikit-learn take a quarter of a worker's start time. For Spark's Python daemons
alone: on the driver a user's program may need what Keras does with them.
"""

from __future__ import annotations

from pipelines.quiet import import_without

with import_without("matplotlib"), import_without("sklearn"):
    import pipelines.engines.elephas.spark_model  # noqa: F401
