"""What jobs share: locks, deadlines, errors of one line, and lines about a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from pipelines.files.folders import working_in
from pipelines.files.locations import Location
from pipelines.jobs.outcome import Results
from pipelines.libraries import REPORT, left_out
from pipelines.models.lsa import LIMIT
from pipelines.progress import say
from pipelines.settings import Config
from pipelines.spark.errors import executor_failures, file_failures
from pipelines.spark.jobs import called_off_when_stalled

__all__ = ["Results", "job", "say_model", "say_report"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


def job(
    doing: str,
    *,
    works_in: Sequence[str] = (),
    reads: Sequence[str] = (),
    check: Callable[[Config], object] | None = None,
    stalls: bool = False,
) -> Callable[[Callable[Concatenate[Config, _P], _T]], Callable[Concatenate[Config, _P], _T]]:
    """Make a function of the settings a job: alone in its folders, with errors of one line.

    Args:
        doing: What the job does, as errors begin (`training`).
        works_in: Settings of folders that no other job may use meanwhile, such as `run.folder`.
        reads: Settings of folders that no other job may write meanwhile.
        check: Looks at the folders before anything is written into them.
        stalls: Stop the job when Spark makes no progress. Training has its own deadlines.
    """

    def decorate(
        function: Callable[Concatenate[Config, _P], _T],
    ) -> Callable[Concatenate[Config, _P], _T]:
        work = working_in(*works_in, reading=reads, check=check)(function)
        if stalls:
            work = called_off_when_stalled(doing)(work)
        return executor_failures(doing)(file_failures(doing)(work))

    return decorate


def say_report(page: Location | None) -> None:
    """Print the place of a report, if there is one."""
    if page is not None and not left_out("the report is", REPORT):
        say(f"report  {page}")


def say_model(config: Config, model: Location) -> None:
    """Print the place of a run's model, and any limit to serving it."""
    say(f"model   {model}")
    if config.encoder.lsa.dimensions:
        say(f"limit   {LIMIT}")
