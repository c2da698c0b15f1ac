"""The section `corpus` of the settings."""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, model_validator

from pipelines.errors import InputError
from pipelines.settings.base import FollowLinks
from pipelines.settings.paths import StoredPath
from pipelines.settings.sources import SourceForm, SourceSettings, completed


class CorpusSettings(SourceForm):
    """Which texts are read, and how they become pairs."""

    follow_links: FollowLinks = False
    near_duplicates: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description=(
            "Jaccard similarity of 5-character shingles from which a text is a near duplicate of "
            "an earlier one and dropped; 0: none are. Unset: 0.8 for sentences, 0 otherwise."
        ),
    )
    redact: str | None = Field(
        default=None,
        description=(
            "Function from text to text, as `module:function`, that each text goes through on the "
            "executors before it is cut, hashed or written."
        ),
    )
    max_record_megabytes: int = Field(
        default=16,
        ge=1,
        le=512,
        description="Longest line or record; longer ones are quarantined unread.",
    )
    max_quarantined: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="Largest share of the rows that may be unreadable; more of them is an error.",
    )
    max_dropped: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description=(
            "Largest share of the rows that may lack a usable value of a column: a score that is "
            "no number or out of `score_range`; a text, group or title that is not there. More of "
            "them is an error. Unset: 0.1 for scores, 0.5 for the others."
        ),
    )
    report_examples: int = Field(
        default=3,
        ge=0,
        le=20,
        description=(
            "Texts that reports show of each reason why some are dropped, and held-out queries of "
            "each kind; 0: no text is in statistics, quarantine, samples and reports."
        ),
    )
    evaluation_share: float = Field(
        default=0.05,
        ge=0.0,
        lt=1.0,
        description=(
            "Share of the groups (of the pairs, for docstrings: whole packages) that is held "
            "out, by hash, for the retrieval evaluation."
        ),
    )
    evaluation_pairs: int = Field(
        default=2000, ge=1, description="Most held-out pairs that are kept for evaluation."
    )
    evaluation_documents: int = Field(
        default=20_000,
        ge=0,
        description=(
            "Most documents of the pairs for training, drawn by hash, that held-out queries search "
            "besides their own; with few, retrieval looks better than it is."
        ),
    )
    exclude: tuple[StoredPath, ...] = Field(
        default=(),
        description=(
            "Files (Parquet, CSV or JSON lines) whose texts must not be trained on, nor near "
            "duplicates of them; a match drops its whole group, or the sentence in a document."
        ),
    )
    exclude_columns: tuple[str, ...] = Field(
        default=("sentence1", "sentence2"), description="Text columns of the `exclude` files."
    )
    sources: tuple[SourceSettings, ...] = Field(
        default=(),
        description=(
            "Several corpora that are trained on together, a batch from one of them: a list of "
            "mappings with a `name`, the keys from `format` to `prompts` above that differ from "
            "this section's, and `weight` and `objective`."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _complete_sources(cls, given: Any) -> Any:
        return completed(given)

    def check(self) -> None:
        """Refuses a corpus that names no texts, or kinds of pairs that lack what they need."""
        # Each of several sources is checked as if it were alone.
        if not self.sources:
            self.check_form()
        if self.redact is not None and re.fullmatch(r"[\w.]+:\w+", self.redact) is None:
            raise InputError(
                "corpus.redact",
                f"`{self.redact}` is no module with a function",
                "name it as `module:function`",
            )
