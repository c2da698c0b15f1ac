"""A small encoder, real sentences, and a table of them."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.models.bert.spec import BertSpec
from pipelines.models.folder import default_start, write_encoder
from pipelines.models.weights import random_weights
from pipelines.settings import Config
from pipelines.settings.load import parse
from pipelines.tokens.vocabulary import SPECIAL_TOKENS, load_tokenizer, save_wordpieces
from pipelines.vectors.embed import EmbeddingSummary, embed_table

CONTINUES = "##"
"""Before a piece that does not begin a word."""


@pytest.fixture(scope="session")
def small_model(tmp_path_factory) -> Path:
    """A random encoder of one layer that cuts :func:`lines` into the words of the default one.

    Of its other words it has the single characters alone: each job loads a tokenizer several times.
    """
    tokenizer = load_tokenizer(default_start())
    used = {piece for line in prose_lines() for piece in tokenizer.encode(line).tokens}
    characters = {
        piece for piece in tokenizer.get_vocab() if len(piece.removeprefix(CONTINUES)) == 1
    }
    pieces = [*SPECIAL_TOKENS, *sorted((used | characters) - {*SPECIAL_TOKENS})]
    home = tmp_path_factory.mktemp("small-model")
    (home / "tokenizer").mkdir()
    save_wordpieces(home / "tokenizer", pieces, 256, lowercase=True)
    spec = BertSpec(vocabulary=len(pieces), layers=1, hidden=32, heads=2, intermediate=64)
    weights = random_weights(spec, 5)
    write_encoder(home / "model", spec, weights, home / "tokenizer", "# A small encoder\n")
    return home / "model"


def prose_lines() -> list[str]:
    """300 lines of real prose of many lengths."""
    source = Path(textwrap.__file__).parent / "argparse.py"
    found = dict.fromkeys(line.strip() for line in source.read_text().splitlines())
    return [line for line in found if " " in line][:300]


@pytest.fixture(scope="session")
def lines() -> list[str]:
    """As :func:`prose_lines` has them."""
    return prose_lines()


@pytest.fixture(scope="session")
def sentence_file(lines, tmp_path_factory) -> Path:
    """Parquet of two row groups: other columns on both sides, two nulls and an empty text."""
    texts = [*lines, None, "", None]
    table = pa.table(
        {"id": range(len(texts)), "text": texts, "tags": [[str(n)] for n in range(len(texts))]}
    )
    path = tmp_path_factory.mktemp("sentences") / "sentences.parquet"
    pq.write_table(table, path, row_group_size=200)
    return path


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """The packaged all-MiniLM-L6-v2."""
    return default_start()


def job_of(model: Path, sentences: Path, output: Path, /, **settings: Any) -> Config:
    """The configuration of a job in parts of 64 rows."""
    known = {
        "model": str(model),
        "inputs": [str(sentences)],
        "output": str(output),
        "part_rows": 64,
        "precision": "fp32",
    }
    return parse({"embedding": known | settings})


@pytest.fixture
def job(small_model, sentence_file, tmp_path) -> Callable[..., Config]:
    """Makes the configuration of a job whose table is the test's own."""
    return partial(job_of, small_model, sentence_file, tmp_path / "table")


@pytest.fixture(scope="session")
def embedded(spark, small_model, sentence_file, tmp_path_factory) -> EmbeddingSummary:
    """What such a job has made; nobody writes into its folder."""
    folder = tmp_path_factory.mktemp("embedded") / "table"
    return embed_table(spark, job_of(small_model, sentence_file, folder))


@pytest.fixture
def embedded_table(embedded, tmp_path) -> Path:
    """A copy of that table where the test's own one is."""
    return Path(shutil.copytree(embedded.folder, tmp_path / "table"))
