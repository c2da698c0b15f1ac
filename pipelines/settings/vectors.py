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
    Settings,
    StoredPath,
    choice_of,
)


class EmbeddingSettings(Settings):
    """The table that gets a column of vectors, and how."""

    model: StoredPath | None = None
    """A sentence-transformers folder; unset: `<run.folder>/model`."""
    served: bool = False
    """Take the model in service in `promotion.target` instead of `embedding.model`."""
    format: Annotated[str, choice_of(TABLE_FORMATS)] = "parquet"
    """What the inputs are. `text`: a row for each line, in `text_column`."""
    inputs: tuple[InputPath, ...] = ()
    """Files, folders or globs; of `table` and `iceberg`: names."""
    follow_links: FollowLinks = False
    csv_separator: CsvSeparator = None
    csv_escape: CsvEscape = None
    text_column: str = "text"
    """Column that holds the text."""
    key_column: str | None = None
    """Column of whole numbers or strings, another one in each row. With it, a table whose input or
    model has changed is brought up to date: rows whose text is as it was keep their vectors. Unset:
    such a table is refused, or replaced with `overwrite`."""
    output: StoredPath = "embedded"
    """Folder of the table, which the driver and every executor can reach."""
    output_column: str = "embedding"
    """Column of the vectors, behind those of the input."""
    overwrite: bool = False
    """Make a finished table anew, every vector of it, which takes its place when it is whole; an
    unfinished one of the same settings goes on."""
    backend: Literal["auto", "openvino", "torch", "tensorflow"] = "auto"
    """Library that computes. `auto`: `torch` where tasks are given GPUs, otherwise the first of
    these that is installed."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Number format of matrix products. `auto`: bf16 on a GPU (of compute capability 8.0 or later)
    or CPU with the instructions for it, otherwise fp32."""
    batch_tokens: int | None = Field(default=None, ge=1)
    """Tokens of one forward pass: short texts come in large batches. Unset: 1,024 on a CPU, 65,536
    on a GPU."""
    prompt_name: str | None = None
    """Which of the model's prompts is put before each text: `query`, `document`, or another name.
    Unset: its default, if it has one."""
    dimensions: int | None = Field(default=None, ge=1)
    """Values of an embedding to keep, for models trained for it; unset: all."""
    quantise: Literal["none", "int8"] = "none"
    """`int8`: a byte for each value, and a scale for each vector in `<output_column>_scale`; other
    systems may compare such vectors by cosine alone."""
    part_megabytes: int = Field(default=128, ge=1)
    """Size of an output file, about, the unit of work and of resuming; of a small table it is less,
    so that all executors have some. An input file is never joined to another."""
    part_rows: int | None = Field(default=None, ge=1)
    """Rows that an output file has at most; unset: any number."""
    merge_into: str | None = None
    """Delta or Iceberg table, `catalog.database.table`, into which the rows are merged by
    `key_column` when the output is whole; it is made where there is none."""
    merge_format: Annotated[str, choice_of(MERGE_FORMATS)] = "delta"
    """What the table of `merge_into` is, or is made as."""

    def check(self) -> None:
        """Refuse ``merge_into`` without ``key_column``: rows are merged by their key."""
        if self.merge_into is not None and self.key_column is None:
            raise InputError(
                "embedding.merge_into", "rows are merged by their key", "set embedding.key_column"
            )


def _formats(key: str) -> Choice:
    """Return the table formats as choices of a key."""
    return choice_of(replace(TABLE_FORMATS, key=key))


_COLUMNS = {
    "inputs": ("anchor_column", "positive_column", "group_column", "key_column"),
    "documents": ("documents_column", "documents_group_column"),
}
"""Keys that name columns, by the key of their table."""


