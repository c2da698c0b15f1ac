"""The section `evaluation` of the settings."""

from __future__ import annotations

from pydantic import Field

from pipelines.settings.base import CsvEscape, CsvSeparator, FollowLinks, Settings
from pipelines.settings.paths import StoredPath


class EvaluationSettings(Settings):
    """What is measured before and after training."""

    retrieval: bool = Field(
        default=True, description="Measure retrieval on the held-out pairs of the corpus."
    )
    similarity: tuple[StoredPath, ...] = Field(
        default=(), description="Files of scored pairs (Parquet, CSV or JSON lines)."
    )
    similarity_columns: tuple[str, str, str] = Field(
        default=("sentence1", "sentence2", "score"), description="Two texts and their score."
    )
    retrieval_sets: tuple[StoredPath, ...] = Field(
        default=(),
        description=(
            "Folders in BEIR's layout (`corpus.jsonl`, `queries.jsonl`, `qrels/*.tsv`), or one "
            "of the files in `qrels`; of a folder, `test.tsv`, or else `dev.tsv`."
        ),
    )
    guards: tuple[StoredPath, ...] = Field(
        default=(),
        description=(
            "What a model must not lose: files of scored pairs (with `similarity_columns`) and "
            "folders in BEIR's layout, on other subjects than the corpus."
        ),
    )
    classification: tuple[StoredPath, ...] = Field(
        default=(),
        description="Files of pairs with label 1 or 0 (Parquet, CSV or JSON lines).",
    )
    classification_columns: tuple[str, str, str] = Field(
        default=("sentence1", "sentence2", "label"), description="Two texts and their label."
    )
    follow_links: FollowLinks = False
    csv_separator: CsvSeparator = None
    csv_escape: CsvEscape = None
    hybrid: bool = Field(
        default=False,
        description=(
            "Measure retrieval, of held-out pairs and `retrieval_sets`, also by vectors and BM25 "
            "together (`NAME+bm25`), as `search --hybrid` ranks."
        ),
    )
    geometry: bool = Field(
        default=True, description="Measure alignment and uniformity of the held-out pairs."
    )
    every_checkpoints: int = Field(
        default=0,
        ge=0,
        description=(
            "During training measure each checkpoint (1), every second one (2) and so on, in a "
            "process beside the driver; 0: none. See [evaluation](evaluation.md)."
        ),
    )
    samples: int = Field(
        default=150,
        ge=0,
        le=1000,
        description=(
            "Held-out pairs on the report's map of embeddings; 0: no map, and no texts of "
            "held-out pairs in the report."
        ),
    )
