"""### A sentence encoder, trained and promoted on Kubernetes

prepare → train → evaluate → promote → embed → publish, as applications of the Spark operator. A
model that is worse than the one in service is not promoted. See docs/guides/airflow.md.
"""

from typing import Any

from airflow.providers.cncf.kubernetes.operators.spark_kubernetes import SparkKubernetesOperator
from sentence_encoder.chain import Stage, encoder_dag
from sentence_encoder.deployment import job_file, merged, over, spark_conf
from sentence_encoder.outcomes import Job

SPARK_VERSION = "3.5.9"
"""The version in requirements.lock; the image needs the same."""

START_SECONDS = 1800
"""Time for the driver's pod to start: the cluster may add a node first."""


class SparkApplicationJob(Job, SparkKubernetesOperator):
    """A stage's job, as a SparkApplication in the cluster of `kubernetes_default`."""


def application(stage: str, arguments: list[str]) -> dict[str, Any]:
    """Return the SparkApplication of a stage, under the variable's field `kubernetes.spec`.

    Args:
        stage: Its name.
        arguments: Of the job.
    """
    spec = {
        "type": "Python",
        "pythonVersion": "3",
        "mode": "cluster",
        "sparkVersion": SPARK_VERSION,
        "mainApplicationFile": f"local://{job_file(stage)}",
        "arguments": arguments,
        "sparkConf": spark_conf(stage),
        # Airflow decides on another try.
        "restartPolicy": {"type": "Never"},
        "driver": {},
        "executor": {},
    }
    return {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": {},
        "spec": over(spec, merged("kubernetes", stage).get("spec", {})),
    }


def task(stage: Stage, **options: Any) -> SparkApplicationJob:
    """Return the operator of a stage."""
    return SparkApplicationJob(
        name=f"sentence-encoder-{stage.name}",
        namespace="{{ deployment('kubernetes', {}).get('namespace', 'default') }}",
        template_spec=f"{{{{ application('{stage.name}', job_arguments(ti, params)) }}}}",
        startup_timeout_seconds=START_SECONDS,
        # The events of a pod explain a failed start or a kill.
        log_events_on_failure=True,
        **options,
    )


dag = encoder_dag(
    "sentence_encoder_kubernetes",
    task,
    cron="@weekly",
    documentation=__doc__,
    macros={"application": application},
)
