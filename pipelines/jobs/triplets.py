"""Triplets from documents, for `recipe: questions`: asked, mined, and perhaps scored."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from pipelines.catalog import SCORERS, SEARCHES
from pipelines.errors import InputError
from pipelines.files import storage, versions
from pipelines.files.locations import location
from pipelines.files.run_folder import RunFolder
from pipelines.jobs.ask import ask
from pipelines.jobs.evaluate import AFTER
from pipelines.jobs.mine import mine
from pipelines.jobs.score import score
from pipelines.questions.ask import AskingJob
from pipelines.questions.documents import INPUTS
from pipelines.questions.summary import AskingSummary
from pipelines.scoring.score import ScoringJob
from pipelines.settings import Config
from pipelines.settings.recipes import ASKS
from pipelines.vectors.mine import PLAN_FILE as MINED
from pipelines.vectors.mine import MiningJob
from pipelines.vectors.mining_inputs import INPUTS as PAIRS
from pipelines.vectors.mining_inputs import stamps
from pipelines.vectors.plan import options_for

logger = logging.getLogger(__name__)


def asks(config: Config) -> bool:
    """Return whether the training pairs are yet to be asked for."""
    return config.recipe == ASKS


def check_triplets(config: Config) -> None:
    """Check what can be checked before the first request.

    Raises:
        InputError: See :meth:`pipelines.questions.ask.AskingJob.of`, or the model that mines or the
            one that scores cannot be used, or their tables are others.
    """
    AskingJob.of(config).is_done()
    SEARCHES.load(config.mining.search).check()
    options_for(config, config.mining.model)
    _may_replace(config, "mining", MINED, config.mining.inputs)
    if is_scored(config):
        SCORERS.load(config.scoring.scorer).of(config)
        made_of = config.scoring.inputs or (config.mining.output,)
        _may_replace(config, "scoring", "_scoring.json", made_of)


def check_same_questions(config: Config) -> None:
    """Say what a resumed run leaves out: it goes on with the triplets that it began with.

    Raises:
        InputError: The run is finished, and documents or settings of its questions have changed.
            Going on would do nothing.
    """
    run = RunFolder.of(config)
    try:
        changed = AskingJob.of(config).changed()
        is_asked = changed is None and _has_other_questions(config)
    except InputError as error:
        # Documents may go, once there are triplets.
        logger.warning("questions: %s goes on with its triplets, but: %s", run.path, error)
        return
    if is_asked:
        # By the command `ask`, for a change that no longer shows there.
        changed = "questions.output"
    if changed is None:
        logger.info("questions: %s goes on with the triplets that it began with", run.path)
        return
    problem = f"it has changed since {run.path} asked its questions"
    if changed == INPUTS:
        problem = f"the documents have changed since {run.path} asked about them"
    anew = "Set training.resume=false and run.overwrite=true to ask about the change and train anew"
    if run.metrics.is_file() and AFTER in storage.read_json(run.metrics):
        raise InputError(changed, f"{problem}, and that run is finished", anew)
    logger.warning("%s: %s. This run goes on without the change. %s", changed, problem, anew)


def _has_other_questions(config: Config) -> bool:
    """Return whether the questions are others than those that `mine` has read.

    Raises:
        InputError: They are gone.
    """
    folder = location(config.mining.output, config.storage).expanduser().absolute()
    path = versions.current(folder) / MINED
    if not path.is_file():
        return False
    known: object = storage.read_json(path).get("texts", {}).get(PAIRS)
    return known is not None and known != stamps(config)[PAIRS]


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
    except InputError as error:
        # Any other fault comes again.
        logger.info("%s: the table is made again (%s)", section, error)
        return config.changed(section, overwrite=True)
    return config


def _may_replace(config: Config, section: str, plan: str, made_of: Sequence[str]) -> None:
    """Refuse a table of this recipe's place that another job has made of other inputs.

    Raises:
        InputError: It would be replaced.
    """
    settings = getattr(config, section)
    folder = location(settings.output, config.storage).expanduser().absolute()
    path = versions.current(folder) / plan
    if settings.overwrite or not path.is_file():
        return
    known = storage.read_json(path)
    named = known.get("texts" if section == "mining" else "identity", {})
    inputs = (named.get(f"{section}.inputs") or [[]])[0]
    wanted, places = (
        [versions.home(location(one, config.storage).expanduser().absolute()) for one in names]
        for names in (made_of, inputs)
    )
    if places != wanted:
        raise InputError(
            f"{section}.output",
            f"{folder} holds a table of other inputs",
            f"Name another folder, or set {section}.overwrite=true to replace it",
        )


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
