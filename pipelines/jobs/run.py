"""`run`: prepares, trains and evaluates in one session."""

from __future__ import annotations

import logging

from pipelines import progress
from pipelines.corpus.readers.spark_reader import input_fingerprint
from pipelines.engines.automatic import with_engine
from pipelines.engines.base import Engine, engine_of
from pipelines.evaluation.sets import check_sets, check_tables
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.jobs.base import job
from pipelines.jobs.evaluate import Metrics, evaluate, show_figures
from pipelines.jobs.prepare import check_needs, check_prepared_folder, prepare, shown_stages
from pipelines.jobs.train import check_settings, session_for, train
from pipelines.jobs.triplets import asks, check_same_questions, check_triplets, make_triplets
from pipelines.models.folder import check_start
from pipelines.models.start import check_tokenizer
from pipelines.pretraining.start import check_objective
from pipelines.runs.job_records import expected_seconds, keep_seconds
from pipelines.runs.opening import check_owned, check_run_folder
from pipelines.settings import Config
from pipelines.spark.session import spark_session
from pipelines.spark.stage_resources import check_stages

logger = logging.getLogger(__name__)

TRIPLETS = ("questions", "mining", "scoring")
"""The visible stages of a recipe that asks for its training pairs."""


def _check_folders(config: Config) -> None:
    check_prepared_folder(config)
    check_owned(config)


@job("running", works_in=("prepared.folder", "run.folder"), check=_check_folders)
def run(config: Config) -> dict[str, Metrics]:
    """Prepare, train and evaluate; see :func:`pipelines.jobs.evaluate.evaluate` for the figures."""
    asking = TRIPLETS if asks(config) else ()
    stages = (*asking, *shown_stages(config), "training", "evaluating")
    with progress.job("run", stages, expected_seconds(config)) as seconds:
        chosen = with_engine(config)
        if asking and _goes_on(chosen):
            check_same_questions(chosen)
        elif asking:
            # Requests cost more than a refusal.
            check_triplets(chosen)
            _check_session(chosen, _check_training(chosen))
            make_triplets(chosen)
        _check(chosen)
        prepare(chosen)
        train(chosen)
        figures = evaluate(chosen)
    # The next run looks them up by the settings of the user, without the chosen engine.
    keep_seconds(config, seconds)
    return figures


def _check_training(config: Config) -> Engine:
    """Check the needs of the training, before there are examples."""
    engine = engine_of(config)
    check_settings(engine, config)
    check_run_folder(config)
    tokenizer = check_tokenizer(config)
    check_start(config)
    check_objective(config, tokenizer)
    check_needs(config)
    check_sets(config)
    return engine


def _check_session(config: Config, engine: Engine) -> None:
    """Start the session of all stages, with the executors of the engine."""
    session = session_for(engine, config, "prepare") or spark_session(
        config.for_stage("prepare"), needs_context=False
    )
    check_stages(session, config, ("prepare", "train", "evaluate"))
    engine.check_session(session, config)
    check_tables(session, config)


def _goes_on(config: Config) -> bool:
    """Return whether a run resumes on its lanes."""
    _, has_run = check_run_folder(config)
    lanes = PreparedFolder.of(config).lanes.manifest
    return has_run and config.training.resume and lanes.is_file()


def _check(config: Config) -> None:
    """Start the session, and check the needs of all stages: preparing may take hours."""
    engine = _check_training(config)
    for source in config.by_source():
        input_fingerprint(source.corpus, config.storage)
    # All stages share one session, with the conf of `prepare`.
    _check_session(config, engine)


def command(config: Config) -> None:
    """Prepare, train and evaluate, and print the figures."""
    show_figures(config, run(config))
