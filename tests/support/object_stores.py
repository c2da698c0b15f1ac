"""Object stores on this machine: real servers, started once for all tests that need one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from relays import free_port

from pipelines.files.locations import RemotePath
from pipelines.settings.spark import StorageSettings

OWN_S3 = "TEST_S3_ENDPOINT"
"""Variable with the address of a server of one's own, whose credentials the environment holds."""

AZURITE = Path(__file__).parents[2] / ".azurite/node_modules/.bin/azurite-blob"
AZURE_ACCOUNT = "devstoreaccount1"
# Every Azurite has this account with this key, which is documented with it.
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
CREDENTIALS = {
    **({} if OWN_S3 in os.environ else {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}),
    "AWS_REGION": "us-east-1",
    "AZURE_STORAGE_KEY": AZURE_KEY,
}
"""Of the servers; in the environment before any cluster starts, whose executors inherit it."""

READY_SECONDS = 60.0
PATIENCE = {"timeout_seconds": 20.0, "retry_seconds": 10.0}
# Google's emulator says that it lacks conditions by an error that is tried again for so long.
GOOGLE_PATIENCE = {"timeout_seconds": 5.0, "retry_seconds": 10.0}


@dataclass(frozen=True)
class Bucket:
    """A bucket of its own for a test.

    Attributes:
        address: As settings name it.
        options: How its store is reached.
    """

    address: str
    options: StorageSettings

    @property
    def root(self) -> RemotePath:
        """What is in it."""
        return RemotePath.parse(self.address, self.options)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory) -> Iterator[StorageSettings]:
    """A server that speaks S3: moto, or the one that the environment names."""
    if own := os.environ.get(OWN_S3):
        yield StorageSettings(s3_endpoint=own, **PATIENCE)
        return
    if find_spec("moto") is None or find_spec("flask") is None:
        pytest.skip('moto is not installed: pip install "moto[s3,server]"')
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    endpoint = f"http://127.0.0.1:{port}"
    with _serving(command, f"{endpoint}/moto-api/", tmp_path_factory.mktemp("s3") / "log"):
        yield StorageSettings(s3_endpoint=endpoint, **PATIENCE)


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory) -> Iterator[StorageSettings]:
    """A server that speaks Azure's Blob Storage: Azurite."""
    if not AZURITE.exists() or shutil.which("node") is None:
        pytest.skip("Azurite is not installed: make azurite, which needs npm")
    port = free_port()
    command = [
        *(str(AZURITE), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--disableTelemetry"),
        # Arrow's SDK is newer than it.
        *("--inMemoryPersistence", "--skipApiVersionCheck", "--silent"),
    ]
    endpoint = f"http://127.0.0.1:{port}"
    with _serving(command, endpoint, tmp_path_factory.mktemp("azure") / "log"):
        yield StorageSettings(azure_endpoint=endpoint, **PATIENCE)


@pytest.fixture(scope="session")
def google_server(tmp_path_factory) -> Iterator[StorageSettings]:
    """A server that speaks the JSON API of Google Cloud Storage: gcp-storage-emulator."""
    if find_spec("gcp_storage_emulator") is None:
        pytest.skip("there is no emulator: pip install gcp-storage-emulator")
    port = free_port()
    emulator = str(Path(__file__).with_name("google_emulator.py"))
    options = ("-H", "127.0.0.1", "--port", str(port), "--in-memory", "--quiet")
    command = [sys.executable, emulator, "start", *options]
    endpoint = f"http://127.0.0.1:{port}"
    with _serving(command, endpoint, tmp_path_factory.mktemp("google") / "log"):
        yield StorageSettings(gs_endpoint=endpoint, anonymous=True, **GOOGLE_PATIENCE)


@pytest.fixture
def s3_bucket(s3_server) -> Bucket:
    """A new bucket on the server."""
    return new_bucket("s3", s3_server)


@pytest.fixture(params=["s3", "azure", "google"])
def any_bucket(request) -> Bucket:
    """A new bucket on each of the servers."""
    return new_bucket(request.param, request.getfixturevalue(f"{request.param}_server"))


def new_bucket(kind: str, options: StorageSettings) -> Bucket:
    """Makes a bucket.

    Args:
        kind: `s3`, `azure` or `google`.
        options: How its store is reached.
    """
    return Bucket(_MAKERS[kind](f"test-{uuid.uuid4().hex[:12]}", options), options)


def _make_s3(name: str, options: StorageSettings) -> str:
    from pyarrow.fs import S3FileSystem

    files = S3FileSystem(endpoint_override=options.s3_endpoint, allow_bucket_creation=True)
    files.create_dir(name)
    return f"s3://{name}"


def _make_azure(name: str, options: StorageSettings) -> str:
    address = f"abfss://{name}@{AZURE_ACCOUNT}.dfs.core.windows.net"
    root = RemotePath.parse(address, options)
    root.files.create_dir(root.fs_path)
    return address


def _make_google(name: str, options: StorageSettings) -> str:
    # Arrow wants a project to make a bucket in, and has no way to name one.
    url = f"{options.gs_endpoint}/storage/v1/b?project=test"
    content = json.dumps({"name": name}).encode()
    asked = urllib.request.Request(url, content, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=READY_SECONDS):
        return f"gs://{name}"


_MAKERS: Mapping[str, Callable[[str, StorageSettings], str]] = {
    "s3": _make_s3,
    "azure": _make_azure,
    "google": _make_google,
}


@contextmanager
def _serving(command: Sequence[str], url: str, log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        _await(url, server, log)
        yield
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
        except urllib.error.HTTPError:
            # Azurite refuses who shows no key, which is an answer.
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"{url} does not answer: {log.read_text(errors='replace')[-2000:]}")
