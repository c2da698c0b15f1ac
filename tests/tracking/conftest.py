"""A real MLflow server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from relays import free_port

from pipelines.models.bert.spec import BertSpec
from pipelines.models.folder import default_start, write_encoder
from pipelines.models.weights import random_weights
from pipelines.tokens.vocabulary import vocabulary_size


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory) -> Iterator[str]:
    """The address of an `mlflow server` on an SQLite store.

    Files are written to a folder: a model has hundreds, and none takes a request to the server.
    """
    folder, port = tmp_path_factory.mktemp("mlflow"), free_port()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
                *("--backend-store-uri", f"sqlite:///{folder}/store.db"),
                *("--no-serve-artifacts", "--default-artifact-root", folder / "artifacts"),
                *("--host", "127.0.0.1", "--port", str(port)),
            ],
            stdout=log,
            stderr=log,
            start_new_session=True,
            # Seven more processes, which run what nobody asks it for.
            env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        )
    address = f"http://127.0.0.1:{port}"
    try:
        _await(f"{address}/health", process, folder / "log")
        yield address
    finally:
        # All of its processes, at once: it would wait for connections that clients keep open.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def _await(address: str, process: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    pytest.fail(log.read_text()[-2000:])


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    """A small encoder of random weights, as training writes it."""
    vocabulary = vocabulary_size(default_start())
    spec = BertSpec(vocabulary=vocabulary, layers=1, hidden=16, heads=2, intermediate=32)
    folder = tmp_path_factory.mktemp("small") / "model"
    write_encoder(folder, spec, random_weights(spec, 5), default_start(), "")
    return folder
