"""### A sentence encoder, trained and promoted on Databricks

prepare → train → evaluate → promote → embed → publish. A model that is worse than the one in
service is not promoted. See docs/guides/airflow.md.
"""

from typing import Any

from airflow.providers.databricks.operators.databricks import DatabricksSubmitRunOperator
from sentence_encoder.chain import Stage, encoder_dag
from sentence_encoder.outcomes import Job


class DatabricksJob(Job, DatabricksSubmitRunOperator):
    """A stage's job, as a one-time run in the workspace of `databricks_default`."""


def task(stage: Stage, **options: Any) -> DatabricksJob:
    """Return the operator of a stage; during the run, it waits in the triggerer."""
    return DatabricksJob(
        run_name=f"sentence-encoder-{stage.name}",
        timeout_seconds=int(stage.timeout.total_seconds()),
        spark_python_task={
            "python_file": f"{{{{ job_file('{stage.name}') }}}}",
            "parameters": "{{ job_arguments(ti, params) }}",
        },
        json=f"{{{{ merged('databricks', '{stage.name}') }}}}",
        deferrable=True,
        **options,
    )


dag = encoder_dag("sentence_encoder_databricks", task, cron="@weekly", documentation=__doc__)
