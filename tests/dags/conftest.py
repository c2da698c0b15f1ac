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
ENVIRONMENTS = {"airflow": ".venv-airflow", "airflow-2": ".venv-airflow-2"}
"""By what makes them. The tests run in each that is there; the second one is optional."""
FOUND = [name for name, folder in ENVIRONMENTS.items() if (ROOT / folder).exists()]
POOL = "encoders"
SECONDS = 300


@pytest.fixture(scope="session", params=FOUND or ["airflow"])
def airflow_python(request) -> Path:
    """The Python of an environment with Airflow."""
    python = ROOT / ENVIRONMENTS[request.param] / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no environment of Airflow: `make {request.param}` makes it")
    return python


@pytest.fixture(scope="session")
def airflow_variables(airflow_python, tmp_path_factory) -> dict[str, str]:
    """The environment of an Airflow with an empty database of its own."""
    home = tmp_path_factory.mktemp("airflow")
    variables = os.environ | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "jobs" / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        # The providers are imported anew in each process, beside tests that keep all cores busy.
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": str(SECONDS),
        "AIRFLOW__CORE__UNIT_TEST_MODE": "false",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "false",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "SENTENCE_ENCODER_POOL_TRAIN": POOL,
        # The operator looks for spark-submit in the path: that of this environment.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    subprocess.run(
        [airflow_python, "-m", "airflow", "db", "migrate"],
        env=variables,
        check=True,
        capture_output=True,
        timeout=SECONDS,
    )
    return variables


@pytest.fixture(scope="session")
def ask_airflow(airflow_python, airflow_variables) -> Callable[..., dict[str, Any]]:
    """Calls `in_airflow.py` with more variables, and gives its answer."""

    def ask(*arguments: str, **variables: str) -> dict[str, Any]:
        done = subprocess.run(
            [airflow_python, Path(__file__).with_name("in_airflow.py"), *arguments],
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
