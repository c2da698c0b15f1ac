"""### A sentence encoder, trained and promoted on EMR on EC2

prepare → train → evaluate → promote → embed → publish, as steps of a cluster. A model that is worse
than the one in service is not promoted. See docs/guides/airflow.md.
"""

from typing import Any

from airflow.providers.amazon.aws.operators.emr import EmrAddStepsOperator
from sentence_encoder.chain import Stage, encoder_dag
from sentence_encoder.deployment import conf_options, job_file
from sentence_encoder.outcomes import Job

POLL_SECONDS = 30


class EmrStepJob(Job, EmrAddStepsOperator):
    """A stage's job, as a step of the cluster that the field `emr.cluster` names."""


def steps(stage: str, seconds: int, arguments: list[str]) -> list[dict[str, Any]]:
    """Return the step: spark-submit in client mode, with the exit code of the job.

    Args:
        stage: Its name.
        seconds: The deadline of the job: EMR ends no step by itself.
        arguments: Of the job.
    """
    command = ["timeout", str(seconds), "spark-submit", "--deploy-mode", "client"]
    return [
        {
            "Name": f"sentence-encoder-{stage}",
            # Airflow decides on another try.
            "ActionOnFailure": "CONTINUE",
            "HadoopJarStep": {
                "Jar": "command-runner.jar",
                "Args": [*command, *conf_options(stage), job_file(stage), *arguments],
            },
        }
    ]


def task(stage: Stage, **options: Any) -> EmrStepJob:
    """Return the operator of a stage."""
    seconds = int(stage.timeout.total_seconds())
    return EmrStepJob(
        job_flow_id="{{ deployment('emr', {}).get('cluster', '') }}",
        steps=f"{{{{ emr_steps('{stage.name}', {seconds}, job_arguments(ti, params)) }}}}",
        wait_for_completion=True,
        waiter_delay=POLL_SECONDS,
        # A step may wait for an earlier one; `execution_timeout` ends the task.
        waiter_max_attempts=2 * seconds // POLL_SECONDS,
        **options,
    )


dag = encoder_dag(
    "sentence_encoder_emr",
    task,
    cron="@weekly",
    documentation=__doc__,
    macros={"emr_steps": steps},
)
