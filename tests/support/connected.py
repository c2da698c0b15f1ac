"""Programs in a process of their own, with a session of Spark Connect and a server of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

SECONDS = 600


def _missing() -> str | None:
    """Why there can be no session of Spark Connect; None where there can."""
    home = Path(find_spec("pyspark").origin).parent
    if not list(home.glob("jars/spark-connect_*.jar")):
        return "this pyspark brings no server of Spark Connect"
    return None if find_spec("grpc_status") else "grpcio-status is not installed"


needs_connect = pytest.mark.skipif(_missing() is not None, reason=str(_missing()))


def said_in_a_session(program: str, *arguments: str) -> Any:
    """What a program prints last, JSON; `SPARK_REMOTE` has its session be one of Spark Connect."""
    environment = {**os.environ, "SPARK_REMOTE": "local[2]", "SPARK_SUBMIT_OPTS": ""}
    environment["PYSPARK_PYTHON"] = sys.executable
    # Gives the server a free port, instead of one that another on this machine may have.
    environment["SPARK_TESTING"] = "1"
    # Of the classic session of the tests.
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])
