"""The best documents of what executors have found, as Spark merges them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


def best_rows(found: DataFrame, groups: Sequence[str], depth: int) -> list[Row]:
    """The rows of highest ``score`` of each group, group by group, the best first.

    Args:
        found: ``document_id``, ``score`` and the columns of the groups; each partition may have
            more than are wanted.
        groups: Columns; rows of equal values are a group.
        depth: Rows of a group; of equal ones the lower id wins.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    best_first = Window.partitionBy(*groups).orderBy(F.desc("score"), F.asc("document_id"))
    ranked = found.withColumn("rank", F.row_number().over(best_first))
    rows = ranked.where(F.col("rank") <= depth).collect()
    return sorted(rows, key=lambda row: (*(row[name] for name in groups), row["rank"]))
