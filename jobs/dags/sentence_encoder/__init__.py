"""What the DAGs of this folder share; needs Airflow 3.3, and nothing of the package `pipelines`."""
