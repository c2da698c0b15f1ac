"""Measures the near-duplicate search on real sentences with planted copies.

Copies of sampled sentences are edited until their similarity falls into each of several bands
from 0.5 to 1, and come after all the sentences. So it is known what should be found, and the share
that is found can be held against the S-curve of the MinHash bands. A copy below the threshold may
rightly be dropped too, where it is more like another sentence.

Similarities are counted here with plain Python sets, independently of what is measured.
"""

from __future__ import annotations

import random
import string
import tempfile
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses
from rich.table import Table

from pipelines.corpus.cleaning.rules import text_key
from pipelines.corpus.dedup.near_duplicates import SHINGLE, banding, near_pairs, normalise
from pipelines.corpus.readers.spark_reader import read_rows
from pipelines.corpus.texts import text_level, unit_batches
from pipelines.corpus.unit_rows import SCHEMA
from pipelines.errors import InputError
from pipelines.progress import next_part
from pipelines.progress.screen import Screen
from pipelines.settings import Config, CorpusSettings
from pipelines.spark.frames import Scratch, Totals
from pipelines_bench.cpu import CpuMeter, local_session

THRESHOLD = 0.8
"""Where `corpus.near_duplicates` is not set, or 0."""
COPIES_PER_BAND = 300
MIN_CHARACTERS = 40
"""Shorter sentences have too few shingles to be brought into any band."""
PAIRS_CHECKED = 20_000
"""Of the verified pairs, so many are counted anew."""

_SEED = 17
_SAMPLED_PER_COPY = 4
_EDITS = 60
_BANDS = tuple(round(0.5 + 0.05 * place, 2) for place in range(11))

SimilarityBand = tuple[float, float]
"""Least similarity, and the one that all are below."""


@dataclass(frozen=True)
class Copy:
    """An edited copy of a sentence.

    Attributes:
        text: The copy.
        similarity: Its Jaccard similarity with the sentence, below 1.
        band: What the similarity was to fall into.
    """

    text: str
    similarity: float
    band: SimilarityBand


def measure(config: Config, data: str | None) -> dict[str, Any]:
    """Plants copies, has them found, and prints a table.

    Args:
        config: Its `corpus.near_duplicates` is the threshold.
        data: A folder of text files; None for the embedded docstrings.

    Returns:
        ``recall``: the share of the copies at or above the threshold that is dropped;
        ``precision``: the share of the verified pairs that are as similar and in order;
        ``cpu_seconds_per_million``: of the search, a million texts; ``threshold``, ``texts`` and
        ``dropped``.

    Raises:
        InputError: The text holds too few sentences, no copy can be as similar as the threshold,
            or executors run on other machines.
    """
    threshold = config.corpus.near_duplicates or THRESHOLD
    if threshold >= _BANDS[-1]:
        raise InputError("corpus.near_duplicates", "no edited copy is as similar", "Set it below 1")
    with CpuMeter() as meter, tempfile.TemporaryDirectory() as folder:
        session = local_session(config)
        with Scratch(Path(folder) / "scratch") as scratch:
            next_part("reading sentences")
            sentences = scratch.keep(_sentences(session, config.corpus, data, scratch))
            copies = _copies(sentences, threshold)
            texts = scratch.keep(sentences.unionByName(_frame(session, copies)))
            before = meter.seconds()
            next_part("searching near duplicates")
            pairs = near_pairs(texts, threshold, scratch)
            cpu_seconds = meter.seconds() - before
            next_part("comparing what was found")
            precision = _precision(pairs, texts, threshold)
            keys = pairs.select("key").distinct()
            # The key of a copy is its place, that of a sentence a hash.
            of_copies = keys.where(F.col("key").between(0, len(copies) - 1))
            found = {row["key"] for row in of_copies.collect()}
            number, dropped = texts.count(), keys.count()
    _print(copies, found, threshold)
    alike = [place for place, copy in enumerate(copies) if copy.similarity >= threshold]
    return {
        "recall": round(len(found.intersection(alike)) / len(alike), 4),
        "precision": round(precision, 4),
        "cpu_seconds_per_million": round(cpu_seconds / number * 1e6, 1),
        "threshold": threshold,
        "texts": number,
        "dropped": dropped,
    }


def _sentences(
    session: SparkSession, settings: CorpusSettings, data: str | None, scratch: Scratch
) -> DataFrame:
    """The sentences that the corpus stage would take, no two with the same letters."""
    changes: dict[str, Any] = {"pairs": "single", "sentences": True}
    if data is not None:
        changes["inputs"] = (data,)
        if settings.format == "docstrings":
            changes["format"] = "documents"
    settings = settings.model_copy(update=changes)
    work = partial(unit_batches, settings=settings)
    units, _ = scratch.keep_arrow(read_rows(session, settings), work, SCHEMA, Totals(("level",)))
    kept = units.frame.where((F.col("level") == text_level(settings)) & F.col("reason").isNull())
    alike = kept.groupBy(text_key(F.col("anchor")).alias("key"))
    return alike.agg(F.min("anchor").alias("text")).select(
        "key", F.expr("0L").alias("order"), "text"
    )


