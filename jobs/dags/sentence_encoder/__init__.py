"""What the DAGs of this folder share; needs Airflow 2.11 or later, and nothing of `pipelines`."""
