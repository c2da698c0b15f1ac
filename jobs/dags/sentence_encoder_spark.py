"""### A sentence encoder, trained and promoted through spark-submit

prepare → train → evaluate → promote. A model that is worse than the one in service is not
promoted. See docs/airflow.md.
"""

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from sentence_encoder.chain import Stage, encoder_dag


def task(stage: Stage) -> SparkSubmitOperator:
    """The stage's job, submitted to the cluster of the connection `spark_default`."""
    return SparkSubmitOperator(
        task_id=stage.name,
        execution_timeout=stage.timeout,
        retries=stage.retries,
        name=f"sentence-encoder-{stage.name}",
        application=f"{{{{ job_file('{stage.name}') }}}}",
        application_args="{{ job_arguments(dag.dag_id, run_id, params) }}",
        conf="{{ deployment('conf', {}) }}",
    )


dag = encoder_dag("sentence_encoder_spark", task, schedule="@weekly", documentation=__doc__)
