"""`rollback`: puts an older model back into service."""

from __future__ import annotations

from pipelines.files.locations import Location
from pipelines.jobs.base import job
from pipelines.progress import activity, say
from pipelines.progress.display import SHORT_SECONDS
from pipelines.promotion import stage
from pipelines.settings import Config


@job("rolling back")
def roll_back(config: Config, to: str | None = None) -> Location:
    """Put the version `to`, or the model in service before, back in service; return its folder."""
    with activity("rolling back", quiet=SHORT_SECONDS):
        return stage.roll_back(config, to)


def command(config: Config, to: str | None) -> None:
    """Put an older model in service, and print its folder."""
    say(f"in service  {roll_back(config, to)}")
