"""A driver in a network of its own, and what passes there; needs the rights of root.

    unshare --net python packet_watch.py run.pickle WORDS

The run is trained as ``host_driver.py`` does. How many packets had the words in them is written
beside it, as ``run.packets``.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ALL_PROTOCOLS = 3
BUFFER_BYTES = 1 << 26
WAKE_SECONDS = 0.2


@contextmanager
def packets_with(words: bytes) -> Iterator[list[bytes]]:
    """What passes on loopback meanwhile and contains the words."""
    found: list[bytes] = []
    ended = threading.Event()

    def look(packets: socket.socket) -> None:
        while not ended.is_set():
            with suppress(TimeoutError):
                packet = packets.recv(1 << 17)
                found.extend([packet] if words in packet else [])

    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ALL_PROTOCOLS)) as packets:
        packets.bind(("lo", 0))
        packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        packets.settimeout(WAKE_SECONDS)
        thread = threading.Thread(target=look, args=(packets,))
        thread.start()
        try:
            yield found
        finally:
            ended.set()
            thread.join()


def main() -> int:
    path, words = Path(sys.argv[1]), sys.argv[2]
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    driver = str(Path(__file__).with_name("host_driver.py"))
    with packets_with(words.encode()) as found:
        code = subprocess.run([sys.executable, driver, str(path)], check=False).returncode
    path.with_suffix(".packets").write_text(str(len(found)))
    return code


if __name__ == "__main__":
    sys.exit(main())
