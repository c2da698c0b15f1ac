"""The section `embedding` of the settings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipelines.corpus.readers import TABLE_FORMATS
from pipelines.settings.base import Settings, choice_of
from pipelines.settings.paths import LocalInputPath, LocalPath, StoredPath


class EmbeddingSettings(Settings):
    """Which table gets a column of vectors, and how."""

    model: StoredPath | None = Field(
        default=None,
        description="A sentence-transformers folder; unset: `<run.folder>/model`.",
    )
    format: Annotated[str, choice_of(TABLE_FORMATS)] = Field(
        default="parquet",
        description="What the inputs are. `text`: a row for each line, in `text_column`.",
    )
    inputs: tuple[LocalInputPath, ...] = Field(
        default=(), description="Files, folders or globs; of `table` and `iceberg`: names."
    )
    text_column: str = Field(default="text", description="Column that holds the text.")
    output: LocalPath = Field(
        default="embedded",
        description="Folder of the table, which the driver and every executor can reach.",
    )
    output_column: str = Field(
        default="embedding", description="Column of the vectors, behind those of the input."
    )
    overwrite: bool = Field(
        default=False,
        description=(
            "Replace a finished table that the folder holds; an unfinished one of the same "
            "settings goes on."
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
            "`int8`: a byte for each value, and a scale for each vector in `<output_column>_scale`."
        ),
    )
    part_rows: int = Field(
        default=16384,
        ge=1,
        description="Rows of an output file, the unit of work and of resuming.",
    )
