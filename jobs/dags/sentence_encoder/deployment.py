"""The settings of a deployment: an Airflow variable, and the pools.

A task reads the variable when it runs. Airflow's settings at parse time are variables of the
environment.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentence_encoder.airflow_versions import (
    AirflowFailException,
    AirflowSkipException,
    json_variable,
)

VARIABLE = "sentence_encoder"
"""The Airflow variable, JSON, with the settings of a deployment."""

POOL = "SENTENCE_ENCODER_POOL"
"""Variable of the environment: the pool of all tasks; `..._TRAIN` behind it, that of one stage."""

TRACK = "SENTENCE_ENCODER_TRACK"
"""Variable of the environment: the source of a driver's state in cluster mode."""

TRACKING: Mapping[str, Mapping[str, bool]] = {
    "spark-submit": {},
    "yarn": {"yarn_track_via_rm_api": True},
    "kubernetes": {"track_driver_via_k8s_api": True},
}
"""By its value, the options of SparkSubmitOperator."""

OPTIONAL = ("embed", "publish")
"""Stages that need an entry in the field `stages`."""

DEFAULTS = {"embed": ("embedding.served=true", "embedding.overwrite=true")}
"""Settings of a stage under those of the deployment."""

FOLLOWS = {"publish": "embed"}
"""A stage with the overrides of another under its own: both have the same table."""


def pool(stage: str) -> str | None:
    """Return the pool of a stage; None is Airflow's default."""
    return os.environ.get(f"{POOL}_{stage.upper()}", os.environ.get(POOL))


def tracking() -> Mapping[str, bool]:
    """Return the options to follow drivers in cluster deploy mode.

    Raises:
        ValueError: The variable of the environment has another value.
    """
    name = os.environ.get(TRACK, "spark-submit")
    if name not in TRACKING:
        raise ValueError(f"{TRACK} is `{name}`. Choose one of {', '.join(TRACKING)}.")
    return TRACKING[name]


def deployment(key: str, default: Any = None) -> Any:
    """Return a field of the variable."""
    return json_variable(VARIABLE).get(key, default)


def merged(key: str, stage: str) -> dict[str, Any]:
    """Return a field with an object, overridden by the same field of `stages.STAGE`."""
    base: Mapping[str, Any] = deployment(key, {})
    of_stage: Mapping[str, Any] = deployment("stages", {}).get(stage, {})
    return over(base, of_stage.get(key, {}))


def over(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object overridden by another, field by field, nested objects included."""
    found = dict(base)
    for key, value in changes.items():
        below = found.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            found[key] = over(below, value)
        else:
            found[key] = value
    return found


def skip_unless_wanted(stage: str) -> None:
    """Skip a stage without an entry in the deployment.

    Raises:
        AirflowSkipException: The variable does not name it.
    """
    if stage in OPTIONAL and stage not in deployment("stages", {}):
        raise AirflowSkipException(
            f"the Airflow variable `{VARIABLE}` has no field `stages.{stage}`"
        )


def job_file(stage: str) -> str:
    """Return the script of a stage: in the folder `jobs` of the variable, or in this checkout."""
    return f"{deployment('jobs') or Path(__file__).resolve().parents[2]}/{stage}.py"


def job_arguments(ti: Any, params: Mapping[str, Any]) -> list[str]:
    """Return the command line of a stage's job.

    Args:
        ti: The task instance.
        params: Of the run of the DAG.

    Raises:
        AirflowFailException: The variable has no folder of runs, neither it nor the run names the
            file of settings, or a run may not set an override.
    """
    config, folder = params["config"] or deployment("config"), run_folder(ti, params)
    if not config:
        raise AirflowFailException(f"the Airflow variable `{VARIABLE}` has no field `config`")
    stage = ti.task_id
    stages: Mapping[str, Any] = deployment("stages", {})
    for value in params["overrides"]:
        if not re.match(OVERRIDE, value):
            raise AirflowFailException(f"overrides: a run of the DAG may not set `{value}`")
    settings = [
        *DEFAULTS.get(stage, ()),
        *deployment("overrides", []),
        *stages.get(FOLLOWS.get(stage, ""), {}).get("overrides", []),
        *stages.get(stage, {}).get("overrides", []),
        *params["overrides"],
        f"run.folder={folder}",
        # Another try finds its own unfinished work.
        "training.resume=true",
        f"run.only_new={'false' if params['force'] else 'true'}",
    ]
    outcome = f"{folder}{OUTCOMES}/{outcome_name(stage, ti.try_number)}"
    options = ["--config", config, *(part for value in settings for part in ("--set", value))]
    return [*options, "--outcome", outcome]


OVERRIDE = r"^(?!(run|training)=|run\.|training\.resume)[^=\s]+="
"""The overrides of a run: neither its folder nor `training.resume`, nor the sections of both."""

# A folder's name has 255 bytes, and a digest and the name of the outcomes follow.
_LONGEST_NAME = 200

OUTCOMES = ".outcomes"
"""Suffix of a run folder's name: the folder with the outcomes of its jobs.

The job `clean` removes both."""


def outcome_name(stage: str, try_number: int) -> str:
    """Return the name of the file with the outcome of one try."""
    return f"{stage}-{try_number}.json"


def run_folder(ti: Any, params: Mapping[str, Any], field: str = "runs") -> str:
    """Return the run folder of a run of a DAG.

    Args:
        ti: Any of its task instances.
        params: Of the run of the DAG.
        field: Of the variable: `runs`, or `runs_address`, the address for Airflow's workers.

    Raises:
        AirflowFailException: The variable has no folder of runs.
    """
    runs = deployment(field) or deployment("runs")
    if not runs:
        raise AirflowFailException(f"the Airflow variable `{VARIABLE}` has no field `runs`")
    return f"{str(runs).rstrip('/')}/{ti.dag_id}/{params['run'] or run_name(ti.run_id)}"


def run_name(run_id: str) -> str:
    """Return a folder name for a DAG run's id, unique within its DAG.

    A digest distinguishes ids with different characters that no folder name may have. It also rules
    out `..`, the folder above, and the folders of outcomes.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", run_id)[:_LONGEST_NAME]
    if name == run_id and name.strip(".") and not name.endswith(OUTCOMES):
        return name
    return f"{name}-{hashlib.sha256(run_id.encode()).hexdigest()[:8]}"


def spark_conf(stage: str) -> dict[str, str]:
    """Return Spark's conf for a stage: the field `conf`, overridden by that of the stage."""
    # JSON has numbers and booleans, and a conf has strings.
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in merged("conf", stage).items()
    }


def conf_options(stage: str) -> list[str]:
    """Return the same as options of spark-submit."""
    return [
        part for key, value in spark_conf(stage).items() for part in ("--conf", f"{key}={value}")
    ]


def conf_line(stage: str) -> str:
    """Return the same in one line, quoted for a shell."""
    return shlex.join(conf_options(stage))


MACROS = {
    "conf_line": conf_line,
    "deployment": deployment,
    "job_arguments": job_arguments,
    "job_file": job_file,
    "merged": merged,
    "spark_conf": spark_conf,
}
"""The functions for templates: they read the variable when a task runs, never at parse time."""
