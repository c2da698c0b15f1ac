"""### A sentence encoder, trained and promoted on Databricks

prepare → train → evaluate → promote. A model that is worse than the one in service is not
promoted. See docs/airflow.md.
"""

from airflow.providers.databricks.operators.databricks import DatabricksSubmitRunOperator
from sentence_encoder.chain import Stage, encoder_dag


def task(stage: Stage) -> DatabricksSubmitRunOperator:
    """The stage's job, as a one-time run in the workspace of `databricks_default`."""
    return DatabricksSubmitRunOperator(
        task_id=stage.name,
        execution_timeout=stage.timeout,
        retries=stage.retries,
        run_name=f"sentence-encoder-{stage.name}",
        timeout_seconds=int(stage.timeout.total_seconds()),
        spark_python_task={
            "python_file": f"{{{{ job_file('{stage.name}') }}}}",
            "parameters": "{{ job_arguments(dag.dag_id, run_id, params) }}",
        },
        json="{{ deployment('databricks', {}) }}",
    )


dag = encoder_dag("sentence_encoder_databricks", task, schedule="@weekly", documentation=__doc__)
