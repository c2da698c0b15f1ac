"""The engines. A new one is one file, and one line in :data:`pipelines.catalog.ENGINES`.

The file has a class that derives from :class:`~pipelines.engines.spark_engine.SparkEngine`, or
without Spark from :class:`~pipelines.engines.base.Engine`. The overview, the generated page, the
checks and the contract tests follow from its declarations.
"""
