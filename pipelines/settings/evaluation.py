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


# In lower case: Spark's column names ignore case.
_OF_ONE_QUERY = ("_id", "id", "text", "metadata")


class EvaluationSettings(Settings):
    """The measurements before and after training."""

    retrieval: bool = True
    """Measure retrieval on held-out pairs."""
    similarity: tuple[StoredPath, ...] = ()
    """Files of scored pairs (Parquet, CSV, JSON lines)."""
    similarity_columns: tuple[str, str, str] = ("sentence1", "sentence2", "score")
    """Two texts and their score."""
    retrieval_sets: tuple[StoredPath, ...] = ()
    """BEIR folders (`corpus.jsonl`, `queries.jsonl`, `qrels/*.tsv`; `test.tsv`, otherwise
    `dev.tsv`), or a file in `qrels`."""
    retrieval_metrics: tuple[str, ...] = ()
    """Metrics beside nDCG@10, MRR@10, Recall@1 and Recall@10: `ndcg`, `mrr`, `recall`, `map` with a
    cut-off up to 1000 (`map@100`)."""
    query_group: str = Field(default="group", min_length=1)
    """Field of `queries.jsonl` or its `metadata`, shared by queries of one thread, document or
    user. Intervals and tests resample [groups](../concepts/evaluation.md#groups-of-queries)."""
    missing_documents: Missing = "refuse"
    """Judged documents missing from `corpus.jsonl`: `refuse` the set, or count them as `not_found`,
    like trec_eval (ArguAna)."""
    missing_queries: Missing = "refuse"
    """Judged queries missing from `queries.jsonl`: `refuse` the set, or let them find nothing
    (`not_found`)."""
    guards: tuple[StoredPath, ...] = ()
    """Files of scored pairs (`similarity_columns`) and BEIR folders on other subjects, which a
    model must not lose."""
    classification: tuple[StoredPath, ...] = ()
    """Files of pairs with label 1 or 0 (Parquet, CSV, JSON lines)."""
    classification_columns: tuple[str, str, str] = ("sentence1", "sentence2", "label")
    """Two texts and their label."""
    follow_links: FollowLinks = False
    csv_separator: CsvSeparator = None
    csv_escape: CsvEscape = None
    hybrid: bool | None = None
    """Also measure retrieval by vectors and BM25 together (`NAME+bm25`), ranked like `search
    --hybrid`. Null: on judged sets and guards, not on held-out pairs."""
    reranker: StoredPath | None = None
    """Folder of a cross-encoder. Retrieval is also measured with its ranking of the first
    `rerank_depth` documents (`NAME+rerank`, `NAME+bm25+rerank`)."""
    rerank_depth: int = Field(default=50, ge=10, le=1000)
    """Documents of each query for `reranker`."""
    rerank_share: float = Field(default=1.0, gt=0, le=1)
    """Weight of the ranking of `reranker` beside the one before it, like `search --share`
    (`NAME+rerank@0.3`)."""
    geometry: bool = True
    """Measure alignment and uniformity of held-out pairs."""
    every_checkpoints: int = Field(default=0, ge=0)
    """[Evaluate](../concepts/evaluation.md) every checkpoint (1), every second (2) and so on during
    training, in a process beside the driver. 0: none."""
    samples: int = Field(default=150, ge=0, le=1000)
    """Held-out pairs on the report's map. 0: no map, and no held-out texts in the report."""

    def check(self) -> None:
        """Refuse unknown metrics, and groups of a single query."""
        if self.query_group.lower() in _OF_ONE_QUERY:
            raise InputError(
                "evaluation.query_group",
                f"each query has its own `{self.query_group}`",
                "Name a field that queries of one thread or document share",
            )
        for name in self.retrieval_metrics:
            if RANKED_METRIC.fullmatch(name) is None:
                raise InputError(
                    "evaluation.retrieval_metrics",
                    f"`{name}` is no metric of rankings",
                    "Name ndcg, mrr, recall or map with a cut-off from 1 to 1000, such as map@100",
                )
