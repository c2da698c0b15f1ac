"""Params that the stages of :mod:`pipelines.ml` share."""

from __future__ import annotations

from typing import Any

from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import HasInputCol, HasOutputCol

from pipelines.errors import InputError

ARRAY, VECTOR = "array", "vector"
"""Values of `outputType`."""


class EmbeddingParams(HasInputCol, HasOutputCol):  # type: ignore[misc] # pyspark.ml is untyped
    """How a transformation embeds its texts."""

    _input_kwargs: dict[str, Any]  # What `keyword_only` leaves.

    backend = Param(
        Params._dummy(),
        "backend",
        "the backend: auto, torch, openvino or tensorflow",
        TypeConverters.toString,
    )
    precision = Param(
        Params._dummy(),
        "precision",
        "of the matrix products: auto, fp32 or bf16",
        TypeConverters.toString,
    )
    batchTokens = Param(  # noqa: N815 - as pyspark.ml names Params, here and below
        Params._dummy(),
        "batchTokens",
        "tokens of one forward pass; 0: chosen automatically",
        TypeConverters.toInt,
    )
    dimensions = Param(
        Params._dummy(),
        "dimensions",
        "values of an embedding to keep; 0: all",
        TypeConverters.toInt,
    )
    quantise = Param(
        Params._dummy(), "quantise", "none, or int8 with a scale column", TypeConverters.toString
    )
    promptName = Param(  # noqa: N815
        Params._dummy(),
        "promptName",
        "the model's prompt to put before each text; empty: its default, if any",
        TypeConverters.toString,
    )
    outputType = Param(  # noqa: N815
        Params._dummy(),
        "outputType",
        "array of numbers, or vector, which many stages of pyspark.ml need",
        TypeConverters.toString,
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            inputCol="text",
            outputCol="embedding",
            backend="auto",
            precision="auto",
            batchTokens=0,
            dimensions=0,
            quantise="none",
            promptName="",
            outputType=ARRAY,
        )

    def _output_type(self) -> str:
        """Value of `outputType`.

        Raises:
            InputError: There is no such type, or it cannot hold the quantised vectors.
        """
        kind: str = self.getOrDefault(self.outputType)
        if kind not in (ARRAY, VECTOR):
            raise InputError("outputType", f"there is no `{kind}`", f"{ARRAY} or {VECTOR}")
        if kind == VECTOR and self.getOrDefault(self.quantise) != "none":
            raise InputError("outputType", f"a {VECTOR} holds no int8", f"{ARRAY}, or all values")
        return kind

    def _embedding_settings(self) -> dict[str, Any]:
        """The keys of the section `embedding` that Params set."""
        return {
            "backend": self.getOrDefault(self.backend),
            "precision": self.getOrDefault(self.precision),
            "batch_tokens": self.getOrDefault(self.batchTokens) or None,
            "prompt_name": self.getOrDefault(self.promptName) or None,
            "dimensions": self.getOrDefault(self.dimensions) or None,
            "quantise": self.getOrDefault(self.quantise),
        }
