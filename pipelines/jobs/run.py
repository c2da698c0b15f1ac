"""`run`: prepares, trains and evaluates in one session."""

from __future__ import annotations

from pipelines import progress
from pipelines.corpus.readers.spark_reader import input_fingerprint
from pipelines.engines.automatic import with_engine
from pipelines.engines.base import engine_of
from pipelines.evaluation.sets import check_sets, check_tables
from pipelines.jobs.base import job
from pipelines.jobs.evaluate import Metrics, evaluate, show_figures
from pipelines.jobs.prepare import check_needs, check_prepared_folder, prepare, shown_stages
from pipelines.jobs.train import check_settings, session_for, train
from pipelines.models.folder import check_start
from pipelines.models.start import check_tokenizer
from pipelines.pretraining.start import check_objective
from pipelines.runs.job_records import expected_seconds, keep_seconds
from pipelines.runs.opening import check_owned, check_run_folder
from pipelines.settings import Config
from pipelines.spark.session import spark_session
from pipelines.spark.stage_resources import check_stages


def _check_folders(config: Config) -> None:
    check_prepared_folder(config)
    check_owned(config)


@job("running", works_in=("prepared.folder", "run.folder"), check=_check_folders)
def run(config: Config) -> dict[str, Metrics]:
    """Prepare, train and evaluate; see :func:`pipelines.jobs.evaluate.evaluate` for the figures."""
    stages = (*shown_stages(config), "training", "evaluating")
    with progress.job("run", stages, expected_seconds(config)) as seconds:
        chosen = with_engine(config)
        _check(chosen)
        prepare(chosen)
        train(chosen)
        figures = evaluate(chosen)
    # The next run looks them up by the settings of the user, without the chosen engine.
    keep_seconds(config, seconds)
    return figures


def _check(config: Config) -> None:
    """Start the session, and check the needs of all stages: preparing may take hours."""
    engine = engine_of(config)
    check_settings(engine, config)
    check_run_folder(config)
    tokenizer = check_tokenizer(config)
    check_start(config)
    check_objective(config, tokenizer)
    check_needs(config)
    for source in config.by_source():
        input_fingerprint(source.corpus, config.storage)
    check_sets(config)
    # All stages share one session: with the executors of the engine, and the conf of `prepare`.
    session = session_for(engine, config, "prepare") or spark_session(
        config.for_stage("prepare"), needs_context=False
    )
    check_stages(session, config, ("prepare", "train", "evaluate"))
    engine.check_session(session, config)
    check_tables(session, config)


def command(config: Config) -> None:
    """Prepare, train and evaluate, and print the figures."""
    show_figures(config, run(config))
