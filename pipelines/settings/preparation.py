"""Settings of the stages from text to lanes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipelines.settings.base import Settings


class CorpusSettings(Settings):
    """Which text is read, and how it becomes pairs."""

    inputs: tuple[str, ...] = Field(
        default=(), description="Files, folders or globs; empty only with format `docstrings`."
    )
    format: Literal[
        "docstrings",
        "documents",
        "text",
        "markdown",
        "wikiextractor",
        "jsonl",
        "csv",
        "parquet",
        "delta",
        "iceberg",
        "table",
    ] = Field(
        default="docstrings",
        description=(
            "What the inputs are. `docstrings`: the installed Python packages; `documents`: text, "
            "Markdown and WikiExtractor files, told apart by name and first bytes; `table`, "
            "`iceberg`: tables by name; `delta`: table folders."
        ),
    )
    pairs: Literal["summary", "adjacent", "title", "columns", "triplets", "group", "single"] = (
        Field(
            default="summary",
            description=(
                "`summary`: a text's first sentence with the paragraph after it; `adjacent`: two "
                "sentences of a document that follow one another; `title`: a document's title with "
                "its first paragraph; `columns`: the two `pair_columns`; `triplets`: the three "
                "`triplet_columns`; `group`: any two texts of one `group_column`; `single`: texts "
                "alone."
            ),
        )
    )
    sentences: bool = Field(
        default=False, description="Cut the texts of `pairs: single` into their sentences."
    )
    text_column: str = Field(default="text", description="Column that holds the text.")
    pair_columns: tuple[str, str] = Field(
        default=("sentence1", "sentence2"), description="The two columns of `pairs: columns`."
    )
    triplet_columns: tuple[str, str, str] = Field(
        default=("anchor", "positive", "negative"),
        description="The three columns of `pairs: triplets`.",
    )
    title_column: str = Field(
        default="title",
        description="Column of the titles of `pairs: title`, where there are columns.",
    )
    group_column: str | None = Field(
        default=None,
        description="Rows that share its value never meet in one granule; `pairs: group` needs it.",
    )
    score_column: str | None = Field(
        default=None, description="Similarity of a pair, for `objective.name: cosine_regression`."
    )
    score_range: tuple[float, float] = Field(
        default=(0.0, 1.0), description="Lowest and highest value in `score_column`."
    )
    pairs_per_group: int = Field(
        default=10, ge=1, description="At most so many pairs are made of one group."
    )
    min_characters: int = Field(default=10, ge=1, description="Shorter texts are dropped.")
    max_characters: int = Field(default=5000, ge=1, description="Longer texts are dropped.")
    max_symbols: float = Field(
        default=0.4,
        ge=0,
        le=1,
        description="Largest share of characters that are neither letter, mark, digit nor space.",
    )
    max_repeated: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Largest share of words in three-word sequences that the text repeats.",
    )
    languages: tuple[str, ...] = Field(
        default=(), description="Texts in other languages are dropped (ISO 639 codes); empty: none."
    )
    near_duplicates: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description=(
            "Jaccard similarity of 5-character shingles from which a text is a near duplicate of "
            "an earlier one and dropped; 0: none are. Unset: 0.8 for sentences, 0 otherwise."
        ),
    )
    max_record_megabytes: int = Field(
        default=16, ge=1, le=512, description="Longer lines and records are quarantined unread."
    )
    max_quarantined: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="Largest share of the rows that may be unreadable; more of them is an error.",
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
        default=2000, ge=1, description="At most so many held-out pairs are kept for evaluation."
    )
    exclude: tuple[str, ...] = Field(
        default=(),
        description=(
            "Files (Parquet, CSV or JSON lines) whose texts must not be trained on, nor near "
            "duplicates of them; a match drops its whole group, or the sentence in a document."
        ),
    )
    exclude_columns: tuple[str, ...] = Field(
        default=("sentence1", "sentence2"), description="Text columns of the `exclude` files."
    )


class PreparedSettings(Settings):
    """Where the prepared corpus lives."""

    folder: str = Field(
        default="prepared", description="Folder that the driver and every executor can reach."
    )
    reuse: bool = Field(
        default=True, description="Keep a stage whose inputs and settings have not changed."
    )


class TokenSettings(Settings):
    """Vocabulary and token ids."""

    vocabulary: str = Field(
        default="start",
        description="`start`: the start checkpoint's; `train`: a new one; or a folder.",
    )
    model: Literal["wordpiece", "bpe", "unigram"] = Field(
        default="wordpiece", description="Kind of vocabulary, when trained."
    )
    vocabulary_size: int = Field(default=30522, ge=100, description="Entries, when trained.")
    lowercase: bool = Field(default=True, description="Lower-case, when trained.")
    max_length: int = Field(
        default=64, ge=8, le=512, description="Tokens a text, [CLS] and [SEP] included; cut after."
    )


class LaneSettings(Settings):
    """The batch plan's fixed part."""

    count: int = Field(
        default=48, ge=1, description="Lanes; a divisor of it is taken for a small corpus."
    )
    granule: int = Field(default=64, ge=2, description="Examples in a granule.")
    bucket: int = Field(default=8, ge=1, description="Tokens between two length buckets.")
    seed: int = Field(default=17, ge=0, description="Decides which examples meet in a granule.")
