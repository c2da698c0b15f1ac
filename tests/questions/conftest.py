"""Fixtures of questions: a server that writes them, documents, and jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from embedding_fixtures import lines, minilm_folder, sentence_file, small_model
from language_server import KEY, MODEL, LanguageServer
from local_servers import serving
from question_documents import DOCUMENTS, write_documents

import pipelines
from pipelines.questions.summary import AskingSummary
from pipelines.settings import Config
from pipelines.settings.load import parse

__all__ = ["lines", "minilm_folder", "sentence_file", "small_model"]


@dataclass(frozen=True)
class Asked:
    """A job that is done, with its server."""

    config: Config
    summary: AskingSummary
    server: dict[str, Any]
    documents: Path


@contextmanager
def served_language() -> Iterator[dict[str, Any]]:
    """A server with its faults, its requests and their number."""
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
    with serving(LanguageServer, **shared) as place:
        yield shared | {"address": f"http://127.0.0.1:{place['port']}/v1"}


@pytest.fixture
def language_server(monkeypatch) -> Iterator[dict[str, Any]]:
    """A server of this test alone."""
    monkeypatch.setenv("QUESTIONS_API_KEY", KEY)
    with served_language() as shared:
        yield shared


def write_lines(lines: list[str], folder: Path) -> Path:
    """Documents of two lines each."""
    texts = [" ".join(lines[2 * number : 2 * number + 2]) for number in range(DOCUMENTS)]
    return write_documents(folder / "documents.parquet", texts)


@pytest.fixture
def document_file(lines, tmp_path) -> Path:
    """Those documents, for this test alone."""
    return write_lines(lines, tmp_path)


def asking_about(documents: Path, address: str, model: Path, /, **settings: Any) -> Config:
    """The configuration of a job; its round trip is with a random model, so wide."""
    known = {
        "inputs": [str(documents)],
        "title_column": "title",
        "key_column": "id",
        "output": str(documents.with_name("questions")),
        "address": address,
        "model": MODEL,
        "retries": 2,
        "round_trip": 100,
        "round_trip_model": str(model),
    }
    return parse({"questions": known | settings, "embedding": {"precision": "fp32"}})


@pytest.fixture
def asking(language_server, document_file, small_model) -> Callable[..., Config]:
    """Makes the configuration of a job."""
    return partial(asking_about, document_file, language_server["address"], small_model)


@pytest.fixture(scope="module")
def whole(spark, lines, small_model, tmp_path_factory) -> Iterator[Asked]:
    """A job that is done; nobody writes into its folder."""
    documents = write_lines(lines, tmp_path_factory.mktemp("whole"))
    with pytest.MonkeyPatch.context() as patched, served_language() as server:
        patched.setenv("QUESTIONS_API_KEY", KEY)
        # The round trip ranks all documents, so none is missed.
        settings = {"round_trip": DOCUMENTS, "price_input": 1.0, "price_output": 10.0}
        config = asking_about(documents, server["address"], small_model, **settings)
        yield Asked(config, pipelines.ask(config), server, documents)
