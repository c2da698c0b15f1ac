"""Airflow, in its own environment: a home for the tests, and a way to ask it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-airflow" / "bin" / "python"
SECONDS = 300


@pytest.fixture(scope="session")
def airflow_variables(tmp_path_factory) -> dict[str, str]:
    """The environment of an Airflow with an empty database of its own."""
    if not PYTHON.exists():
        pytest.skip("no environment of Airflow: `make airflow` makes it")
    home = tmp_path_factory.mktemp("airflow")
    variables = os.environ | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "jobs" / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "false",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "false",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        # The operator looks for spark-submit in the path: that of this environment.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    subprocess.run(
        [PYTHON, "-m", "airflow", "db", "migrate"],
        env=variables,
        check=True,
        capture_output=True,
        timeout=SECONDS,
    )
    return variables


@pytest.fixture(scope="session")
def ask_airflow(airflow_variables) -> Callable[..., dict[str, Any]]:
    """Calls `in_airflow.py` with more variables, and gives its answer."""

    def ask(*arguments: str, **variables: str) -> dict[str, Any]:
        done = subprocess.run(
            [PYTHON, Path(__file__).with_name("in_airflow.py"), *arguments],
            env=airflow_variables | variables,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer | {"output": done.stdout + done.stderr}

    return ask
