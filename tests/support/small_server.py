"""Real servers with OpenAI's API, and the language model of `make generator`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from relays import free_port

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / ".venv-generator"
FOLDER = ENVIRONMENT / "smollm2"
MODEL = "smollm2"
KEY = "key-of-the-server"
PARALLEL = 4
CONTEXT = 512
"""Tokens of a prompt and its reply."""
READY_SECONDS = 300.0
NEEDS_MODEL = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="there is no language model: make generator"
)


LLAMA_CPP = (
    *(str(ENVIRONMENT / "bin" / "python"), str(ROOT / "environment" / "small_server.py")),
    *("--key", KEY, "--parallel", str(PARALLEL), "--context", str(CONTEXT)),
)
"""The command of the server of `make generator`, but for its port."""


class SmallServer:
    """A process of a server, on a port of its own, that can be killed and started again."""

    def __init__(self, log: Path, command: Sequence[str] = LLAMA_CPP) -> None:
        self.port = free_port()
        self.log = log
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The base URL of the API."""
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [*self._command, "--port", str(self.port)]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, start_new_session=True
            )
        deadline = time.monotonic() + READY_SECONDS
        while not self._is_ready():
            assert self._process.poll() is None, self.log.read_text()[-2000:]
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.05)

    def kill(self) -> None:
        """End it as a machine's failure does."""
        if self._process is not None:
            # vLLM has processes of its own.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def ask(self, path: str, content: Any = None) -> Any:
        """Return an answer of the server, as JSON; without content by GET."""
        address = f"http://127.0.0.1:{self.port}{path}"
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(address, data, headers)
        with urllib.request.urlopen(request, timeout=READY_SECONDS) as answer:
            found = answer.read()
        return json.loads(found) if found else None

    def at_work(self) -> int:
        """Return the number of requests that it computes now."""
        return sum(slot["is_processing"] for slot in self.ask("/slots"))

    def asked(self) -> int:
        """Return the number of requests that it has begun to compute, in all its processes."""
        return self.log.read_text(errors="replace").count("| processing task")

    def _is_ready(self) -> bool:
        try:
            self.ask("/health")
        except (urllib.error.URLError, ConnectionError):
            return False
        return True
