"""What differs from one deployment to the next: an Airflow variable, and the pools.

The variable is read when a task runs. What Airflow must know while it parses the files are
variables of the environment.
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
"""The Airflow variable, JSON, that holds the settings of a deployment."""

POOL = "SENTENCE_ENCODER_POOL"
"""Variable of the environment: the pool of all tasks; `..._TRAIN` behind it, that of one stage."""

TRACK = "SENTENCE_ENCODER_TRACK"
"""Variable of the environment: who is asked about a driver that is left to a cluster."""

TRACKING: Mapping[str, Mapping[str, bool]] = {
    "spark-submit": {},
    "yarn": {"yarn_track_via_rm_api": True},
    "kubernetes": {"track_driver_via_k8s_api": True},
}
"""By its value, the options of SparkSubmitOperator."""

OPTIONAL = ("embed",)
"""Stages that are skipped unless the field `stages` has them."""

DEFAULTS = {"embed": ("embedding.served=true", "embedding.overwrite=true")}
"""Settings of a stage that a deployment may change."""


def pool(stage: str) -> str | None:
    """The pool of a stage; None is Airflow's own."""
    return os.environ.get(f"{POOL}_{stage.upper()}", os.environ.get(POOL))


def tracking() -> Mapping[str, bool]:
    """How drivers are followed in cluster deploy mode.

    Raises:
        ValueError: The variable of the environment has another value.
    """
    name = os.environ.get(TRACK, "spark-submit")
    if name not in TRACKING:
        raise ValueError(f"{TRACK} is `{name}`, take one of {', '.join(TRACKING)}")
    return TRACKING[name]


def deployment(key: str, default: Any = None) -> Any:
    """A field of the variable."""
    return json_variable(VARIABLE).get(key, default)


def merged(key: str, stage: str) -> dict[str, Any]:
    """A field of the variable that holds an object, with what `stages.STAGE` has of it over it."""
    base: Mapping[str, Any] = deployment(key, {})
    of_stage: Mapping[str, Any] = deployment("stages", {}).get(stage, {})
    return over(base, of_stage.get(key, {}))


def over(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """One object over another, field by field, also within fields that are objects."""
    found = dict(base)
    for key, value in changes.items():
        below = found.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            found[key] = over(below, value)
        else:
            found[key] = value
    return found


def skip_unless_wanted(stage: str) -> None:
    """Skips a stage that the deployment has no use for.

    Raises:
        AirflowSkipException: The variable does not name it.
    """
    if stage in OPTIONAL and stage not in deployment("stages", {}):
        raise AirflowSkipException(
            f"the Airflow variable `{VARIABLE}` has no field `stages.{stage}`: nothing to {stage}"
        )


def job_file(stage: str) -> str:
    """The script of a stage: in the folder `jobs` of the variable, or in this checkout."""
    return f"{deployment('jobs') or Path(__file__).resolve().parents[2]}/{stage}.py"


def job_arguments(ti: Any, params: Mapping[str, Any]) -> list[str]:
    """The command line of a stage's job.

    Args:
        ti: The task instance.
        params: Of the run of the DAG.

    Raises:
        AirflowFailException: The variable does not say where the run folders are, neither it nor
            the run says which file the settings are in, or an override is not for a run to set.
    """
    config, folder = params["config"] or deployment("config"), run_folder(ti, params)
    if not config:
        raise AirflowFailException(f"the Airflow variable `{VARIABLE}` has no field `config`")
    stage = ti.task_id
    for value in params["overrides"]:
        if not re.match(OVERRIDE, value):
            raise AirflowFailException(f"overrides: `{value}` is not for a run of the DAG to set")
    settings = [
        *DEFAULTS.get(stage, ()),
        *deployment("overrides", []),
        *deployment("stages", {}).get(stage, {}).get("overrides", []),
        *params["overrides"],
        f"run.folder={folder}",
        # What another try of a job finds is its own unfinished work.
        "training.resume=true",
        f"run.only_new={'false' if params['force'] else 'true'}",
    ]
    outcome = f"{folder}{OUTCOMES}/{outcome_name(stage, ti.try_number)}"
    options = ["--config", config, *(part for value in settings for part in ("--set", value))]
    return [*options, "--outcome", outcome]


OVERRIDE = r"^(?!(run|training)=|run\.|training\.resume)[^=\s]+="
"""What a run may set: neither its folder, nor what a try finds there, nor the sections of both."""

# A folder's name has 255 bytes, and a digest and the name of the outcomes follow.
_LONGEST_NAME = 200

OUTCOMES = ".outcomes"
"""Behind the name of a run folder: the folder in which its jobs say what came of them.

The job `clean` removes both."""


def outcome_name(stage: str, try_number: int) -> str:
    """The file in which a job says what came of one try."""
    return f"{stage}-{try_number}.json"


def run_folder(ti: Any, params: Mapping[str, Any], field: str = "runs") -> str:
    """The run folder of a run of a DAG.

    Args:
        ti: Any of its task instances.
        params: Of the run of the DAG.
        field: Of the variable: `runs`, or `runs_address` as Airflow's workers reach it.

    Raises:
        AirflowFailException: The variable does not say where run folders are.
    """
    runs = deployment(field) or deployment("runs")
    if not runs:
        raise AirflowFailException(f"the Airflow variable `{VARIABLE}` has no field `runs`")
    return f"{str(runs).rstrip('/')}/{ti.dag_id}/{params['run'] or run_name(ti.run_id)}"


def run_name(run_id: str) -> str:
    """A folder name of a DAG run's id, which is unique within its DAG.

    A digest tells ids apart that differ only in what no folder is called by, and keeps `..`, which
    is the folder above, and the folders of outcomes from being names.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", run_id)[:_LONGEST_NAME]
    if name == run_id and name.strip(".") and not name.endswith(OUTCOMES):
        return name
    return f"{name}-{hashlib.sha256(run_id.encode()).hexdigest()[:8]}"


def spark_conf(stage: str) -> dict[str, str]:
    """Spark's conf for a stage: the field `conf`, and over it that of the stage."""
    # JSON has numbers and booleans, and a conf has strings.
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in merged("conf", stage).items()
    }


def conf_options(stage: str) -> list[str]:
    """The same as options of spark-submit."""
    return [
        part for key, value in spark_conf(stage).items() for part in ("--conf", f"{key}={value}")
    ]


def conf_line(stage: str) -> str:
    """The same in one line, quoted as a shell has it."""
    return shlex.join(conf_options(stage))


MACROS = {
    "conf_line": conf_line,
    "deployment": deployment,
    "job_arguments": job_arguments,
    "job_file": job_file,
    "merged": merged,
    "spark_conf": spark_conf,
}
"""What templates call; the variable is read when a task runs, never while a file is parsed."""
