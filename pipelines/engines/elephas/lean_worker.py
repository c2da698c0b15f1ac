"""The worker, without Keras's imports for drawing and wrapping. Runs on executors.

Matplotlib and scikit-learn take a quarter of a worker's start time. Only for Spark's Python
daemons: on the driver a user's program may need Keras with both.
"""

from __future__ import annotations

from pipelines.quiet import import_without

with import_without("matplotlib"), import_without("sklearn"):
    import pipelines.engines.elephas.spark_model  # noqa: F401
