"""### A sentence encoder, trained and promoted through spark-submit

prepare → train → evaluate → promote → embed → publish. A model that is worse than the one in
service is not promoted. See docs/guides/airflow.md.
"""

from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from sentence_encoder.chain import Stage, encoder_dag
from sentence_encoder.deployment import tracking
from sentence_encoder.outcomes import Job


class SparkSubmitJob(Job, SparkSubmitOperator):
    """A stage's job, submitted to the cluster of the connection `spark_default`."""


def task(stage: Stage, **options: Any) -> SparkSubmitJob:
    """Return the operator of a stage."""
    return SparkSubmitJob(
        name=f"sentence-encoder-{stage.name}",
        application=f"{{{{ job_file('{stage.name}') }}}}",
        application_args="{{ job_arguments(ti, params) }}",
        conf=f"{{{{ spark_conf('{stage.name}') }}}}",
        **tracking(),
        **options,
    )


dag = encoder_dag("sentence_encoder_spark", task, cron="@weekly", documentation=__doc__)
