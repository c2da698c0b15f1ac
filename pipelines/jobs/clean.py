"""`clean`: removes old runs."""

from __future__ import annotations

from dataclasses import asdict

from pipelines.jobs.base import Results, job
from pipelines.progress import activity, say
from pipelines.progress.display import SHORT_SECONDS
from pipelines.promotion.stage import kept_runs
from pipelines.runs.old_runs import Cleaned, remove_old_runs
from pipelines.settings import Config


@job("removing runs")
def clean(config: Config) -> Cleaned:
    """Remove old runs beside `run.folder`; `run.keep` says how many stay."""
    with activity("removing runs", quiet=SHORT_SECONDS):
        return remove_old_runs(config, kept_runs(config))


def command(config: Config) -> Results:
    """Remove old runs, and print the names of removed and kept ones."""
    cleaned = clean(config)
    for name in cleaned.removed:
        say(f"removed  {name}")
    for name in cleaned.kept:
        say(f"kept     {name}")
    return asdict(cleaned)
