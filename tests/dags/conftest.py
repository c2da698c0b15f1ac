"""Airflow, in its own environment: a home for the tests, and a way to ask it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = {"airflow": ".venv-airflow", "airflow-2": ".venv-airflow-2"}
"""By what makes them. The tests run in each that is there; the second one is optional."""
FOUND = [name for name, folder in ENVIRONMENTS.items() if (ROOT / folder).exists()]
POOL = "encoders"
SECONDS = 600

Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session", params=FOUND or ["airflow"])
def airflow_python(request) -> Path:
    """The Python of an environment with Airflow."""
    python = ROOT / ENVIRONMENTS[request.param] / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no environment of Airflow: `make {request.param}` makes it")
    return python


@pytest.fixture(scope="session")
def airflow_variables(airflow_python, tmp_path_factory) -> dict[str, str]:
    """The environment of an Airflow with a database of its own, which its processes make."""
    # Of the environment: two releases share no database.
    home = tmp_path_factory.mktemp(airflow_python.parents[1].name.lstrip("."))
    return os.environ | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "jobs" / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        # The providers are imported anew in each process, beside tests that keep all cores busy.
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": str(SECONDS),
        "AIRFLOW__CORE__UNIT_TEST_MODE": "false",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "false",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[1]"}),
        "SENTENCE_ENCODER_POOL_TRAIN": POOL,
        # The operator looks for spark-submit in the path: that of this environment.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }


@pytest.fixture(scope="module")
def ask_airflow(airflow_python, airflow_variables, tmp_path_factory) -> Iterator[Ask]:
    """Asks a process of `in_airflow.py`, with more variables, and gives its answer."""
    folder, numbers = tmp_path_factory.mktemp("answers"), count()
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [airflow_python, Path(__file__).with_name("in_airflow.py")],
            env=airflow_variables,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            text=True,
        )
    assert process.stdin is not None
    questions = process.stdin

    def ask(command: str, *arguments: str, **variables: str) -> dict[str, Any]:
        answer, said_before = folder / f"{next(numbers)}.json", log.stat().st_size
        question = {"command": command, "arguments": arguments, "variables": variables}
        questions.write(json.dumps({**question, "answer": str(answer)}) + "\n")
        questions.flush()
        deadline = time.monotonic() + SECONDS
        while not answer.exists():
            is_at_work = process.poll() is None and time.monotonic() < deadline
            assert is_at_work, log.read_text(errors="replace")[-6000:]
            time.sleep(0.05)
        found: dict[str, Any] = json.loads(answer.read_text())
        return found | {"output": log.read_bytes()[said_before:].decode(errors="replace")}

    yield ask
    process.kill()
    process.wait(SECONDS)
    questions.close()
