"""The chain prepare → train → evaluate → promote → embed → publish, and clean, for any operator.

A run of the DAG has one run folder for all tries. It holds the state: another try of a training
resumes from the newest checkpoint, and one of a preparation keeps the finished stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sentence_encoder.airflow_versions import (
    DAG,
    Asset,
    AssetAlias,
    BaseOperator,
    Param,
    chain,
    cron_or_assets,
)
from sentence_encoder.deployment import MACROS, OVERRIDE, pool
from sentence_encoder.outcomes import Alert


@dataclass(frozen=True)
class Stage:
    """A job of the chain.

    Attributes:
        name: Of the task, and of the script in ``jobs/``.
        timeout: Of one try; then Airflow ends the job and tries again.
        says: The text on the page of the task.
        retries: Tries after the first.
        rule: The condition of its start, by the end of the stage before it.
        makes: Its product, the last part of the asset's address.
        tidies: Whether it runs in any case, and decides nothing about the run.
    """

    name: str
    timeout: timedelta
    says: str
    retries: int = 2
    rule: str = "all_success"
    makes: str | None = None
    tidies: bool = False


STAGES = (
    Stage(
        "prepare",
        timedelta(hours=12),
        "Text to lanes. Stages with unchanged inputs stay.",
    ),
    Stage(
        "train",
        timedelta(hours=24),
        "Lanes to a model; another try resumes from the newest checkpoint. Skipped if the model "
        "in service has the same lanes and settings.",
        retries=5,
    ),
    Stage("evaluate", timedelta(hours=4), "Figures before and after the training, and a report."),
    Stage(
        "promote",
        timedelta(hours=2),
        "The model into service, unless it is worse than the current one: exit code 3.",
        makes="model",
    ),
    Stage(
        "embed",
        timedelta(hours=12),
        "A table with vectors of the model in service. Skipped if it is up to date, or if the "
        "variable has no field `stages.embed`.",
        # A table may have new rows for the same model.
        rule="none_failed",
        makes="vectors",
    ),
    Stage(
        "publish",
        timedelta(hours=12),
        "The changes of the table into a vector store. Skipped if the store is up to date, or if "
        "the variable has no field `stages.publish`.",
        # An earlier run may have left the store behind the table.
        rule="none_failed",
        makes="store",
    ),
    Stage(
        "clean",
        timedelta(hours=1),
        "Removes the folders of old runs; `run.keep` says how many stay.",
        tidies=True,
    ),
)

RETRY_DELAY = timedelta(minutes=5)
WAIT = timedelta(minutes=30)
"""Time for the scheduler and a free slot, before each try."""

ASSETS = "x-sentence-encoder:/"
"""Before the address of an asset; Airflow leaves schemes beginning with `x-` to users."""
CORPUS = Asset(uri=f"{ASSETS}/corpus")
"""An outlet for the tasks that write the texts: each update starts the DAGs."""


def asset(dag_id: str, name: str) -> Asset:
    """Return a product of a DAG: its `model` in service, its table of `vectors` or its `store`."""
    return Asset(uri=f"{ASSETS}/{dag_id}/{name}")


def outlets(dag_id: str, stage: Stage) -> list[Asset | AssetAlias]:
    """Return the products of a stage; a store also has an asset of its own name, once known."""
    if stage.makes is None:
        return []
    named = [AssetAlias(name=f"{ASSETS}/{dag_id}")] if stage.makes == "store" else []
    return [asset(dag_id, stage.makes), *named]


def longest_run() -> timedelta:
    """Return the longest time of a run: all tries of every task, each to its deadline."""
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
        description="Name of the run folder; by default from the id of the DAG run.",
    ),
    "overrides": Param(
        [],
        type="array",
        items={"type": "string", "pattern": OVERRIDE},
        description="KEY=VALUE over the file, for example training.max_steps=1000.",
    ),
    "force": Param(
        False,
        type="boolean",
        description="Train and embed again, even if nothing is new.",
    ),
}

DEFAULTS = {
    "owner": "sentence-pipelines",
    "retry_delay": RETRY_DELAY,
    "on_failure_callback": Alert(),
}


def encoder_dag(
    dag_id: str,
    task: Callable[..., BaseOperator],
    *,
    cron: str,
    documentation: str | None,
    macros: Mapping[str, Callable[..., Any]] | None = None,
) -> DAG:
    """Return a DAG with the stages as tasks, one after the other.

    Args:
        dag_id: Its name, and the folder of its run folders.
        task: Makes the operator of a stage, with the common options of all operators; its
            templates may call :data:`~sentence_encoder.deployment.MACROS`.
        cron: Its schedule or a preset, beside the updates of :data:`CORPUS`.
        documentation: Markdown.
        macros: Further functions for the templates of these operators.
    """
    with DAG(
        dag_id,
        schedule=cron_or_assets(cron, [CORPUS]),
        start_date=datetime(2026, 1, 1),
        # Runs share the prepared folder and the model in service.
        catchup=False,
        max_active_runs=1,
        dagrun_timeout=longest_run(),
        params=PARAMS,
        default_args=DEFAULTS,
        tags=["sentence-encoder"],
        doc_md=documentation,
        user_defined_macros={**MACROS, **(macros or {})},
        render_template_as_native_obj=True,
    ) as dag:
        chain(*(_placed(task(stage, **_options(dag_id, stage)), stage) for stage in STAGES))
    return dag


def _options(dag_id: str, stage: Stage) -> dict[str, Any]:
    """Return the common options of all operators."""
    return {
        "task_id": stage.name,
        "execution_timeout": stage.timeout,
        "retries": stage.retries,
        "trigger_rule": stage.rule,
        "outlets": outlets(dag_id, stage),
        "doc_md": stage.says,
        **({"pool": place} if (place := pool(stage.name)) else {}),
    }


def _placed(task: BaseOperator, stage: Stage) -> BaseOperator:
    # The last task before a teardown decides the state of a run.
    return task.as_teardown(on_failure_fail_dagrun=False) if stage.tidies else task
