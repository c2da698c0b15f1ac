"""`search`: finds the nearest rows of a table of vectors."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.errors import InputError
from pipelines.files.locations import location
from pipelines.files.versions import current
from pipelines.jobs.base import job
from pipelines.libraries import DRIVER, check_installed
from pipelines.models.rerankers.folder import read_reranker
from pipelines.progress import activity
from pipelines.progress.display import SHORT_SECONDS
from pipelines.progress.screen import Screen
from pipelines.report.verdict import hits_table
from pipelines.settings import Config
from pipelines.spark.session import running_tasks, spark_session
from pipelines.vectors.index import has_index
from pipelines.vectors.search import (
    Hit,
    find_texts,
    fits_in_process,
    read_queries,
    reranked,
    text_column,
)
from pipelines.vectors.store import open_table

RERANK, SHARE = "--rerank", "--share"
DEPTH = 50
"""Rows of each query that a cross-encoder ranks again."""


@job("the search", stalls=True)
def search(
    config: Config,
    queries: Sequence[str],
    k: int,
    *,
    indexed: bool = False,
    hybrid: bool = False,
    rerank: str | None = None,
    depth: int | None = None,
    share: float | None = None,
) -> list[Hit]:
    """Return the k nearest rows of `embedding.output` for each query, the best first.

    The section `embedding` names the table, and the new place of a moved model. `indexed` searches
    an index instead of all rows, and builds a missing one. `hybrid` ranks by BM25 too, and fuses
    both rankings. `rerank` is the folder of a cross-encoder, which ranks the best `depth` rows of
    each query again; `share` is the weight of its ranking beside the one before it, 1 by default.
    Spark starts only for a table above this process's memory, or to build an index.

    Raises:
        InputError: There is no such table, cross-encoder or query, the table has vectors of another
            model, or no texts to rank by.
        PipelineError: An executor could not search.
    """
    if indexed:
        check_installed("--index", "usearch")
    reranker = None
    for option, value in (("--depth", depth), (SHARE, share)):
        if rerank is None and value is not None:
            raise InputError(option, "no --rerank names a cross-encoder", "Leave it out")
    if share is not None and not 0 < share <= 1:
        raise InputError(SHARE, f"{share:g} is no share", "Name a number above 0 and at most 1")
    if rerank is not None:
        check_installed(RERANK, "transformers", where=DRIVER)
        place = location(rerank, config.storage).expanduser().absolute()
        reranker = read_reranker(current(place), RERANK)
    with activity("searching", detail=running_tasks, quiet=SHORT_SECONDS):
        table = open_table(config.embedding.output, stores=config.storage)
        builds = indexed and not has_index(table)
        is_local = fits_in_process(table, hybrid=hybrid) and not builds
        asked = config.for_stage("embed")
        if reranker is not None:
            text_column(table, RERANK)
        found = find_texts(
            table,
            queries,
            k if reranker is None else max(k, depth or DEPTH),
            session=None if is_local else spark_session(asked, needs_context=False),
            indexed=indexed,
            hybrid=hybrid,
            backend=config.embedding.backend,
            model=config.embedding.model,
        )
        return found if reranker is None else reranked(found, queries, reranker, k, share or 1.0)


def command(
    config: Config,
    query: Sequence[str] | None,
    queries: str | None,
    k: int,
    *,
    index: bool,
    hybrid: bool,
    rerank: str | None,
    depth: int | None,
    share: float | None,
) -> None:
    """Print the rows nearest to the queries of a command line and of a file."""
    if not all(map(str.strip, query or ())):
        raise InputError("--query", "a query is empty", "Write what to search for")
    asked = [*(query or ()), *(read_queries(queries) if queries else ())]
    hits = search(
        config,
        asked,
        k,
        indexed=index,
        hybrid=hybrid,
        rerank=rerank,
        depth=depth,
        share=share,
    )
    Screen().print(hits_table(asked, hits))
