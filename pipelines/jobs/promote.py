"""`promote`: puts a run's model into service, through the quality gate."""

from __future__ import annotations

from pipelines.files.folders import named_when_full
from pipelines.files.locations import location
from pipelines.jobs.base import Results, job
from pipelines.models.identity import FIELD, model_digest
from pipelines.progress import activity, say
from pipelines.progress.display import SHORT_SECONDS
from pipelines.promotion import stage
from pipelines.promotion.served import read_record
from pipelines.promotion.stage import Promotion
from pipelines.settings import Config
from pipelines.spark.session import running_tasks


@job("promoting", stalls=True)
def promote(config: Config) -> Promotion:
    """Put the run's model in service if it is no worse than the current one.

    Raises:
        InputError: See :func:`pipelines.promotion.stage.promote`.
        PromotionRefused: It is worse; the current model stays in service.
    """
    target = location(config.promotion.target or "", config.storage).absolute()
    shown = activity("promoting", detail=running_tasks, quiet=SHORT_SECONDS)
    with shown, named_when_full("promotion.target", target):
        return stage.promote(config)


def command(config: Config) -> Results:
    """Promote a model, and print the figures of the gate."""
    promotion = promote(config)
    for found in promotion.judgements:
        before = "nothing" if found.served is None else f"{found.served:.2f}"
        start = "" if found.start is None else f", the start: {found.start:.2f}"
        say(f"{found.metric}  {found.value:.2f}, in service before: {before}{start}")
    digest = read_record(promotion.version).get(FIELD) or model_digest(promotion.version)
    say(f"in service  {promotion.version}")
    say(f"digest      {digest}")
    figures = {found.metric: found.value for found in promotion.judgements}
    return {"version": promotion.version.name, FIELD: digest, "figures": figures}
