"""The section `embedding` of the settings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipelines.catalog import MERGE_FORMATS, TABLE_FORMATS
from pipelines.errors import InputError
from pipelines.settings.base import CsvEscape, CsvSeparator, FollowLinks, Settings, choice_of
from pipelines.settings.paths import InputPath, StoredPath


class EmbeddingSettings(Settings):
    """Which table gets a column of vectors, and how."""

    model: StoredPath | None = Field(
        default=None,
        description="A sentence-transformers folder; unset: `<run.folder>/model`.",
    )
    served: bool = Field(
        default=False,
        description="Take the model in service in `promotion.target` instead of `embedding.model`.",
    )
    format: Annotated[str, choice_of(TABLE_FORMATS)] = Field(
        default="parquet",
        description="What the inputs are. `text`: a row for each line, in `text_column`.",
    )
    inputs: tuple[InputPath, ...] = Field(
        default=(), description="Files, folders or globs; of `table` and `iceberg`: names."
    )
    follow_links: FollowLinks = False
    csv_separator: CsvSeparator = None
    csv_escape: CsvEscape = None
    text_column: str = Field(default="text", description="Column that holds the text.")
    key_column: str | None = Field(
        default=None,
        description=(
            "Column of whole numbers or strings, another one in each row. With it, a table whose "
            "input or model has changed is brought up to date: rows whose text is as it was keep "
            "their vectors. Unset: such a table is refused, or replaced with `overwrite`."
        ),
    )
    output: StoredPath = Field(
        default="embedded",
        description="Folder of the table, which the driver and every executor can reach.",
    )
    output_column: str = Field(
        default="embedding", description="Column of the vectors, behind those of the input."
    )
    overwrite: bool = Field(
        default=False,
        description=(
            "Make a finished table anew, every vector of it, which takes its place when it is "
            "whole; an unfinished one of the same settings goes on."
        ),
    )
    backend: Literal["auto", "openvino", "torch", "tensorflow"] = Field(
        default="auto",
        description=(
            "Library that computes. `auto`: `torch` where tasks are given GPUs, otherwise the "
            "first of these that is installed."
        ),
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        default="auto",
        description=(
            "Number format of matrix products. `auto`: bf16 on a GPU (of compute capability 8.0 or "
            "later) or CPU with the instructions for it, otherwise fp32."
        ),
    )
    batch_tokens: int | None = Field(
        default=None,
        ge=1,
        description=(
            "Tokens of one forward pass: short texts come in large batches. Unset: 1,024 on a CPU, "
            "65,536 on a GPU."
        ),
    )
    prompt_name: str | None = Field(
        default=None,
        description=(
            "Which of the model's prompts is put before each text: `query`, `document`, or another "
            "name. Unset: its default, if it has one."
        ),
    )
    dimensions: int | None = Field(
        default=None,
        ge=1,
        description="Values of an embedding to keep, for models trained for it; unset: all.",
    )
    quantise: Literal["none", "int8"] = Field(
        default="none",
        description=(
            "`int8`: a byte for each value, and a scale for each vector in "
            "`<output_column>_scale`; other systems may compare such vectors by cosine alone."
        ),
    )
    part_megabytes: int = Field(
        default=128,
        ge=1,
        description=(
            "Size of an output file, about, the unit of work and of resuming; of a small table it "
            "is less, so that all executors have some. An input file is never joined to another."
        ),
    )
    part_rows: int | None = Field(
        default=None, ge=1, description="Rows that an output file has at most; unset: any number."
    )
    merge_into: str | None = Field(
        default=None,
        description=(
            "Delta or Iceberg table, `catalog.database.table`, into which the rows are merged by "
            "`key_column` when the output is whole; it is made where there is none."
        ),
    )
    merge_format: Annotated[str, choice_of(MERGE_FORMATS)] = Field(
        default="delta", description="What the table of `merge_into` is, or is made as."
    )

    def check(self) -> None:
        """Refuses to merge rows that have no key.

        Raises:
            InputError: ``merge_into`` is set without ``key_column``.
        """
        if self.merge_into is not None and self.key_column is None:
            raise InputError(
                "embedding.merge_into", "rows are merged by their key", "set embedding.key_column"
            )
