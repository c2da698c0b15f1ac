"""What became of a cell, and how its end is judged: the same for trainings and for stages."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from faults.injection import Fault

PROMISED_SECONDS = 60.0
"""In which an error is found, and in which nothing is left of a job."""
TOLD_TO_END = "goes on"
"""The end of a job that survived, and had so many steps left that it was told to end."""
FAREWELL_SECONDS = 15.0
"""The driver's, which tells its workers to end, stops Spark, and then says what the error was."""


@dataclass
class Outcome:
    """What became of a cell.

    Attributes:
        case, fault, moment: The cell's.
        end: `finished`, :data:`TOLD_TO_END`, `error`, `killed` (the driver, on
            purpose) or `hang`.
        seconds: From the fault to the end of the driver; infinite stands for none.
        message: What the error said, in a line.
        resumed: The step that another run went on from, if one did.
        failings: What is not as it was promised; empty if all is.
    """

    case: str
    fault: str
    moment: str
    end: str = ""
    seconds: float = 0.0
    message: str = ""
    resumed: int | None = None
    failings: list[str] = field(default_factory=list)

    def to_json(self) -> dict:
        return asdict(self)


def judge_end(
    fault: Fault, code: int, said: str, outcome: Outcome, more_seconds: float = 0.0
) -> None:
    """What the driver ended with, and whether an error came in time, alone, and with its cause.

    Args:
        code: The driver's exit status.
        said: All that it has printed.
        outcome: What the verdict is written to.
        more_seconds: That an error may take beside those of a training.
    """
    if code == 0:
        outcome.end = "finished"
        return
    if fault.ends_driver:
        outcome.end = "killed"
        return
    outcome.end = "error"
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    outcome.message = errors[-1][len("error: ") :] if errors else said[-200:]
    if outcome.seconds > PROMISED_SECONDS + FAREWELL_SECONDS + more_seconds:
        outcome.failings.append(f"late: after {outcome.seconds:.0f} s")
    if fault.finishes:
        outcome.failings.append("it should have finished")
    if len(errors) != 1:
        outcome.failings.append(f"{len(errors)} errors")
    if "Traceback" in said or "\tat " in said:
        outcome.failings.append("a stack trace")
    if fault.cause and not re.search(fault.cause, outcome.message):
        outcome.failings.append(f"the cause is not told ({fault.cause})")


def wait_for_none_left(left: Callable[[], list[str]], outcome: Outcome) -> None:
    """Waits until nothing of the job runs; what does after a minute is a failing."""
    deadline = time.monotonic() + PROMISED_SECONDS
    while left() and time.monotonic() < deadline:
        time.sleep(0.5)
    outcome.failings.extend(f"left after a minute: {line}" for line in left())
