"""The chain prepare → train → evaluate → promote, for any operator that runs its jobs.

A run of the DAG has one run folder, the same at every try, which holds the state: a training that
is tried again goes on from its newest checkpoint, a preparation keeps the stages that are done.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseOperator, Param, Variable, chain
from airflow.sdk.exceptions import AirflowFailException

from sentence_encoder.outcomes import VARIABLE, Alert, RetryWhatMayPass


@dataclass(frozen=True)
class Stage:
    """A job of the chain.

    Attributes:
        name: Of the task, and of the script in ``jobs/``.
        timeout: Of one try; after it the job is ended and tried again.
        retries: Tries after the first.
    """

    name: str
    timeout: timedelta
    retries: int = 2


STAGES = (
    Stage("prepare", timedelta(hours=12)),
    Stage("train", timedelta(hours=24), retries=5),
    Stage("evaluate", timedelta(hours=4)),
    Stage("promote", timedelta(hours=2)),
)

RETRY_DELAY = timedelta(minutes=5)
WAIT = timedelta(minutes=30)
"""Time for the scheduler and a free slot, before each try."""


def longest_run() -> timedelta:
    """How long a run takes if every task needs all its tries, and each try all its time."""
    tries = sum(stage.retries + 1 for stage in STAGES)
    at_work = sum((stage.timeout * (stage.retries + 1) for stage in STAGES), timedelta())
    return at_work + tries * (RETRY_DELAY + WAIT)


PARAMS = {
    "config": Param(
        None,
        type=["null", "string"],
        description="YAML file of the job; by default that of the variable.",
    ),
    "run": Param(
        None,
        type=["null", "string"],
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Name of the run folder; follows from the DAG run unless set.",
    ),
    "overrides": Param(
        [],
        type="array",
        items={"type": "string", "pattern": r"^(?!(run\.|training\.resume))[^=\s]+="},
        description="KEY=VALUE over the file, for example training.max_steps=1000.",
    ),
}

DEFAULTS = {
    "owner": "sentence-pipelines",
    "retry_delay": RETRY_DELAY,
    "retry_policy": RetryWhatMayPass(),
    "on_failure_callback": Alert(),
}


def encoder_dag(
    dag_id: str,
    task: Callable[[Stage], BaseOperator],
    *,
    schedule: str | None,
    documentation: str | None,
) -> DAG:
    """A DAG whose tasks are the stages, one after the other.

    Args:
        dag_id: Its name, which the run folders are grouped by.
        task: Makes the operator of a stage; its templates may call :data:`MACROS`.
        schedule: A cron expression or preset; None: it is started by hand.
        documentation: Markdown.
    """
    with DAG(
        dag_id,
        schedule=schedule,
        start_date=datetime(2026, 1, 1),
        # Runs share the prepared folder and the model in service.
        catchup=False,
        max_active_runs=1,
        dagrun_timeout=longest_run(),
        params=PARAMS,
        default_args=DEFAULTS,
        tags=["sentence-encoder"],
        doc_md=documentation,
        user_defined_macros=MACROS,
        render_template_as_native_obj=True,
    ) as dag:
        chain(*map(task, STAGES))
    return dag


def deployment(key: str, default: Any = None) -> Any:
    """A field of the variable."""
    return Variable.get(VARIABLE, default={}, deserialize_json=True).get(key, default)


def job_file(stage: str) -> str:
    """The script of a stage: in the folder `jobs` of the variable, or in this checkout."""
    return f"{deployment('jobs') or Path(__file__).resolve().parents[2]}/{stage}.py"


def job_arguments(dag_id: str, run_id: str, params: Mapping[str, Any]) -> list[str]:
    """The command line of every job of a run.

    Raises:
        AirflowFailException: The variable does not say where the run folders are, or neither it
            nor the run says which file the settings are in.
    """
    config, runs = params["config"] or deployment("config"), deployment("runs")
    for name, value in (("config", config), ("runs", runs)):
        if not value:
            raise AirflowFailException(f"the Airflow variable `{VARIABLE}` has no field `{name}`")
    settings = [
        *deployment("overrides", []),
        *params["overrides"],
        f"run.folder={runs}/{dag_id}/{params['run'] or run_name(run_id)}",
        "training.resume=true",
    ]
    return ["--config", config, *(part for value in settings for part in ("--set", value))]


def run_name(run_id: str) -> str:
    """A folder name of a DAG run's id, which is unique within its DAG."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", run_id)


MACROS = {"job_file": job_file, "job_arguments": job_arguments, "deployment": deployment}
"""What templates call; the variable is read when a task runs, never while a file is parsed."""
