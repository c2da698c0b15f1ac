"""A small model for queries, one for documents, and the Router of both, without any training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipelines.exports import router
from pipelines.exports.base import Source
from pipelines.files import storage
from pipelines.models.folder import read_encoder, read_model, write_encoder
from pipelines.models.identity import (
    DOCUMENTS,
    EXPORT_FILE,
    FIELD,
    FILES,
    files_digest,
    model_digest,
)
from pipelines.models.spec import Dense
from pipelines.tokens.start import Prompts

ASKING, SAYING = Prompts((("query", "ask: "),)), Prompts((("document", "say: "),))


class Pair(NamedTuple):
    """The folders of two models and of their Router."""

    queries: Path
    documents: Path
    router: Path


def write_pair(home: Path, base: Path) -> Pair:
    """Write the model of a folder for documents, and for queries one with about its vectors."""
    pair = Pair(home / "queries", home / "documents", home / "router")
    spec, weights = read_encoder(base)
    write_encoder(pair.documents, replace(spec, prompts=SAYING), weights, base, "")
    layer = Dense(width=spec.hidden, activation="identity")
    noise = np.random.default_rng(2).standard_normal((spec.hidden, spec.hidden)) / 40
    weights = {
        **weights,
        "dense.0.weight": (np.eye(spec.hidden) + noise).astype(np.float32),
        "dense.0.bias": np.full(spec.hidden, 0.01, np.float32),
    }
    write_encoder(pair.queries, replace(spec, dense=(layer,), prompts=ASKING), weights, base, "")
    write_router(pair)
    return pair


def source_of(folder: Path) -> Source:
    return Source(folder, *read_model(folder), model_digest(folder))


def write_router(pair: Pair) -> None:
    """Write the Router of two models, with the record of its export."""
    documents = source_of(pair.documents)
    source = replace(source_of(pair.queries), documents=documents)
    pair.router.mkdir()
    router.write(source, pair.router, False)
    second = {FIELD: documents.digest, FILES: files_digest(pair.router)}
    record = {FIELD: source.digest, DOCUMENTS: second, "runtime": "router"}
    storage.write_json(pair.router / EXPORT_FILE, record)
