"""`embed`: a column of vectors for a table."""

from __future__ import annotations

from dataclasses import asdict

from pipelines.errors import NothingNew
from pipelines.files.folders import work_folder
from pipelines.jobs.base import Results, job
from pipelines.progress import say
from pipelines.promotion.stage import model_in_service
from pipelines.settings import Config
from pipelines.spark.session import spark_session
from pipelines.spark.stage_resources import stage_settings
from pipelines.vectors.embed import EmbeddingSummary, check_job, embed_table
from pipelines.vectors.plan import is_up_to_date, lock_file, output_folder


@job("embedding", stalls=True)
def embed(config: Config) -> EmbeddingSummary:
    """Embed the table of `embedding.inputs` into `embedding.output`, or what is missing of it.

    Raises:
        InputError: Model and input cannot be used, or the output is of something else.
        NothingNew: The table is there, and only a new one was asked for.
    """
    if config.embedding.served:
        config = config.changed("embedding", model=str(model_in_service(config)))
    if config.run.only_new and is_up_to_date(config):
        output = config.embedding.output
        raise NothingNew(f"run.only_new: {output} has been made of the same model and inputs")
    check_job(config)
    folder = output_folder(config.embedding, config.storage)
    with work_folder("embedding.output", folder, "embed", lock_file(folder)):
        session = spark_session(config.for_stage("embed"), needs_context=False)
        with stage_settings(session, config, "embed"):
            return embed_table(session, config)


def command(config: Config) -> Results:
    """Embed a table, and print where it is."""
    made = embed(config)
    say(f"table   {made.folder}")
    return asdict(made)
