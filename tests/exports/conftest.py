"""Models of a few kilobytes to export, with what a model may have beside its layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tiny_checkpoints import FAMILIES, write_sentence_folder

from pipelines.models.folder import read_encoder, write_encoder
from pipelines.models.lsa.modules import with_terms
from pipelines.models.static.architecture import StaticSpec
from pipelines.models.weights import random_weights
from pipelines.settings import Config
from pipelines.settings.load import load
from pipelines.tokens.start import Prompts
from pipelines.tokens.vocabulary import save_wordpieces

PROMPTS = Prompts((("query", "ask: "), ("document", "text: ")))
PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@pytest.fixture
def settings(tmp_path) -> Config:
    """Settings without a prepared corpus."""
    return load(None, [f"prepared.folder={tmp_path / 'none'}", f"run.folder={tmp_path / 'run'}"])


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Callable[[str], Path]:
    """A model folder by name, made when it is asked for; not to be changed."""
    home = tmp_path_factory.mktemp("models")

    def write(name: str) -> Path:
        folder = home / name
        if name.startswith("static"):
            return write_static(folder, limited=name == "static-limited")
        family, *added = name.split("+")
        pooling = "cls" if "cls" in added else None
        write_sentence_folder(folder, FAMILIES[family], pooling=pooling, dense="dense" in added)
        if "lsa" in added:
            spec, weights = read_encoder(folder)
            vectors = np.random.default_rng(5).standard_normal((spec.vocabulary, 6))
            spec, weights = with_terms(spec, weights, vectors.astype(np.float32))
            start, folder = folder, home / f"{name}-terms"
            write_encoder(folder, replace(spec, prompts=PROMPTS), weights, start, "card")
        return folder

    return cache(write)


def write_static(folder: Path, *, limited: bool) -> Path:
    """A static encoder over letters and a few words, with a limit of 12 tokens or none."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,?!'-"
    words = ("the", "model", "reads", "text", "of", "return", "value", "file")
    pieces = [*PIECES, *letters, *(f"##{letter}" for letter in letters), *words]
    tokenizer = folder.parent / f"{folder.name}-tokenizer"
    tokenizer.mkdir()
    save_wordpieces(tokenizer, pieces, 64, lowercase=True)
    limit = {"max_length": 12} if limited else {}
    spec = StaticSpec(vocabulary=len(pieces), hidden=16, prompts=PROMPTS, **limit)
    card = "---\nlicense: apache-2.0\nlanguage: en\n---\n\n# A static encoder\n"
    write_encoder(folder, spec, random_weights(spec, 3), tokenizer, card)
    return folder
