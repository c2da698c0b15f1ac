"""Runs in Airflow's own environment, for the tests: answers what it is asked by lines of JSON."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

XCOMS = ("outcome", "return_value")
TRACKED = ("yarn_track_via_rm_api", "track_driver_via_k8s_api")


def parsed_dags() -> Any:
    """All DAG files, read as Airflow's DAG processor reads them."""
    from airflow.settings import DAGS_FOLDER

    folder = Path(DAGS_FOLDER)
    try:
        from airflow.dag_processing.dagbag import BundleDagBag
    except ImportError:  # Airflow 2
        from airflow.models.dagbag import DagBag

        return DagBag(dag_folder=folder, include_examples=False)
    return BundleDagBag(dag_folder=folder, bundle_path=folder, bundle_name="dags-folder")


def describe(messages: str) -> dict[str, Any]:
    """What the DAG files come to, what was imported for it, and what is tried again.

    Args:
        messages: Of errors, a JSON list, to ask what becomes of a task that they end.
    """
    read = watch_variables()
    bag = parsed_dags()
    described = {
        "errors": {str(path): error for path, error in bag.import_errors.items()},
        "dags": {dag_id: describe_dag(dag) for dag_id, dag in bag.dags.items()},
        "modules": sorted({name.partition(".")[0] for name in sys.modules}),
        "variables_read": list(read),
    }
    from sentence_encoder.deployment import TRACK, TRACKING, tracking
    from sentence_encoder.outcomes import verdict

    tracked = {}
    for name in TRACKING:
        os.environ[TRACK] = name
        tracked[name] = [getattr(operator_tracked_by(tracking()), f"_{key}") for key in TRACKED]
    del os.environ[TRACK]
    verdicts = [verdict(RuntimeError(message), None) for message in json.loads(messages)]
    kinds = [type(found).__name__ for found in verdicts]
    return described | {"verdicts": kinds, "tracked": tracked}


def operator_tracked_by(options: Any) -> Any:
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

    return SparkSubmitOperator(task_id="job", **options)


def describe_dag(dag: Any) -> dict[str, Any]:
    return {
        "catchup": dag.catchup,
        "max_active_runs": dag.max_active_runs,
        "start": dag.start_date.isoformat(),
        "tags": sorted(dag.tags),
        "doc": dag.doc_md,
        "timeout": dag.dagrun_timeout.total_seconds(),
        "params": sorted(dag.params),
        "schedule": describe_schedule(dag.timetable),
        "tasks": {
            task.task_id: {
                "operator": type(task).__name__,
                "owner": task.owner,
                "retries": task.retries,
                "retry_delay": task.retry_delay.total_seconds(),
                "timeout": task.execution_timeout and task.execution_timeout.total_seconds(),
                "alert": [type(found).__name__ for found in as_list(task.on_failure_callback)],
                "after": sorted(task.upstream_task_ids),
                "rule": str(getattr(task.trigger_rule, "value", task.trigger_rule)),
                "is_teardown": task.is_teardown,
                "outlets": [
                    outlet.uri if hasattr(outlet, "uri") else outlet.name for outlet in task.outlets
                ],
                "pool": task.pool,
                "deferrable": getattr(task, "deferrable", False),
                "doc": task.doc_md,
            }
            for task in dag.tasks
        },
    }


def describe_schedule(timetable: Any) -> list[str]:
    """The cron expression and the assets."""
    condition = getattr(timetable, "asset_condition", None) or timetable.dataset_condition
    parts = getattr(condition, "objects", [condition])
    return [timetable.timetable._expression, *(part.uri for part in parts)]


def as_list(value: Any) -> list:
    return list(value) if isinstance(value, list | tuple) else [value]


def run(*requests: str) -> dict[str, Any]:
    """Runs DAGs without a scheduler; their tasks and waits take no longer than they must.

    Args:
        requests: Objects in JSON: `dag`, `conf` (its parameters) and `skip`, which matches tasks
            that count as done.
    """
    from airflow import __version__

    bag = parsed_dags()
    if __version__.startswith("2."):
        bag.sync_to_db()  # In Airflow 3 a test of a DAG does it.
    return {"runs": [run_one(bag, **json.loads(request)) for request in requests]}


def run_one(bag: Any, dag: str, conf: dict[str, Any], skip: str | None = None) -> dict[str, Any]:
    found = bag.dags[dag]
    for task in found.tasks:
        task.retry_delay = timedelta(seconds=1)
        if hasattr(task, "waiter_delay"):
            task.waiter_delay = 1
    done = found.test(run_conf=conf, mark_success_pattern=skip or None)
    tasks = done.get_task_instances()
    return {
        "state": str(getattr(done.state, "value", done.state)),
        "tasks": {one.task_id: [str(one.state), one.try_number] for one in tasks},
        "xcom": {one.task_id: xcoms(one) for one in tasks},
        "events": asset_events(),
    }


def xcoms(task: Any) -> dict[str, Any]:
    """What a task has handed on."""
    found = {key: task.xcom_pull(task_ids=task.task_id, key=key) for key in XCOMS}
    return {key: value for key, value in found.items() if value is not None}


def asset_events() -> list[dict[str, Any]]:
    """All updates of assets, the oldest first."""
    from airflow.utils.session import create_session

    try:
        from airflow.models.asset import AssetEvent as Event
        from airflow.models.asset import AssetModel as Model

        link = "asset_id"
    except ImportError:  # Airflow 2
        from airflow.models.dataset import DatasetEvent as Event
        from airflow.models.dataset import DatasetModel as Model

        link = "dataset_id"
    with create_session() as session:
        rows = session.query(Model.uri, Event.source_task_id, Event.source_dag_id, Event.extra)
        rows = rows.join(Event, getattr(Event, link) == Model.id).order_by(Event.id)
        return [
            {"uri": uri, "task": task, "dag": dag, "extra": extra} for uri, task, dag, extra in rows
        ]


def watch_variables() -> list[str]:
    """Notes which variables are asked for: none may be, while DAG files are parsed."""
    from airflow.providers.common.compat.sdk import Variable

    read: list[str] = []
    get = Variable.get

    def noted(key: str, *args: Any, **kwargs: Any) -> Any:
        read.append(key)
        return get(key, *args, **kwargs)

    Variable.get = noted
    return read


COMMANDS = {"describe": describe, "run": run}


def main() -> None:
    """Answers questions until there are no more; each names the file for its answer."""
    from airflow.utils.db import upgradedb

    # Here, since the command `db migrate` would import all of Airflow once more.
    upgradedb()
    # Jobs that are started here must find none of them on standard input.
    questions = os.fdopen(os.dup(sys.stdin.fileno()))
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    for line in questions:
        question = json.loads(line)
        os.environ.update(question["variables"])
        answer = COMMANDS[question["command"]](*question["arguments"])
        sys.stdout.flush()
        sys.stderr.flush()
        file = Path(question["answer"])
        file.with_suffix(".part").write_text(json.dumps(answer))
        file.with_suffix(".part").rename(file)


if __name__ == "__main__":
    main()
