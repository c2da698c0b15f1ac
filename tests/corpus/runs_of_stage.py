"""Runs of the corpus stage on small inputs."""

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.config import parse
from pipelines.corpus.stage import prepare_corpus

WORDS = ("red", "green", "blue", "small", "large", "old", "young", "quick")
WORDS += ("slow", "bright", "dark", "warm", "cold", "round", "flat")


def sentence(number):
    """A sentence of its own for each number."""
    first, rest = WORDS[number % 15], WORDS[number // 15 % 15]
    return f"The {first} and {rest} animal number {number} runs."


def prepared(spark, folder, **corpus):
    config = parse(
        {
            "corpus": corpus,
            "prepared": {"folder": str(folder / "prepared")},
            "objective": {"name": "twins"} if corpus.get("pairs") == "single" else {},
            "training": {"dropout": 0.1},
        }
    )
    return prepare_corpus(spark, config)


def write_parquet(path, **columns):
    pq.write_table(pa.table(columns), path)
    return str(path)
