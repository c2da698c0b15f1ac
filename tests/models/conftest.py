"""Real text and small encoders for the encoder's tests."""

from __future__ import annotations

import argparse
import collections
import inspect
import json
import logging
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tiny_checkpoints import FAMILIES, write_plain

from pipelines.models.bert.spec import BertSpec
from pipelines.models.folder import write_encoder
from pipelines.models.weights import random_weights
from pipelines.tokens.vocabulary import learn_wordpieces, save_wordpieces


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    """200 paragraphs from docstrings of the standard library, of one word to a page."""
    members = (
        member
        for module in (argparse, collections, inspect, json, logging)
        for _, member in sorted(vars(module).items())
        if callable(member)
    )
    texts = [part for member in members for part in (inspect.getdoc(member) or "").split("\n\n")]
    found = [text for text in dict.fromkeys(texts) if text.strip()][:200]
    assert len(found) == 200
    return found


@pytest.fixture(scope="session")
def small_folder(sentences, tmp_path_factory) -> Path:
    """A random 2x64 encoder over a vocabulary trained on the sentences."""
    counts = Counter(word for text in sentences for word in text.lower().split())
    pieces = learn_wordpieces(dict(counts.most_common()), 600)
    tokenizer = tmp_path_factory.mktemp("tokenizer")
    save_wordpieces(tokenizer, pieces, 64, lowercase=True)
    spec = BertSpec(
        vocabulary=len(pieces), layers=2, hidden=64, heads=4, intermediate=256, normalise=False
    )
    folder = tmp_path_factory.mktemp("small") / "model"
    write_encoder(folder, spec, random_weights(spec, 5), tokenizer, "# A small encoder\n")
    return folder


@pytest.fixture(scope="session")
def plain(tmp_path_factory) -> Callable[[str], Path]:
    """The plain checkpoint of each family, made when it is asked for; not to be changed."""
    home = tmp_path_factory.mktemp("plain")
    return cache(lambda name: write_plain(home / name, FAMILIES[name]))