class MiningSettings(Settings):
    """The pairs that get hard negatives, the documents to search, and the choice among them."""

    model: StoredPath | None = None
    """A sentence-transformers folder; unset: `<run.folder>/model`. It embeds as
    `embedding.backend`, `precision`, `batch_tokens` and `dimensions` say."""
    format: Annotated[str, _formats("mining.format")] = "parquet"
    """What the inputs are."""
    inputs: tuple[InputPath, ...] = ()
    """Pairs: files, folders or globs; of `table` and `iceberg`: names. Empty: the pairs for
    training in `prepared.folder`."""
    follow_links: FollowLinks = False
    csv_separator: CsvSeparator = None
    csv_escape: CsvEscape = None
    anchor_column: str = "anchor"
    """Column of the anchors in `inputs`."""
    positive_column: str = "positive"
    """Column of the positives in `inputs`."""
    group_column: str | None = None
    """Column of `inputs` whose value anchors share with documents that are no negatives of theirs.
    Prepared pairs have groups of their own."""
    key_column: str | None = None
    """Column of `inputs` that is copied to the output as `key`."""
    documents_format: Annotated[str, _formats("mining.documents_format")] = "parquet"
    """What `documents` are."""
    documents: tuple[StoredPath, ...] = ()
    """Texts that are searched beside the positives: files, folders, globs or names."""
    documents_column: str = "text"
    """Column of `documents` that holds the text."""
    documents_group_column: str | None = None
    """Column of `documents` that is compared with the anchors' groups, those of `group_column`."""
    output: StoredPath = "mined"
    """Folder of the table, which the driver and every executor can reach."""
    overwrite: bool = False
    """Make a finished table anew, which takes its place when it is whole; an unfinished one of the
    same settings goes on."""
    search: Annotated[str, choice_of(SEARCHES)] = "exact"
    """`exact`: every anchor with every document; `index`: by graphs (HNSW), which find nearly the
    same in a part of the time where there are millions of documents."""
    negatives: int = Field(default=1, ge=1, le=100)
    """Negatives of a pair."""
    skip: int = Field(default=0, ge=0, le=10_000)
    """The nearest documents that are passed over, of those that pass the filters."""
    choose: Literal["nearest", "random"] = "nearest"
    """Which documents behind `skip` are taken: the nearest, or random ones of the `window`
    nearest."""
    window: int = Field(default=50, ge=1, le=10_000)
    """Documents behind `skip` of which `choose: random` takes some."""
    seed: int = Field(default=1, ge=0)
    """Of all that is random."""
    relative_margin: float | None = Field(default=0.05, ge=0, lt=1)
    """A document is no negative if its score is above the positive's by less than this share: at
    0.05, above 95 % of it. Unset: not compared."""
    absolute_margin: float | None = Field(default=None, ge=0, le=2)
    """The same, if its score is above the positive's less this much."""
    margin_positive: Literal["lowest"] | None = None
    """Of an anchor with several positives, the one whose score both margins begin at. Unset: that
    of the pair. `lowest`: the least similar one, for all pairs, as `mine_hard_negatives` of
    sentence-transformers has it."""
    min_score: float | None = Field(default=None, ge=-1, le=1)
    """Least cosine of a negative."""
    max_score: float | None = Field(default=None, ge=-1, le=1)
    """Highest cosine of a negative."""
    same_group: bool = False
    """Take negatives of the anchor's group, too."""
    fill: Literal["none", "random"] = "none"
    """What becomes of a pair with fewer than `negatives`: `none`: it is left out; `random`: the
    others are drawn from all documents that are not the anchor's own."""
    part_rows: int | None = Field(default=None, ge=1, le=65_536)
    """Rows that are embedded and searched at a time, about: the unit of work, of memory and of
    resuming. Unset: 512 to 8,192, by the number of rows."""

    def check(self) -> None:
        """Refuse too narrow a window, scores that allow nothing, and columns without effect."""
        self._check_columns()
        if self.choose == "random" and self.window < self.negatives:
            raise InputError(
                "mining.window",
                f"{self.window} documents are fewer than mining.negatives",
                f"at least {self.negatives}",
            )
        bounds = (self.min_score, self.max_score)
        if None not in bounds and bounds[0] >= bounds[1]:  # type: ignore[operator]
            raise InputError(
                "mining.min_score",
                f"{self.min_score} is not below mining.max_score",
                f"less than {self.max_score}",
            )

    def _check_columns(self) -> None:
        for table, columns in _COLUMNS.items():
            if getattr(self, table):
                continue
            for name in columns:
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise InputError(
                        f"mining.{name}",
                        f"it is a column of mining.{table}, which is empty",
                        f"name the table, or leave {name} out",
                    )
        # Prepared pairs have groups of their own.
        if self.inputs and self.documents_group_column is not None and self.group_column is None:
            raise InputError(
                "mining.documents_group_column",
                "the pairs have no groups to compare it with",
                "set mining.group_column, or leave it out",
            )
