"""The section `evaluation` of the settings."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field

from pipelines.errors import InputError
from pipelines.settings.base import CsvEscape, CsvSeparator, FollowLinks, Settings, StoredPath

Missing = Literal["refuse", "not_found"]
"""What to do about judgements of missing items."""
RANKED_METRIC = re.compile(r"(?P<name>ndcg|mrr|recall|map)@(?P<cutoff>[1-9][0-9]{0,2}|1000)")
"""A metric of rankings, and how many ranks count."""


# Spark does not tell capitals of columns apart.
_OF_ONE_QUERY = ("_id", "id", "text", "metadata")


class EvaluationSettings(Settings):
    """The measurements before and after training."""

    retrieval: bool = True
    """Measure retrieval on the held-out pairs of the corpus."""
    similarity: tuple[StoredPath, ...] = ()
    """Files of scored pairs (Parquet, CSV or JSON lines)."""
    similarity_columns: tuple[str, str, str] = ("sentence1", "sentence2", "score")
    """Two texts and their score."""
    retrieval_sets: tuple[StoredPath, ...] = ()
    """Folders in BEIR's layout (`corpus.jsonl`, `queries.jsonl`, `qrels/*.tsv`), or one of the
    files in `qrels`; of a folder, `test.tsv`, or else `dev.tsv`."""
    retrieval_metrics: tuple[str, ...] = ()
    """More figures of retrieval, beside nDCG@10, MRR@10, Recall@1 and Recall@10: `ndcg`, `mrr`,
    `recall` or `map` with a cut-off up to 1000, such as `map@100`."""
    query_group: str = Field(default="group", min_length=1)
    """Field of `queries.jsonl`, or of `metadata` in it, that queries of one thread, document or
    user share: intervals and tests draw them together."""
    missing_documents: Missing = "refuse"
    """Judged documents that `corpus.jsonl` does not have: `refuse` the set, or count them as
    `not_found`, as trec_eval does (ArguAna)."""
    missing_queries: Missing = "refuse"
    """Judged queries that `queries.jsonl` does not have: `refuse` the set, or let them find nothing
    (`not_found`)."""
    guards: tuple[StoredPath, ...] = ()
    """What a model must not lose: files of scored pairs (with `similarity_columns`) and folders in
    BEIR's layout, on other subjects than the corpus."""
    classification: tuple[StoredPath, ...] = ()
    """Files of pairs with label 1 or 0 (Parquet, CSV or JSON lines)."""
    classification_columns: tuple[str, str, str] = ("sentence1", "sentence2", "label")
    """Two texts and their label."""
    follow_links: FollowLinks = False
    csv_separator: CsvSeparator = None
    csv_escape: CsvEscape = None
    hybrid: bool = False
    """Measure retrieval, of held-out pairs and `retrieval_sets`, also by vectors and BM25 together
    (`NAME+bm25`), as `search --hybrid` ranks."""
    geometry: bool = True
    """Measure alignment and uniformity of the held-out pairs."""
    every_checkpoints: int = Field(default=0, ge=0)
    """During training measure each checkpoint (1), every second one (2) and so on, in a process
    beside the driver; 0: none. See [evaluation](../concepts/evaluation.md)."""
    samples: int = Field(default=150, ge=0, le=1000)
    """Held-out pairs on the report's map of embeddings; 0: no map, and no texts of held-out pairs
    in the report."""

    def check(self) -> None:
        """Refuse unknown metrics, and groups of a single query."""
        if self.query_group.lower() in _OF_ONE_QUERY:
            raise InputError(
                "evaluation.query_group",
                f"`{self.query_group}` is of one query",
                "name a field that queries of one thread or document share",
            )
        for name in self.retrieval_metrics:
            if RANKED_METRIC.fullmatch(name) is None:
                raise InputError(
                    "evaluation.retrieval_metrics",
                    f"`{name}` is no metric of rankings",
                    "name ndcg, mrr, recall or map with a cut-off from 1 to 1000, such as map@100",
                )
