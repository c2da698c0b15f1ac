"""`ask`: lets a language model write questions about documents."""

from __future__ import annotations

from dataclasses import asdict

from pipelines.jobs.base import Results, job
from pipelines.progress import say
from pipelines.questions.ask import AskingJob
from pipelines.questions.estimate import estimate
from pipelines.questions.summary import AskingSummary
from pipelines.settings import Config
from pipelines.spark.session import spark_session
from pipelines.spark.stage_resources import stage_settings


@job("asking")
def ask(config: Config) -> AskingSummary:
    """Write pairs of questions and documents to `questions.output`, for the next training.

    Documents with an answer of the same model and prompts are not asked about again.

    Raises:
        InputError: Model, inputs or prompts are unusable, or the output has other answers.
        PipelineError: The model stopped answering, or a task failed; answers are kept.
    """
    making = AskingJob.of(config)
    making.is_done()
    with making.working():
        session = spark_session(config.for_stage("ask"), needs_context=False)
        with stage_settings(session, config, "ask"):
            # The inputs may have been replaced while Spark started.
            return AskingJob.of(config).run(session)


@job("asking")
def estimate_asking(config: Config) -> list[str]:
    """Return what :func:`ask` would cost, in lines, after real requests about a few documents.

    Raises:
        InputError: See :func:`ask`.
    """
    making = AskingJob.of(config)
    session = spark_session(config.for_stage("ask"), needs_context=False)
    with stage_settings(session, config, "ask"):
        return estimate(session, making).lines()


def command(config: Config, *, dry_run: bool = False) -> Results:
    """Ask, and print the folder of the questions; or print what it would cost."""
    if dry_run:
        for line in estimate_asking(config):
            say(line)
        return {}
    asked = ask(config)
    say(f"table   {asked.folder}")
    return asdict(asked)
