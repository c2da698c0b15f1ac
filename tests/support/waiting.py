"""Waits for what happens in the background, with a deadline."""

from __future__ import annotations

import gc
import threading
import time

SECONDS = 120.0


def await_threads_gone(prefix: str) -> None:
    """Waits until no thread is left whose name begins so."""
    deadline = time.monotonic() + SECONDS
    while left := [one.name for one in threading.enumerate() if one.name.startswith(prefix)]:
        assert time.monotonic() < deadline, left
        # What a thread was still at work for becomes garbage when that is done, and not before.
        gc.collect()
        time.sleep(0.05)
