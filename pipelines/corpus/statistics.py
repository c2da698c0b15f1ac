"""What the corpus report shows beside the funnel: examples, languages, quarantine, bytes."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.corpus.funnel import PAIRS
from pipelines.corpus.text_units import EXAMPLE_CHARACTERS, EXAMPLES

_PLACES = 10


def corpus_statistics(
    rows: DataFrame, pairs: DataFrame, units: DataFrame, read_bytes: int
) -> dict[str, Any]:
    """The content of `statistics.json`; the same for the same corpus.

    Args:
        pairs: Pairs with their reasons.
        units: The rows of :mod:`pipelines.corpus.units`.
        read_bytes: Of the inputs, unpacked.

    Returns:
        `bytes`; `languages`: texts of those whose language was looked at, by language; `examples`:
        level to reason to texts; `quarantine`: the first places that could not be read.
    """
    languages = units.where("language is not null").groupBy("language").agg(F.sum("rows"))
    counted: dict[str, int] = dict(languages.collect())
    quarantined = (
        units.where("quarantined is not null")
        .selectExpr("file", "offset", "quarantined as reason", "rows")
        .orderBy("file", "offset", "reason")
        .limit(_PLACES)
    )
    return {
        "bytes": read_bytes,
        "languages": dict(sorted(counted.items(), key=lambda item: (-item[1], item[0]))),
        "examples": _examples(rows) | _examples(pairs.withColumn("level", F.lit(PAIRS))),
        "quarantine": [row.asDict() for row in quarantined.collect()],
    }


def _examples(rows: DataFrame) -> dict[str, dict[str, list[str]]]:
    """A few texts of each reason, chosen by their hashes."""
    text = F.substring(F.concat_ws(" | ", "anchor", "positive"), 1, EXAMPLE_CHARACTERS)
    dropped = rows.where("reason is not null").select("level", "reason", text.alias("text"))
    chosen = [
        # The hash that the executors choose by, where rows are only counted.
        F.min_by("text", F.xxhash64(F.concat(F.lit(str(number)), "text"))).alias(f"text_{number}")
        for number in range(EXAMPLES)
    ]
    found = dropped.where("text != ''").groupBy("level", "reason").agg(*chosen).collect()
    examples: dict[str, dict[str, list[str]]] = {}
    for level, reason, *texts in sorted(found):
        examples.setdefault(level, {})[reason] = list(dict.fromkeys(texts))
    return examples
