"""Runs the checks one after the other, whatever becomes of each."""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pipelines.errors import PipelineError
from pipelines.files import storage
from pipelines_bench.gpu.checks import Check, Finding, Place, SkippedError, Status
from pipelines_bench.gpu.report import markdown

JSON_FILE = "gpu.json"
TABLE_FILE = "gpu.md"
STANDARD_ERROR = 2
LONGEST_CHECK = 180.0
"""Seconds after which a check is taken to hang, and the process ends with its stack."""
_FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    PipelineError,
    RuntimeError,
    TypeError,
    ValueError,
    subprocess.SubprocessError,
)
"""What a wrong result, an operation that a device does not know, or a library of another release
raises. What ends a process, such as Ctrl-C, is none of them."""
_TRACE_LINES = 12


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of a check.

    Attributes:
        name: Of the check.
        status: Of the check.
        told: What it found, or why it failed or was skipped.
        seconds: That it took.
        correctness: Whether a failure makes the whole fail.
        figures: Numbers by name.
        trace: The end of the stack of what failed.
    """

    name: str
    status: Status
    told: str
    seconds: float
    correctness: bool
    figures: dict[str, Any] = field(default_factory=dict)
    trace: str = ""


@dataclass(frozen=True, kw_only=True)
class Session:
    """A run of the command, which may go on in a fresh process.

    Attributes:
        place: Where it runs.
        machine: What names the machine, by what is named.
        out: Folder of the results.
        began: Seconds since the epoch.
        seconds: After which figures are no longer measured.
    """

    place: Place
    machine: dict[str, str]
    out: Path
    began: float
    seconds: float

    def write(self, results: Sequence[Result]) -> None:
        """Writes what there is so far, so that it is there whatever happens next."""
        told = [asdict(one) for one in results]
        content = {"machine": self.machine, "began": self.began, "results": told}
        storage.write_json(self.out / JSON_FILE, content)
        storage.write_text(self.out / TABLE_FILE, markdown(self.machine, told))


def earlier_results(out: Path) -> list[Result]:
    """The results of the process that this one goes on for."""
    content = json.loads((out / JSON_FILE).read_text(encoding="utf-8"))
    return [Result(**one) for one in content["results"]]


def run_checks(session: Session, checks: Sequence[Check], done: Sequence[Result]) -> list[Result]:
    """Runs what is not done yet, with a line for each.

    After a failure that a GPU does not recover from, the rest runs in a fresh process that takes
    the place of this one.
    """
    results = [*done]
    known = {one.name for one in results}
    for check in checks:
        if check.name in known:
            continue
        result = _run(session, check)
        results.append(result)
        print(f"{result.status:8}{result.name} ({result.seconds:.1f} s): {result.told}", flush=True)
        session.write(results)
        if result.status == "failed" and session.place.on_gpu and is_broken(session.place.device):
            print("the GPU answers no more in this process: a fresh one goes on", flush=True)
            shutil.rmtree(session.place.folder, ignore_errors=True)
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], "--go-on"])
    return results


def has_failed(results: Sequence[Result]) -> bool:
    """Whether something is not right."""
    return any(one.status == "failed" and one.correctness for one in results)


def is_broken(device: str) -> bool:
    """Whether this process can compute no more on a GPU, as after an access beyond its memory."""
    import torch

    try:
        torch.ones(1, device=device).add_(1).item()
    except RuntimeError:
        return True
    return False


def _run(session: Session, check: Check) -> Result:
    result = Result(
        name=check.name, status="ok", told="", seconds=0.0, correctness=check.correctness
    )
    if not check.correctness and time.time() - session.began > session.seconds:
        return replace(result, status="skipped", told="there was no time left")
    began = time.monotonic()
    # Native code that never returns keeps Python from all else.
    faulthandler.dump_traceback_later(LONGEST_CHECK, exit=True, file=STANDARD_ERROR)
    try:
        found: Finding = check.run(session.place)
        result = replace(result, told=found.told, figures=dict(found.figures))
    except SkippedError as error:
        result = replace(result, status="skipped", told=str(error))
    except _FAILURES as error:
        lines = traceback.format_exception(error)
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        trace = "".join(lines[-_TRACE_LINES:])
        result = replace(result, status="failed", told=cause[:400], trace=trace)
    finally:
        faulthandler.cancel_dump_traceback_later()
    return replace(result, seconds=round(time.monotonic() - began, 2))
