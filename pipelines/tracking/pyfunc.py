"""A model folder as MLflow's pyfunc: what `mlflow.pyfunc.load_model` and `spark_udf` load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

PROMPT_NAME = "prompt_name"
TEXT = "text"
"""The column of texts in the model's signature."""


class SentenceEncoder:
    """Texts to vectors, with the interface that MLflow asks for.

    Args:
        folder: A sentence-transformers folder.
    """

    def __init__(self, folder: str | Path) -> None:
        from pipelines.models.inference.embedder import load_embedder

        self._embed = load_embedder(Path(folder))

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> np.ndarray:
        """Embed texts.

        Args:
            model_input: See :func:`texts_of`.
            params: ``prompt_name`` says which of the model's prompts stands before the texts, as
                for :class:`~pipelines.models.inference.embedder.TextEmbedder`.

        Returns:
            float32 [texts, width].

        Raises:
            ValueError: There are several columns, and none is called ``text``.
            TypeError: Something is no text.
        """
        return self._embed(texts_of(model_input), (params or {}).get(PROMPT_NAME) or None)


def texts_of(model_input: Any) -> list[str]:
    """Return the texts of what :meth:`SentenceEncoder.predict` takes.

    Of several columns the texts are those of ``text``; a column that is alone may have any name.

    Args:
        model_input: A text; a list, array or Series of texts; a DataFrame of pandas; a dictionary
            of columns, or a list of dictionaries, as servers of models are sent them.

    Raises:
        ValueError: There are several columns, and none is called ``text``.
        TypeError: Something is no text.
    """
    if isinstance(model_input, str):
        return [model_input]
    values = _text_column(model_input)
    texts = [_field(value) if isinstance(value, dict) else value for value in values]
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(
                f"row {row} of {len(texts)} is no text: {text!r}. "
                "Leave such rows out, or fill them in."
            )
    return texts


def _text_column(model_input: Any) -> list[Any]:
    if isinstance(model_input, dict):
        found = _field(model_input)
        return [found] if isinstance(found, str) else list(found)
    if isinstance(model_input, np.ndarray):
        if model_input.ndim > 1 and model_input.shape[-1] != 1:
            raise ValueError(f"an array of one column is needed, and it has {model_input.shape}")
        return list(model_input.ravel())
    if not hasattr(model_input, "columns"):
        return list(model_input)
    if not hasattr(model_input, "iloc"):
        raise TypeError(f"{type(model_input)} is no DataFrame of pandas. For Spark use spark_udf.")
    return list(model_input.iloc[:, _place([*model_input.columns])])


def _field(row: dict[Any, Any]) -> Any:
    return row[[*row][_place([*row])]]


def _place(names: list[Any]) -> int:
    """Find the column of texts."""
    if len(names) == 1:
        return 0
    if names.count(TEXT) != 1:
        named = ", ".join(map(str, names))
        raise ValueError(
            f"one column called `{TEXT}` is needed, and there are {len(names)}: {named}"
        )
    return names.index(TEXT)


def load(folder: str | Path) -> SentenceEncoder:
    """Loads a model folder."""
    return SentenceEncoder(folder)


def _load_pyfunc(path: str) -> SentenceEncoder:
    """Load a model folder: MLflow calls it."""
    return load(path)
