"""`embed`: adds a column of vectors to a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from pipelines.errors import NothingNew
from pipelines.evaluation.embedder import EmbedderLoader, embedder_loader
from pipelines.evaluation.sets import ndcg_of_forms
from pipelines.jobs.base import Results, job
from pipelines.progress import say
from pipelines.promotion.stage import model_in_service
from pipelines.settings import Config
from pipelines.spark.session import spark_session
from pipelines.spark.stage_resources import stage_settings
from pipelines.vectors.embed import EmbeddingJob, EmbeddingSummary
from pipelines.vectors.embedding import EmbeddingOptions
from pipelines.vectors.int8 import int8_documents

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
            return EmbeddingJob.of(config).run(session, partial(judge_int8, session, config))


def judge_int8(
    session: SparkSession, config: Config, options: EmbeddingOptions, calibration: bytes
) -> Mapping[str, Mapping[str, float]]:
    """Measure int8 matrix products beside fp32, on `evaluation.retrieval_sets`."""
    loads: dict[str, EmbedderLoader] = {
        "fp32": embedder_loader(session, options.model),
        "int8": partial(int8_documents, options, calibration),
    }
    return ndcg_of_forms(session, config, loads)


def command(config: Config) -> Results:
    """Embed a table, and print its folder and the changes of an update."""
    made = embed(config)
    say(f"table   {made.folder}")
    if made.changes is not None:
        say(f"changes {made.changes}")
    if made.int8 is not None:
        say(f"int8    {made.int8}")
    return asdict(made)
