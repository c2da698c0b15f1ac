"""`report`: draws the page of a run, finished or not, or of several beside one another."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.files.locations import Location
from pipelines.jobs.base import job
from pipelines.libraries import DRIVER, REPORT, check_installed, left_out
from pipelines.progress import say
from pipelines.settings import Config


@job("drawing the report")
def report(config: Config, runs: Sequence[str] = (), output: str | None = None) -> Location:
    """Draw the report of a run, finished or not, or compare several; return the page's path.

    `config` has the access to stores and, without `runs` (folders), the run. `output` is the file,
    by default `report.html` in the folder of a single run, or `comparison.html` in the working
    folder.

    Raises:
        InputError: A run is missing or named twice, or the page's place is unusable.
    """
    for module in REPORT:
        check_installed("report", module, where=DRIVER)
    # Its libraries may be missing.
    from pipelines.report.pages import write_page

    return write_page(config, runs, output)


def draw_report(config: Config) -> Location | None:
    """Draw the report at the end of another job; print a line and return None without libraries."""
    return None if left_out("the report is", REPORT) else report(config)


def command(config: Config, runs: Sequence[str] | None, output: str | None) -> None:
    """Draw a report, and print its path."""
    say(f"report  {report(config, runs or (), output)}")
