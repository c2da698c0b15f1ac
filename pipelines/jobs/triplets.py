"""Triplets from documents, for `recipe: questions`: asked, mined, and perhaps scored."""

from __future__ import annotations

from collections.abc import Callable

from pipelines.errors import InputError
from pipelines.jobs.ask import ask
from pipelines.jobs.mine import mine
from pipelines.jobs.score import score
from pipelines.questions.ask import AskingJob, AskingSummary
from pipelines.scoring.score import ScoringJob
from pipelines.settings import Config
from pipelines.settings.recipes import ASKS
from pipelines.vectors.mine import MiningJob


def asks(config: Config) -> bool:
    """Return whether the training pairs are yet to be asked for."""
    return config.recipe == ASKS


def check_triplets(config: Config) -> None:
    """Check what can be checked before the first request.

    Raises:
        InputError: See :meth:`pipelines.questions.ask.AskingJob.of`.
    """
    AskingJob.of(config).is_done()


def make_triplets(config: Config) -> None:
    """Write the training pairs of the recipe; what is there already stays.

    Raises:
        InputError: Too few questions pass the filters, or see the jobs.
    """
    check_share(ask(config), config.questions.least_kept)
    mine(_again(config, "mining", MiningJob.of))
    if is_scored(config):
        score(_again(config, "scoring", ScoringJob.of))


def _again(config: Config, section: str, check: Callable[[Config], object]) -> Config:
    """Return settings that make a table again, if it is one of earlier questions."""
    try:
        check(config)
    except InputError:
        # Any other fault comes again.
        return config.changed(section, overwrite=True)
    return config


def is_scored(config: Config) -> bool:
    """Return whether a teacher scores the triplets."""
    return config.scoring.model is not None or config.scoring.encoder is not None


def check_share(asked: AskingSummary, least: float) -> None:
    """Refuse to train on questions of which few pass the filters.

    Raises:
        InputError: The portion is below the bound; names the filter that dropped most.
    """
    if asked.kept_share >= least and asked.rows:
        return
    most = max(asked.dropped, key=lambda reason: asked.dropped[reason], default=None)
    why = f", most often dropped: {most}" if most else ""
    raise InputError(
        "questions.least_kept",
        f"only {asked.kept_share:.1%} of {asked.questions:,} questions pass the filters{why}",
        "Read them with `ask --dry-run`, then change the model or the prompt, or lower the bound",
    )
