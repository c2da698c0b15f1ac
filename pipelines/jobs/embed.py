"""`embed`: adds a column of vectors to a table."""

from __future__ import annotations

from dataclasses import asdict

from pipelines.errors import NothingNew
from pipelines.jobs.base import Results, job
from pipelines.progress import say
from pipelines.promotion.stage import model_in_service
from pipelines.settings import Config
from pipelines.spark.session import spark_session
from pipelines.spark.stage_resources import stage_settings
from pipelines.vectors.embed import EmbeddingJob, EmbeddingSummary


@job("embedding", stalls=True)
def embed(config: Config) -> EmbeddingSummary:
    """Embed the table of `embedding.inputs` into `embedding.output`, or its missing parts.

    Raises:
        InputError: Model or input are unusable, or the output has another origin.
        NothingNew: The output is up to date, and `run.only_new` is set.
    """
    if config.embedding.served:
        config = config.changed("embedding", model=str(model_in_service(config)))
    making = EmbeddingJob.of(config)
    if config.run.only_new and making.is_up_to_date():
        output = config.embedding.output
        raise NothingNew(f"run.only_new: {output} has the vectors of this model and inputs already")
    making.check()
    with making.working():
        session = spark_session(config.for_stage("embed"), needs_context=False)
        with stage_settings(session, config, "embed"):
            # Model and inputs may have been replaced while Spark started.
            return EmbeddingJob.of(config).run(session)


def command(config: Config) -> Results:
    """Embed a table, and print its folder and the changes of an update."""
    made = embed(config)
    say(f"table   {made.folder}")
    if made.changes is not None:
        say(f"changes {made.changes}")
    return asdict(made)
