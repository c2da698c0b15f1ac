"""Object stores on this machine: real servers, started once for all tests that need one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from relays import free_port

from pipelines.files.locations import RemotePath
from pipelines.settings.storage import StorageSettings

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
READY_SECONDS = 60.0


@dataclass(frozen=True)
class Bucket:
    """A bucket of its own for a test.

    Attributes:
        name: The bucket.
        options: How its store is reached.
    """

    name: str
    options: StorageSettings

    @property
    def address(self) -> str:
        """As settings name it."""
        return f"s3://{self.name}"

    @property
    def root(self) -> RemotePath:
        """What is in it."""
        return RemotePath.parse(self.address, self.options)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory) -> Iterator[StorageSettings]:
    """A server that speaks S3 (moto); its credentials are in the environment meanwhile."""
    if find_spec("moto") is None or find_spec("flask") is None:
        pytest.skip('moto is not installed: pip install "moto[s3,server]"')
    with _serving_s3(tmp_path_factory.mktemp("s3") / "log") as endpoint, _environment(CREDENTIALS):
        yield StorageSettings(s3_endpoint=endpoint, timeout_seconds=20, retry_seconds=60)


@pytest.fixture
def s3_bucket(s3_server) -> Bucket:
    """A new bucket on the server."""
    from pyarrow.fs import S3FileSystem

    name = f"test-{uuid.uuid4().hex[:12]}"
    S3FileSystem(endpoint_override=s3_server.s3_endpoint, allow_bucket_creation=True).create_dir(
        name
    )
    return Bucket(name, s3_server)


@contextmanager
def _serving_s3(log: Path) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        endpoint = f"http://127.0.0.1:{port}"
        _await(f"{endpoint}/moto-api/", server, log)
        yield endpoint
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _await(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until a server answers.

    Raises:
        RuntimeError: It has ended, or gives no answer in time.
    """
    deadline = time.monotonic() + READY_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"{url} does not answer: {log.read_text(errors='replace')[-2000:]}")


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
