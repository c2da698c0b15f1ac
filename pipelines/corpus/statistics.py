"""What the funnel and the corpus report tell: rows by reason, and examples of them.

All counts come from one Spark job and all examples from another: of a small corpus, starting a job
costs far more than counting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.corpus.funnel import PAIRS
from pipelines.corpus.text_units import EXAMPLE_CHARACTERS

Reasons = Mapping[str | None, int]
"""Rows by reason; the reason of what is kept is None."""

_ROWS, _PAIRS, _HELD_OUT = "rows", "pairs", "held out"


@dataclass(frozen=True)
class Counts:
    """How much was kept and dropped.

    Attributes:
        rows: By level.
        pairs: All that were made.
        trainable: Pairs without a reason that are not held out.
        held_out: Pairs that are held out; a reason says why one is not asked.
    """

    rows: Mapping[str, Reasons]
    pairs: Reasons
    trainable: int
    held_out: Reasons


def count_reasons(rows: DataFrame, pairs: DataFrame, judged: DataFrame | None) -> Counts:
    """Counts rows and pairs by reason.

    Args:
        rows: With `level`, `reason` and `rows`.
        pairs: With `reason` and `held`.
        judged: The held-out pairs with their reasons; None where none are held out.
    """
    one, held = F.lit(1).cast("long"), F.col("held").cast("string")
    parts = [
        _grouped(rows, _ROWS, F.col("level"), F.col("rows")),
        _grouped(pairs, _PAIRS, held, one),
    ]
    if judged is not None:
        parts.append(_grouped(judged, _HELD_OUT, F.lit(None).cast("string"), one))
    by_level: dict[str, dict[str | None, int]] = {}
    of_pairs: Counter[str | None] = Counter()
    of_held_out: dict[str | None, int] = {}
    trainable = 0
    for table, group, reason, number in reduce(DataFrame.unionAll, parts).collect():
        if table == _ROWS:
            by_level.setdefault(group, {})[reason] = number
        elif table == _HELD_OUT:
            of_held_out[reason] = number
        else:
            of_pairs[reason] += number
            trainable += number if reason is None and group == "false" else 0
    return Counts(by_level, of_pairs, trainable, of_held_out)


def _grouped(frame: DataFrame, table: str, group: Column, number: Column) -> DataFrame:
    grouped = frame.groupBy(F.lit(table).alias("table"), group.alias("group"), "reason")
    return grouped.agg(F.sum(number).alias("number"))


def dropped(reasons: Reasons) -> dict[str, int]:
    """What is not kept."""
    return {reason: number for reason, number in reasons.items() if reason is not None}


def example_texts(rows: DataFrame, pairs: DataFrame, most: int) -> dict[str, dict[str, list[str]]]:
    """A few texts of each level and reason, chosen by their hashes: the same for the same corpus.

    Args:
        rows: With `level`, `reason`, `anchor` and `positive`.
        pairs: With `reason`, `anchor` and `positive`.
        most: Texts of each reason; not 0.
    """
    columns = ("level", "reason", "anchor", "positive")
    both = rows.select(*columns).unionAll(pairs.withColumn("level", F.lit(PAIRS)).select(*columns))
    text = F.substring(F.concat_ws(" | ", "anchor", "positive"), 1, EXAMPLE_CHARACTERS)
    of_dropped = both.where("reason is not null").select("level", "reason", text.alias("text"))
    chosen = [
        # The hash that the executors choose by, where rows are only counted.
        F.min_by("text", F.xxhash64(F.concat(F.lit(str(number)), "text"))).alias(f"text_{number}")
        for number in range(most)
    ]
    found = of_dropped.where("text != ''").groupBy("level", "reason").agg(*chosen).collect()
    examples: dict[str, dict[str, list[str]]] = {}
    for level, reason, *texts in sorted(found):
        examples.setdefault(level, {})[reason] = list(dict.fromkeys(texts))
    return examples