def _frame(session: SparkSession, copies: Sequence[Copy]) -> DataFrame:
    rows = [(key, 1, copy.text) for key, copy in enumerate(copies)]
    return session.createDataFrame(rows, "key long, order long, text string")


def _copies(sentences: DataFrame, threshold: float) -> list[Copy]:
    """Copies for each band, of sentences that are sampled by hash.

    Raises:
        InputError: There are not enough sentences.
    """
    limits = sorted({*_BANDS, threshold})
    bands = list(pairwise(limit for limit in limits if limit >= min(_BANDS[0], threshold)))
    sampled = (
        sentences.where(F.length("text") >= MIN_CHARACTERS)
        .orderBy(F.xxhash64("key", F.lit(_SEED)), "key")
        .limit(_SAMPLED_PER_COPY * COPIES_PER_BAND * len(bands))
    )
    generator = random.Random(_SEED)
    made: dict[SimilarityBand, list[Copy]] = {band: [] for band in bands}
    for row, band in zip(sampled.select("text").collect(), cycle(bands), strict=False):
        if len(made[band]) < COPIES_PER_BAND:
            made[band] += edited(row["text"], band, generator)
    for band, copies in made.items():
        if not copies:
            raise InputError(
                "--data",
                f"no sentence could be edited to a similarity of {band[0]} to {band[1]}",
                "Name a folder with more text",
            )
    return [copy for copies in made.values() for copy in copies]


def edited(text: str, band: SimilarityBand, generator: random.Random) -> list[Copy]:
    """The text after random edits, in a list; an empty one where none hits the band."""
    low, high = band
    shingles, current = plain_shingles(text), text
    for _ in range(_EDITS):
        candidate = generator.choice(_EDITORS)(current, generator)
        similarity = plain_similarity(shingles, plain_shingles(candidate))
        if low <= similarity < high:
            return [Copy(candidate, similarity, band)]
        if similarity >= high:
            current = candidate
    return []


def _replace_character(text: str, generator: random.Random) -> str:
    place = generator.randrange(len(text))
    return text[:place] + generator.choice(string.ascii_lowercase) + text[place + 1 :]


def _drop_word(text: str, generator: random.Random) -> str:
    words = text.split()
    del words[generator.randrange(len(words))]
    return " ".join(words) or text


def _move_word(text: str, generator: random.Random) -> str:
    words = text.split()
    word = words.pop(generator.randrange(len(words)))
    words.insert(generator.randint(0, len(words)), word)
    return " ".join(words)


_EDITORS: Sequence[Callable[[str, random.Random], str]] = (
    _replace_character,
    _drop_word,
    _move_word,
)


def plain_shingles(text: str) -> frozenset[str]:
    """The shingles of a text as strings, not hashes."""
    (normalised,) = normalise([text]).strings()
    last = max(len(normalised) - SHINGLE, 0)
    return frozenset(normalised[place : place + SHINGLE] for place in range(last + 1)) - {""}


def plain_similarity(one: frozenset[str], other: frozenset[str]) -> float:
    """Jaccard similarity of two sets; 0 where both are empty."""
    return len(one & other) / max(len(one | other), 1)


def _precision(pairs: DataFrame, texts: DataFrame, threshold: float) -> float:
    """The share of the pairs that are similar and in order, each counted with plain sets."""
    others = texts.select(*(F.col(name).alias(f"other_{name}") for name in texts.columns))
    some = pairs.orderBy("key", "other").limit(PAIRS_CHECKED)
    joined = some.join(texts, "key").join(others, F.col("other") == F.col("other_key"))
    right = [
        (row["other_order"], row["other_key"]) < (row["order"], row["key"])
        and threshold
        <= plain_similarity(plain_shingles(row["text"]), plain_shingles(row["other_text"]))
        for row in joined.collect()
    ]
    return sum(right) / max(len(right), 1)


def _print(copies: Sequence[Copy], found: Set[int], threshold: float) -> None:
    bands = banding(threshold)
    table = Table("similarity", "copies", "dropped", "meet in a bucket, by the S-curve")
    for low, high in dict.fromkeys(copy.band for copy in copies):
        places = [place for place, copy in enumerate(copies) if copy.band == (low, high)]
        meeting = [bands.share_meeting(copies[place].similarity) for place in places]
        table.add_row(
            f"{low:.2f} to {high:.2f}",
            str(len(places)),
            f"{len(found & set(places)) / len(places):.3f}",
            f"{sum(meeting) / len(meeting):.3f}",
            style="bold" if low >= threshold else None,
        )
    console = Screen()
    console.print(table)
    console.print(f"threshold {threshold}: {bands.bands} bands of {bands.rows} rows")
