"""The worker, with a Keras that has not imported what it only draws or wraps. Runs on executors.

Matplotlib and scikit-learn take a quarter of the time that a worker needs to start. For Spark's
Python daemons alone: on the driver a user's own program may want what Keras does with them.
"""

from __future__ import annotations

from pipelines.quiet import import_without

with import_without("matplotlib"), import_without("sklearn"):
    import pipelines.engines.elephas.spark_model  # noqa: F401
