"""`score`: adds a teacher's scores to pairs or triplets."""

from __future__ import annotations

from dataclasses import asdict

from pipelines.jobs.base import Results, job
from pipelines.progress import say
from pipelines.scoring.score import ScoringJob, ScoringSummary
from pipelines.settings import Config
from pipelines.spark.session import spark_session
from pipelines.spark.stage_resources import stage_settings


@job("scoring", stalls=True)
def score(config: Config) -> ScoringSummary:
    """Score the pairs or triplets of `scoring.inputs`; write them to `scoring.output`.

    Raises:
        InputError: Model or inputs are unusable, or the output has another origin.
        PipelineError: A task failed; finished parts are kept.
    """
    making = ScoringJob.of(config)
    with making.working():
        session = spark_session(config.for_stage("score"), needs_context=False)
        with stage_settings(session, config, "score"):
            # Model and inputs may have been replaced while Spark started.
            return ScoringJob.of(config).run(session)


def command(config: Config) -> Results:
    """Score, and print the folder of the table."""
    scored = score(config)
    say(f"table   {scored.folder}")
    return asdict(scored)
