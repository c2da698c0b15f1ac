"""Settings of what is done with a model: measured, put in service, used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from pipelines.settings.base import Settings


class EvaluationSettings(Settings):
    """What is measured before and after training."""

    retrieval: bool = Field(default=True, description="On the held-out pairs of the corpus.")
    similarity: tuple[str, ...] = Field(
        default=(), description="Files of scored pairs (Parquet, CSV or JSON lines)."
    )
    similarity_columns: tuple[str, str, str] = Field(
        default=("sentence1", "sentence2", "score"), description="Two texts and their score."
    )
    retrieval_sets: tuple[str, ...] = Field(
        default=(),
        description=(
            "Folders in BEIR's layout (`corpus.jsonl`, `queries.jsonl`, `qrels/*.tsv`), or one "
            "of the files in `qrels`; unless told `test.tsv`, or else `dev.tsv`."
        ),
    )
    classification: tuple[str, ...] = Field(
        default=(),
        description="Files of pairs with label 1 or 0 (Parquet, CSV or JSON lines).",
    )
    classification_columns: tuple[str, str, str] = Field(
        default=("sentence1", "sentence2", "label"), description="Two texts and their label."
    )
    geometry: bool = Field(
        default=True, description="Alignment and uniformity of the held-out pairs."
    )
    every_checkpoints: int = Field(
        default=0,
        ge=0,
        description=(
            "While training goes on, measure every so many-th checkpoint, in a process beside the "
            "driver; 0: none. See [evaluation](evaluation.md)."
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


Points = Annotated[float, Field(allow_inf_nan=False)]
"""A figure times 100, as the evaluation has them."""


class PromotionSettings(Settings):
    """When a model takes the place of the one in service."""

    target: str | None = Field(
        default=None,
        description="Folder that models are served from; `current` in it is the one in service.",
    )
    metrics: tuple[str, ...] = Field(
        default=("retrieval.ndcg@10",),
        min_length=1,
        description="Figures that must not fall: the evaluation and the metric, as `metrics.json`.",
    )
    tolerance: Mapping[str, Annotated[Points, Field(ge=0)]] = Field(
        default_factory=dict,
        description=(
            "By metric, how many points lower than the model in service it may be; 0 unless set."
        ),
    )
    minimum: Mapping[str, Points] = Field(
        default_factory=dict,
        description="By metric, the fewest points; of the first promotion too.",
    )
    keep: int = Field(
        default=3, ge=1, description="Models kept that were in service before, to go back to."
    )


class EmbeddingSettings(Settings):
    """Which table gets a column of vectors, and how."""

    model: str | None = Field(
        default=None,
        description="A sentence-transformers folder; unset: `<run.folder>/model`.",
    )
    inputs: tuple[str, ...] = Field(
        default=(), description="Files, folders or globs; of `table` and `iceberg`: names."
    )
    format: Literal["parquet", "csv", "jsonl", "text", "delta", "iceberg", "table"] = Field(
        default="parquet",
        description="What the inputs are. `text`: a row for each line, in `text_column`.",
    )
    text_column: str = Field(default="text", description="Column that holds the text.")
    output: str = Field(
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
            "Who computes. `auto`: `torch` where tasks are given GPUs, otherwise the first of "
            "these that is installed."
        ),
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        default="auto",
        description=(
            "Of the matrix products. `auto`: bf16 on a GPU and on a CPU with the instructions for "
            "it, otherwise fp32."
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
        description="Rows of an output file: the unit of work, and of starting again.",
    )
