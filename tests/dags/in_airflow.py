"""Runs in Airflow's own environment, for the tests: a command, and one JSON line as its answer."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any


def parsed_dags() -> Any:
    """All DAG files, read as Airflow's DAG processor reads them."""
    from airflow.dag_processing.dagbag import BundleDagBag
    from airflow.settings import DAGS_FOLDER

    folder = Path(DAGS_FOLDER)
    return BundleDagBag(dag_folder=folder, bundle_path=folder, bundle_name="dags-folder")


def describe(messages: str) -> dict[str, Any]:
    """What the DAG files come to, what was imported for it, and what is tried again.

    Args:
        messages: Of errors, a JSON list, to ask the tasks' retry policy about.
    """
    watch_variables()
    bag = parsed_dags()
    described = {
        "errors": {str(path): error for path, error in bag.import_errors.items()},
        "dags": {dag_id: describe_dag(dag) for dag_id, dag in bag.dags.items()},
        "modules": sorted({name.partition(".")[0] for name in sys.modules}),
        "variables_read": VARIABLES_READ,
    }
    return described | {"decisions": decide(bag, json.loads(messages))}


def describe_dag(dag: Any) -> dict[str, Any]:
    return {
        "catchup": dag.catchup,
        "max_active_runs": dag.max_active_runs,
        "start": dag.start_date.isoformat(),
        "tags": sorted(dag.tags),
        "doc": dag.doc_md,
        "timeout": dag.dagrun_timeout.total_seconds(),
        "params": sorted(dag.params),
        "tasks": {
            task.task_id: {
                "operator": type(task).__name__,
                "owner": task.owner,
                "retries": task.retries,
                "retry_delay": task.retry_delay.total_seconds(),
                "retry_policy": type(task.retry_policy).__name__,
                "timeout": task.execution_timeout and task.execution_timeout.total_seconds(),
                "alert": [type(found).__name__ for found in as_list(task.on_failure_callback)],
                "after": sorted(task.upstream_task_ids),
                "rule": str(task.trigger_rule.value),
            }
            for task in dag.tasks
        },
    }


def as_list(value: Any) -> list:
    return list(value) if isinstance(value, list | tuple) else [value]


def decide(bag: Any, messages: list[str]) -> list[str]:
    """What the tasks' retry policy says of errors with such messages."""
    policy = bag.dags["sentence_encoder_spark"].get_task("promote").retry_policy
    errors = map(RuntimeError, messages)
    return [policy.evaluate(error, 1, 3).action.value for error in errors]


def run(dag_id: str, conf: str, skip: str = "") -> dict[str, Any]:
    """Runs a DAG without a scheduler; its tasks wait a second before another try.

    Args:
        dag_id: Which.
        conf: The parameters, JSON.
        skip: Matches tasks that count as done.
    """
    dag = parsed_dags().dags[dag_id]
    for task in dag.tasks:
        task.retry_delay = timedelta(seconds=1)
    done = dag.test(run_conf=json.loads(conf), mark_success_pattern=skip or None)
    return {
        "state": str(done.state.value),
        "tasks": {
            found.task_id: [str(found.state), found.try_number]
            for found in done.get_task_instances()
        },
    }


VARIABLES_READ: list[str] = []


def watch_variables() -> None:
    """Notes which variables are asked for: none may be, while DAG files are parsed."""
    from airflow.sdk import Variable

    get = Variable.get

    def noted(key: str, *args: Any, **kwargs: Any) -> Any:
        VARIABLES_READ.append(key)
        return get(key, *args, **kwargs)

    Variable.get = noted


COMMANDS = {"describe": describe, "run": run}


def main() -> None:
    command, *arguments = sys.argv[1:]
    print(f"\n{json.dumps(COMMANDS[command](*arguments))}")


if __name__ == "__main__":
    main()
