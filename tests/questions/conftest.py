"""Fixtures of questions: a server that writes them, documents, and jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from embedding_fixtures import lines, minilm_folder, sentence_file, small_model
from language_server import KEY, MODEL, LanguageServer
from local_servers import serving
from question_documents import DOCUMENTS, write_documents

from pipelines.settings import Config
from pipelines.settings.load import parse

__all__ = ["lines", "minilm_folder", "sentence_file", "small_model"]


@pytest.fixture
def language_server(monkeypatch) -> Iterator[dict[str, Any]]:
    """A server of this test alone, with its faults, its requests and their number."""
    shared: dict[str, Any] = {
        **{
            name: []
            for name in (
                *("faults", "seen", "refused", "broken", "limits", "endless", "pauses", "sent"),
            )
        },
        "counts": Counter(),
        "counts_tokens": [True],
    }
    monkeypatch.setenv("QUESTIONS_API_KEY", KEY)
    with serving(LanguageServer, **shared) as place:
        yield shared | {"address": f"http://127.0.0.1:{place['port']}/v1"}


@pytest.fixture
def document_file(lines, tmp_path) -> Path:
    """Documents of two lines each."""
    texts = [" ".join(lines[2 * number : 2 * number + 2]) for number in range(DOCUMENTS)]
    return write_documents(tmp_path / "documents.parquet", texts)


@pytest.fixture
def asking(language_server, document_file, small_model, tmp_path) -> Callable[..., Config]:
    """Makes the configuration of a job; its round trip is with a random model, so wide."""

    def configured(**settings: Any) -> Config:
        known = {
            "inputs": [str(document_file)],
            "title_column": "title",
            "key_column": "id",
            "output": str(tmp_path / "questions"),
            "address": language_server["address"],
            "model": MODEL,
            "retries": 2,
            "round_trip": 100,
            "round_trip_model": str(small_model),
        }
        return parse({"questions": known | settings, "embedding": {"precision": "fp32"}})

    return configured
