"""A model folder as MLflow's pyfunc: what `mlflow.pyfunc.load_model` and `spark_udf` load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

PROMPT_NAME = "prompt_name"


class SentenceEncoder:
    """Texts to vectors, with the interface that MLflow asks for.

    Args:
        folder: A sentence-transformers folder.
    """

    def __init__(self, folder: str | Path) -> None:
        from pipelines.models.inference.embedder import load_embedder

        self._embed = load_embedder(Path(folder))

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> np.ndarray:
        """Embeds texts.

        Args:
            model_input: A text, a list, array or Series of texts, or a DataFrame of one column.
            params: ``prompt_name`` says which of the model's prompts stands before the texts, as
                for :class:`~pipelines.models.inference.embedder.TextEmbedder`.

        Returns:
            float32 [texts, width].

        Raises:
            ValueError: There are several columns.
            TypeError: Something is no text.
        """
        return self._embed(texts_of(model_input), (params or {}).get(PROMPT_NAME) or None)


def texts_of(model_input: Any) -> list[str]:
    """The texts of what :meth:`SentenceEncoder.predict` takes.

    Raises:
        ValueError: There are several columns.
        TypeError: Something is no text.
    """
    if isinstance(model_input, str):
        return [model_input]
    columns = getattr(model_input, "columns", None)
    if columns is not None:
        if len(columns) != 1:
            named = ", ".join(map(str, columns))
            raise ValueError(
                f"one column of texts is needed, and there are {len(columns)}: {named}"
            )
        model_input = model_input.iloc[:, 0]
    values = model_input.ravel() if isinstance(model_input, np.ndarray) else model_input
    texts = list(values)
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"row {row} is no text: {text!r}")
    return texts


def load(folder: str | Path) -> SentenceEncoder:
    """Loads a model folder."""
    return SentenceEncoder(folder)


def _load_pyfunc(path: str) -> SentenceEncoder:
    """Called by MLflow with the folder of the model's data."""
    return load(path)
