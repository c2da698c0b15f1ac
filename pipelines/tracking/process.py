"""A tracker's process: ``python -m pipelines.tracking.process NAME``.

Takes requests from the driver, one JSON object a line on standard input, and answers each with a
line on standard output. When the driver is gone, it closes the run as killed, and ends.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from pipelines.catalog import TRACKERS
from pipelines.settings import StorageSettings, TrackingSettings
from pipelines.tracking.base import MetricPoint, RunEnd, RunStart, Tracker


def main() -> None:
    """Serve until standard input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    # The output of libraries goes to the log: the driver parses every line of the answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.argv[1], sys.stdin, answers)


def serve(name: str, requests: TextIO, answers: TextIO) -> None:
    """Pass requests on to the tracker of a name, and its errors to the driver.

    A request is a line ``{"call": ..., "with": ...}``, its answer ``{"problem": null}`` or a text.
    """
    tracker: Tracker | None = None
    is_open = False
    for line in requests:
        request = json.loads(line)
        problem = None
        try:
            tracker = tracker or TRACKERS.load(name)()
            assert tracker is not None
            _CALLS[request["call"]](tracker, request["with"])
            is_open = request["call"] != "finish"
        except Exception as error:  # noqa: BLE001 - reported to the driver, which goes on without
            traceback.print_exc()
            problem = one_line(error)
        if not _answered(answers, problem):
            break
    # The input ends without `finish` when the driver is killed.
    if tracker is not None and is_open:
        tracker.finish(RunEnd(status="killed", problem="the driver's process died"))


def _answered(answers: TextIO, problem: str | None) -> bool:
    """Answer a request; False if the driver is not there to read it."""
    try:
        answers.write(json.dumps({"problem": problem}) + "\n")
        answers.flush()
    except BrokenPipeError:
        return False
    return True


def one_line(error: Exception) -> str:
    """Return the type of an error and the first line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"[:300]


def _start(tracker: Tracker, given: Mapping[str, Any]) -> None:
    sections = {
        "settings": TrackingSettings.model_validate(given["settings"]),
        "storage": StorageSettings.model_validate(given["storage"]),
    }
    tracker.start(RunStart(**{**given, **sections}))


_CALLS: Mapping[str, Callable[[Tracker, Mapping[str, Any]], None]] = {
    "start": _start,
    "log": lambda tracker, given: tracker.log([MetricPoint(**point) for point in given["points"]]),
    "finish": lambda tracker, given: tracker.finish(RunEnd(**given)),
}

if __name__ == "__main__":
    main()
