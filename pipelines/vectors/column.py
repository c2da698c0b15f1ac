"""A column of vectors for a column of texts, in any frame."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.corpus.readers.inputs import has_columns
from pipelines.errors import InputError
from pipelines.models.inference.backends import GPU_BACKEND, INT8, choose_backend
from pipelines.spark.capacity import conf_value, task_threads
from pipelines.spark.frames import holds_text
from pipelines.vectors.embedding import (
    Columns,
    EmbeddingOptions,
    embed_batches,
    embedding_options,
    refuse_int8,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def embed_column(
    frame: DataFrame,
    model: str | Path,
    *,
    text_column: str = "text",
    output_column: str = "embedding",
    backend: str = "auto",
    precision: str = "auto",
    batch_tokens: int | None = None,
    prompt_name: str | None = None,
    dimensions: int | None = None,
    quantise: str = "none",
) -> DataFrame:
    """Add a column of vectors after the others of a frame; lazy, like any transformation.

    Args:
        model: A sentence-transformers folder, readable for the driver and every executor.
        text_column: Strings; a null gives a null.
        output_column: ``array<float>``; quantised, ``array<tinyint>`` with `<output_column>_scale`
            (float) behind it.
        backend: See :class:`~pipelines.vectors.embedding.EmbeddingOptions`, as for the others.
        precision: ``auto``, ``fp32`` or ``bf16``, of the matrix products.
        prompt_name: The model's prompt before each text; None for its default.
        quantise: ``none`` or ``int8``.

    Raises:
        InputError: The frame has no such column of strings, or has the output already, or the
            options do not fit the model.
    """
    refuse_int8(precision, "embed_column")
    from pyspark.sql.types import ArrayType, ByteType, FloatType, StructField, StructType

    options = embedding_options(
        model,
        backend=backend_for(frame.sparkSession, backend),
        precision=precision,
        threads=task_threads(frame.sparkSession),
        batch_tokens=batch_tokens,
        prompt_name=prompt_name,
        dimensions=dimensions,
        quantise=quantise,
    )
    columns = Columns(text=text_column, vector=output_column)
    is_text = {field.name: holds_text(field.dataType) for field in frame.schema.fields}
    check_columns(is_text, columns, options)
    value = ByteType() if options.is_quantised else FloatType()
    # Estimators such as KMeans take no array that might hold nulls.
    added = [StructField(columns.vector, ArrayType(value, containsNull=False))]
    if options.is_quantised:
        added.append(StructField(columns.scale, FloatType()))
    schema = StructType([*frame.schema.fields, *added])
    return frame.mapInArrow(partial(embed_batches, options=options, columns=columns), schema)


def check_columns(
    is_text: dict[str, bool], columns: Columns, options: EmbeddingOptions, where: str = "the table"
) -> None:
    """Refuse a table without the column of texts, or with an output column.

    ``is_text`` holds, by column name, whether a column has strings; ``where`` names the table in
    messages.

    Raises:
        InputError: A column is missing, holds no text, or is there already.
    """
    if columns.text not in is_text:
        problem = f"{where} has no column `{columns.text}`"
        raise InputError("embedding.text_column", problem, has_columns(is_text, "embedding"))
    if not is_text[columns.text]:
        problem = f"`{columns.text}` of {where} holds no text"
        raise InputError("embedding.text_column", problem, "Name a column of strings")
    for name in columns.stored if options.is_quantised else [columns.vector]:
        if name in is_text:
            problem = f"{where} already has a column `{name}`"
            raise InputError("embedding.output_column", problem, "Choose another name")


def options_in(session: SparkSession, options: EmbeddingOptions, backend: str) -> EmbeddingOptions:
    """Return the driver's options for tasks: with their threads, and on GPUs if they have some.

    ``backend`` is as in the settings.

    Raises:
        InputError: The backend has no form of the model.
    """
    # Tasks have other cores than the driver, and perhaps GPUs.
    is_int8 = options.precision == INT8
    # int8 products are for CPUs, whatever the tasks have.
    wanted = options.backend if is_int8 else backend_for(session, backend)
    chosen = choose_backend(wanted, *options.kinds)
    return replace(options, threads=task_threads(session), backend=chosen)


def backend_for(session: SparkSession, name: str) -> str:
    """Return the named backend; for ``auto``, the one for GPUs if tasks have some."""
    gpus = conf_value(session, "spark.task.resource.gpu.amount")
    return GPU_BACKEND if name == "auto" and gpus else name
