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

    `config` says how stores are reached and, without `runs` (folders), which run. `output` is the
    file, by default `report.html` in the folder of a single run, or `comparison.html` in the
    working folder.

    Raises:
        InputError: There is no such run, one is named twice, or the page cannot be there.
    """
    for module in REPORT:
        check_installed("report", module, where=DRIVER)
    # It draws with libraries that may be missing.
    from pipelines.report.pages import write_page

    return write_page(config, runs, output)


def draw_report(config: Config) -> Location | None:
    """Draw the report at the end of another job; return None, with a line, if it is left out."""
    return None if left_out("the report is", REPORT) else report(config)


def command(config: Config, runs: Sequence[str] | None, output: str | None) -> None:
    """Draw a report, and print where it is."""
    say(f"report  {report(config, runs or (), output)}")
