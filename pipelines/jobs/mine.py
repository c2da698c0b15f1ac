"""`mine`: finds hard negatives for pairs."""

from __future__ import annotations

from dataclasses import asdict

from pipelines.files.folders import working_in
from pipelines.jobs.base import Results, job
from pipelines.progress import say
from pipelines.settings import Config
from pipelines.spark.session import spark_session
from pipelines.spark.stage_resources import stage_settings
from pipelines.vectors.mine import MiningJob, MiningSummary


@job("mining", stalls=True)
def mine(config: Config) -> MiningSummary:
    """Search hard negatives for the pairs of `mining.inputs`; write them to `mining.output`.

    Raises:
        InputError: Model or inputs are unusable, the output has another origin, or no pair has
            enough negatives.
    """
    if config.mining.inputs:
        return _mine(config)
    # The lock keeps a preparation from replacing the pairs during the job.
    return working_in(reading=("prepared.folder",))(_mine)(config)


def _mine(config: Config) -> MiningSummary:
    making = MiningJob.of(config)
    with making.working():
        session = spark_session(config.for_stage("mine"), needs_context=False)
        with stage_settings(session, config, "mine"):
            # Model and inputs may have been replaced while Spark started.
            return MiningJob.of(config).run(session)


def command(config: Config) -> Results:
    """Mine hard negatives, and print their folder."""
    mined = mine(config)
    say(f"table   {mined.folder}")
    return asdict(mined)
