"""### A sentence encoder, trained and promoted on EMR Serverless

prepare → train → evaluate → promote → embed → publish, as job runs of an application. A model that
is worse than the one in service is not promoted. See docs/guides/airflow.md.
"""

from typing import Any

from airflow.providers.amazon.aws.operators.emr import EmrServerlessStartJobOperator
from sentence_encoder.chain import Stage, encoder_dag
from sentence_encoder.outcomes import Job

POLL_SECONDS = 30


class EmrServerlessJob(Job, EmrServerlessStartJobOperator):
    """A stage's job, as a job run of the application that `emr_serverless.application` names."""


def task(stage: Stage, **options: Any) -> EmrServerlessJob:
    """Return the operator of a stage."""
    seconds = int(stage.timeout.total_seconds())
    return EmrServerlessJob(
        name=f"sentence-encoder-{stage.name}",
        application_id="{{ deployment('emr_serverless', {}).get('application', '') }}",
        execution_role_arn="{{ deployment('emr_serverless', {}).get('role', '') }}",
        job_driver={
            "sparkSubmit": {
                "entryPoint": f"{{{{ job_file('{stage.name}') }}}}",
                "entryPointArguments": "{{ job_arguments(ti, params) }}",
                "sparkSubmitParameters": f"{{{{ conf_line('{stage.name}') }}}}",
            }
        },
        configuration_overrides=(
            f"{{{{ merged('emr_serverless', '{stage.name}').get('configuration') or None }}}}"
        ),
        # EMR ends the job itself, even after the loss of Airflow's worker.
        config={"executionTimeoutMinutes": seconds // 60},
        waiter_delay=POLL_SECONDS,
        waiter_max_attempts=2 * seconds // POLL_SECONDS,
        **options,
    )


dag = encoder_dag("sentence_encoder_emr_serverless", task, cron="@weekly", documentation=__doc__)
