"""How a rank finds the others: by the driver's store. Runs on an executor."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import Any, NamedTuple, TypeVar

from pipelines.errors import PipelineError
from pipelines.runs.run import WorkerTask

REQUEST_SECONDS = 20.0
REQUEST_ATTEMPTS = 3
RETRY_SECONDS = 0.3


class Place(NamedTuple):
    """Where a rank is.

    Attributes:
        host: Name of the host.
        devices: The GPUs that its executor may use, as ``CUDA_VISIBLE_DEVICES`` lists them.
    """

    host: str
    devices: str


class RendezvousClient:
    """A rank's access to the driver's store; a connection for each request.

    Args:
        address: Host and port of the store.
        token: What authenticates its clients.

    Attributes:
        own_address: Of this host, on the network that leads to the store; known after a request.
    """

    def __init__(self, address: tuple[str, int], token: str) -> None:
        self._host, self._port = address
        self._token = token
        self.own_address = ""

    def put(self, key: str, value: str) -> None:
        """Sets a key."""
        self._request("PUT", key, value)

    def get_all(self, scope: str) -> dict[str, str]:
        """The values of all keys that begin with the scope, which ends in a slash."""
        values: dict[str, str] = json.loads(self._request("GET", scope))
        return values

    def environment(self) -> dict[str, str]:
        """Tells Horovod where the store is.

        The address is followed by ``:PORT/`` where the library builds a path, so that the token
        becomes a part of it.
        """
        return {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": f"{self._host}:{self._port}/{self._token}",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": "0",
        }

    def _request(self, method: str, key: str, body: str | None = None) -> str:
        """Tries again when the driver is too busy to answer, as Horovod does."""
        for _ in range(REQUEST_ATTEMPTS - 1):
            with suppress(OSError, HTTPException):
                return self._request_once(method, key, body)
            time.sleep(RETRY_SECONDS)
        return self._request_once(method, key, body)

    def _request_once(self, method: str, key: str, body: str | None) -> str:
        connection = HTTPConnection(self._host, self._port, timeout=REQUEST_SECONDS)
        try:
            connection.connect()
            self.own_address = connection.sock.getsockname()[0]
            connection.request(method, f"/{self._token}:0/{key}", body)
            return connection.getresponse().read().decode()
        finally:
            connection.close()


Where = TypeVar("Where", bound=tuple[Any, ...])
"""A named tuple, of what JSON has."""


def meet(client: RendezvousClient, task: WorkerTask, own: Where, seconds: float) -> list[Where]:
    """Waits until all ranks are there.

    Args:
        client: Of the store in which they meet.
        task: Of this rank.
        own: Where this rank is.
        seconds: Deadline.

    Returns:
        The place of each rank.

    Raises:
        PipelineError: Some are missing.
    """
    deadline = time.monotonic() + seconds
    keys = [f"places/{rank}" for rank in range(task.workers)]
    client.put(keys[task.rank], json.dumps(own))
    while len(there := client.get_all("places/")) < task.workers:
        if time.monotonic() > deadline:
            late = [rank for rank, key in enumerate(keys) if key not in there]
            raise PipelineError(f"ranks {late} have not come within {seconds:.0f} s")
        time.sleep(RETRY_SECONDS)
    return [type(own)(*json.loads(there[key])) for key in keys]
