"""A worker that speaks to a monitor by hand."""

import json
import socket
import threading

from pipelines.runs.run import WorkerTask
from pipelines.training.control.monitor import Monitor


class Peer:
    """A worker by hand."""

    def __init__(self, driver: Monitor | WorkerTask, rank: int) -> None:
        address = driver.monitor if isinstance(driver, WorkerTask) else driver.address
        self.socket = socket.create_connection(address, timeout=10)
        token = driver.token
        self.send("hello", token=token, rank=rank, host=f"host-{rank}", lane=10 * rank)

    def send(self, kind: str, **fields) -> None:
        self.socket.sendall(json.dumps({"kind": kind} | fields).encode() + b"\n")

    def hears(self) -> bytes:
        """The driver's last word, which comes after those that it is there."""
        with self.socket.makefile("rb") as words:
            return next((word for word in words if word != b"here\n"), b"")


def end(peer: Peer) -> bytes:
    """Hears the last word, and hangs up."""
    word = peer.hears()
    peer.socket.close()
    return word


def end_later(*peers: Peer) -> None:
    """The same of each, on threads."""
    for peer in peers:
        threading.Thread(target=end, args=(peer,), daemon=True).start()
