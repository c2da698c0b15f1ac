"""The common parts of these DAGs: they need Airflow 2.11 or later, and no `pipelines`."""
