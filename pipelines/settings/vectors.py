"""The sections `embedding` and `mining`: tables of vectors, and hard negatives."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from pipelines.catalog import MERGE_FORMATS, SEARCHES, TABLE_FORMATS
from pipelines.errors import InputError
from pipelines.settings.base import (
    Choice,
    CsvEscape,
    CsvSeparator,
    FollowLinks,
    InputPath,
    NameOrPath,
    Settings,
    StoredPath,
    choice_of,
)


class EmbeddingSettings(Settings):
    """The table for the column of vectors, and how `embed` fills it."""

    model: StoredPath | None = None
    """A sentence-transformers folder, or `default` (the packaged all-MiniLM-L6-v2). Null:
    `<run.folder>/model`."""
    served: bool = False
    """Use the model in service in `promotion.target` instead of `embedding.model`."""
    format: Annotated[str, choice_of(TABLE_FORMATS)] = "parquet"
    """Type of the inputs. `text`: a row per line, in `text_column`."""
    inputs: tuple[InputPath, ...] = ()
    """Files, folders, globs or tables."""
    follow_links: FollowLinks = False
    csv_separator: CsvSeparator = None
    csv_escape: CsvEscape = None
    text_column: str = "text"
    """Text column."""
    key_column: str | None = None
    """Column of unique integers or strings. After changes, rows with unchanged texts [keep their
    vectors](../concepts/vectors.md#tables-that-grow). Null: a changed table is refused, or replaced
    with `overwrite`."""
    output: StoredPath = "embedded"
    """Folder of the table, shared by driver and executors."""
    output_column: str = "embedding"
    """Vector column, after the input's columns."""
    overwrite: bool = False
    """Rebuild a finished table, and replace it at the end. An unfinished one of the same settings
    continues."""
    backend: Literal["auto", "openvino", "torch", "tensorflow"] = "auto"
    """Library that computes. `auto`: `torch` for tasks with GPUs, otherwise the first installed of
    these."""
    precision: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    """Format of matrix products. `auto`: bf16 on [hardware with the
    instructions](../concepts/vectors.md#backends-and-precision), otherwise fp32.
    [`int8`](../concepts/vectors.md#int8-matrix-products): on CPUs, calibrated on the table's texts;
    stored vectors keep their type (`quantise`)."""
    batch_tokens: int | None = Field(default=None, ge=1)
    """Tokens per forward pass; short texts form large batches. Null: 1,024 on a CPU, 65,536 on a
    GPU."""
    prompt_name: str | None = None
    """Prompt of the model before each text: `query`, `document` or another. Null: its default, if
    any."""
    dimensions: int | None = Field(default=None, ge=1)
    """Leading values of an embedding to keep, for Matryoshka models. Null: all."""
    quantise: Literal["none", "int8"] = "none"
    """`int8`: a byte per value, and a scale per vector in `<output_column>_scale`. Other systems
    then compare by cosine only."""
    part_megabytes: int = Field(default=128, ge=1)
    """Approximate size of an output file, the unit of work and resuming; smaller for small tables.
    Input files are never joined."""
    part_rows: int | None = Field(default=None, ge=1)
    """Most rows of an output file. Null: any number."""
    keep_changes: int = Field(default=30, ge=0)
    """Logs of [changes](../concepts/vectors.md#follow-the-changes) to keep in the table, one for
    each update, so other systems can follow it. 0: none."""
    merge_into: NameOrPath | None = None
    """[Delta or Iceberg table](../concepts/vectors.md#into-a-delta-or-iceberg-table) into which
    `embed` merges the finished output by `key_column`; created if missing. A name
    `catalog.database.table`; of Delta, also a folder or an address."""
    merge_format: Annotated[str, choice_of(MERGE_FORMATS)] = "delta"
    """Format of the `merge_into` table."""

    def check(self) -> None:
        """Refuse ``merge_into`` without ``key_column``: rows are merged by their key."""
        if self.merge_into is not None and self.key_column is None:
            raise InputError(
                "embedding.merge_into", "rows are merged by their key", "Set embedding.key_column"
            )


def _formats(key: str) -> Choice:
    """Return the table formats as choices of a key."""
    # Refusals name the key of the registry.
    return choice_of(replace(TABLE_FORMATS, key=key))


_COLUMNS = {
    "inputs": ("anchor_column", "positive_column", "group_column", "key_column"),
    "documents": ("documents_column", "documents_group_column"),
}
"""Keys that name columns, by the key of their table."""


class MiningSettings(Settings):
    """The pairs of the hard negatives, the documents to search, and the choice among them."""

    model: StoredPath | None = None
    """A sentence-transformers folder; embeds with `embedding.backend`, `precision`, `batch_tokens`
    and `dimensions`. Null: `<run.folder>/model`."""
    format: Annotated[str, _formats("mining.format")] = "parquet"
    """Type of the inputs."""
    inputs: tuple[InputPath, ...] = ()
    """Pairs: files, folders, globs or tables. Empty: the training pairs of `prepared.folder`."""
    follow_links: FollowLinks = False
    csv_separator: CsvSeparator = None
    csv_escape: CsvEscape = None
    anchor_column: str = "anchor"
    """Anchor column of `inputs`."""
    positive_column: str = "positive"
    """Positive column of `inputs`."""
    group_column: str | None = None
    """Group column of `inputs`: documents of an anchor's group are no negatives. Prepared pairs
    have their own groups."""
    key_column: str | None = None
    """Column of `inputs` to copy as `key`."""
    documents_format: Annotated[str, _formats("mining.documents_format")] = "parquet"
    """Type of `documents`."""
    documents: tuple[StoredPath, ...] = ()
    """Texts to search beside the positives: files, folders, globs or tables."""
    documents_column: str = "text"
    """Text column of `documents`."""
    documents_group_column: str | None = None
    """Group column of `documents`, compared with `group_column`."""
    output: StoredPath = "mined"
    """Folder of the table, shared by driver and executors."""
    overwrite: bool = False
    """Rebuild a finished table, and replace it at the end. An unfinished one of the same settings
    continues."""
    search: Annotated[str, choice_of(SEARCHES)] = "exact"
    """`exact`: all documents; `index`: HNSW graphs, with nearly the same results, much faster for
    millions of documents."""
    negatives: int = Field(default=1, ge=1, le=100)
    """Negatives per pair."""
    skip: int = Field(default=0, ge=0, le=10_000)
    """Nearest documents to skip, after the filters."""
    choose: Literal["nearest", "random"] = "nearest"
    """Documents after `skip`: the nearest, or random ones of the `window` nearest."""
    window: int = Field(default=50, ge=1, le=10_000)
    """Documents after `skip` for `choose: random`."""
    seed: int = Field(default=1, ge=0)
    """Seed of all random choices."""
    relative_margin: float | None = Field(default=0.05, ge=0, lt=1)
    """Refuse negatives with scores above the positive's less this share: at 0.05, above 95 % of it.
    Null: off."""
    absolute_margin: float | None = Field(default=None, ge=0, le=2)
    """Refuse negatives with scores above the positive's minus this value. Null: off."""
    margin_positive: Literal["lowest"] | None = None
    """Positive for both margins. Null: that of the pair. `lowest`: the anchor's least similar one,
    like sentence-transformers' `mine_hard_negatives`."""
    min_score: float | None = Field(default=None, ge=-1, le=1)
    """Least cosine of a negative."""
    max_score: float | None = Field(default=None, ge=-1, le=1)
    """Highest cosine of a negative."""
    same_group: bool = False
    """Allow negatives of the anchor's group."""
    fill: Literal["none", "random"] = "none"
    """Pairs with fewer than `negatives`: `none` drops them; `random` adds random documents, except
    the anchor's own."""
    part_rows: int | None = Field(default=None, ge=1, le=65_536)
    """Approximate rows to embed and search at a time. Null: 512 to 8,192, by the number of rows."""

    def check(self) -> None:
        """Refuse too narrow a window, scores that allow nothing, and columns without effect."""
        self._check_columns()
        if self.choose == "random" and self.window < self.negatives:
            raise InputError(
                "mining.window",
                f"{self.window} documents are fewer than mining.negatives",
                f"Set it to at least {self.negatives}",
            )
        bounds = (self.min_score, self.max_score)
        if None not in bounds and bounds[0] >= bounds[1]:  # type: ignore[operator]
            raise InputError(
                "mining.min_score",
                f"{self.min_score} is not below mining.max_score",
                f"Set it to less than {self.max_score}",
            )

    def _check_columns(self) -> None:
        for table, columns in _COLUMNS.items():
            if getattr(self, table):
                continue
            for name in columns:
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise InputError(
                        f"mining.{name}",
                        f"it names a column of mining.{table}, which is empty",
                        f"Name the table, or leave {name} out",
                    )
        # Prepared pairs have groups of their own.
        if self.inputs and self.documents_group_column is not None and self.group_column is None:
            raise InputError(
                "mining.documents_group_column",
                "the pairs have no groups to compare it with",
                "Set mining.group_column, or leave it out",
            )
