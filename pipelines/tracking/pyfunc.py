"""A model folder as MLflow's pyfunc, for `mlflow.pyfunc.load_model` and `spark_udf`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

PROMPT_NAME = "prompt_name"
TEXT = "text"
"""The column of texts in the model's signature."""


class SentenceEncoder:
    """An encoder of a sentence-transformers folder, with MLflow's interface of models."""

    def __init__(self, folder: str | Path) -> None:
        from pipelines.models.inference.embedder import load_embedder

        self._embed = load_embedder(Path(folder))

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> np.ndarray:
        """Embed texts (see :func:`texts_of`) into float32 [texts, width].

        ``prompt_name`` in ``params`` names the model's prompt before the texts, as for
        :class:`~pipelines.models.inference.embedder.TextEmbedder`.

        Raises:
            ValueError: There are several columns, and none is called ``text``.
            TypeError: A value is no text.
        """
        return self._embed(texts_of(model_input), (params or {}).get(PROMPT_NAME) or None)


def texts_of(model_input: Any) -> list[str]:
    """Return the texts of an input of :meth:`SentenceEncoder.predict`.

    It is a text; a list, array or Series of texts; a DataFrame of pandas; or, as servers of models
    receive it, a dictionary of columns or a list of dictionaries. A single column may have any
    name; of several, ``text`` holds the texts.

    Raises:
        ValueError: There are several columns, and none is called ``text``.
        TypeError: A value is no text.
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
            raise ValueError(f"the array has the shape {model_input.shape}, and needs one column")
        return list(model_input.ravel())
    if not hasattr(model_input, "columns"):
        return list(model_input)
    # A Spark frame has `columns` too.
    if not hasattr(model_input, "iloc"):
        raise TypeError(f"{type(model_input)} is no DataFrame of pandas. For Spark use spark_udf.")
    return list(model_input.iloc[:, _place([*model_input.columns])])


def _field(row: dict[Any, Any]) -> Any:
    return row[[*row][_place([*row])]]


def _place(names: list[Any]) -> int:
    """Return the index of the column of texts."""
    if len(names) == 1:
        return 0
    if names.count(TEXT) != 1:
        named = ", ".join(map(str, names))
        raise ValueError(
            f"the input needs one column called `{TEXT}`, and has {len(names)} columns: {named}"
        )
    return names.index(TEXT)


def load(folder: str | Path) -> SentenceEncoder:
    """Load a model folder."""
    return SentenceEncoder(folder)


def _load_pyfunc(path: str) -> SentenceEncoder:
    """Load a model folder: MLflow calls it."""
    return load(path)
