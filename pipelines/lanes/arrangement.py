"""Where each example goes: its lane, row and slot, found by two distributed sorts of light keys.

1. By (source, length bucket, hash): an example's position says in which segment it is, which
   settles who moves up into a longer bucket. A row is of one source.
2. By (segment, group, hash): the members of a group are neighbours, and neighbours are dealt
   to different rows, steps and granules of the segment, as far as there are so many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NotRequired

import pyarrow as pa
from typing_extensions import TypedDict

from pipelines.files import records
from pipelines.files.prepared_folder import TokensFolder
from pipelines.lanes.plan import (
    Segment,
    bucket_table,
    count_same_group_in_step,
    deal,
    plan_sources,
)
from pipelines.settings import Config, LaneSettings
from pipelines.spark.frames import Scratch
from pipelines.tokens.examples import SOURCE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PLACED = "id long, lane int, row long, slot int"
"""The columns of a place."""


@dataclass(frozen=True)
class Arrangement:
    """Where every example goes.

    Attributes:
        lanes: Number of lanes.
        granule: Examples in a granule.
        by_source: The rows of each bucket, for each source; of one that has not one whole row there
            are none.
        left_over: Examples that are in no granule, by reason.
        same_group_in_step: Examples that share a step with another of their group.
        places: The columns of ``PLACED``.
    """

    lanes: int
    granule: int
    by_source: tuple[tuple[Segment, ...], ...]
    left_over: dict[str, int]
    same_group_in_step: int
    places: DataFrame

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Of all sources."""
        return tuple(segment for own in self.by_source for segment in own)

    @property
    def rows(self) -> int:
        """Of all segments."""
        return sum(segment.rows for segment in self.segments)


@dataclass(frozen=True)
class Buckets:
    """The length buckets of a corpus.

    Attributes:
        width: Of the narrowest, in tokens.
        edges: See :func:`~pipelines.lanes.plan.bucket_table`.
    """

    width: int
    edges: tuple[int, ...]

    @classmethod
    def of(cls, longest: int, settings: LaneSettings) -> Buckets:
        """Those that the settings ask for.

        Args:
            longest: Tokens of the longest text.
        """
        edges = bucket_table(longest, settings.bucket, settings.bucket_growth)
        return cls(settings.bucket, edges)

    def edge(self, length: int) -> int:
        """The edge of the bucket of a length."""
        return self.edges[-(-length // self.width) - 1]


def example_keys(examples: DataFrame, buckets: Buckets, config: Config) -> DataFrame:
    """One light row per example: id, group, source, bucket length, two hashes that order them."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    seed = F.lit(config.lanes.seed)
    edges = F.array(*map(F.lit, buckets.edges))
    place = F.ceil(F.col("length") / buckets.width) - 1
    source = F.col(SOURCE) if SOURCE in examples.columns else F.lit(0)
    return examples.select(
        "id",
        "group",
        source.alias("source"),
        edges[place.cast("int")].alias("bucket"),
        F.xxhash64(seed, "id").alias("id_order"),
        F.xxhash64(seed, "group").alias("group_order"),
    )


class _Lengths(TypedDict):
    """What is read of ``lengths.json``: lengths, and how many examples have each."""

    lengths: list[tuple[int, int]]
    sources: NotRequired[list[list[tuple[int, int]]]]


def bucket_counts(tokens: TokensFolder, buckets: Buckets) -> tuple[Counter[int], ...]:
    """How many examples of each source have each bucket length; read on the driver."""
    told: _Lengths = records.read(tokens.lengths, _Lengths)
    by_source = []
    for lengths in told.get("sources", [told["lengths"]]):
        counts: Counter[int] = Counter()
        for length, number in lengths:
            counts[buckets.edge(length)] += number
        by_source.append(counts)
    return tuple(by_source)


@dataclass(frozen=True)
class Shape:
    """Number of lanes, examples in a granule, and granules in a step."""

    lanes: int
    granule: int
    granules_per_step: int


def arrange(
    keys: DataFrame, counts: Sequence[Counter[int]], shape: Shape, scratch: Scratch
) -> Arrangement:
    """Gives every example that fits its lane, row and slot.

    A group with more members in a segment than the segment has granules cannot be placed
    without two of them in one; its surplus is taken out and the plan made again without it.

    Args:
        keys: Of :func:`example_keys`.
        counts: Of each source, their number by bucket.
        shape: Of the lanes.
        scratch: For what is computed in between.
    """
    lanes, granule, crowded = shape.lanes, shape.granule, 0
    while True:
        by_source = plan_sources(counts, lanes, granule)
        segments = tuple(segment for own in by_source for segment in own)
        placed = sum(segment.examples for segment in segments)
        reasons = {
            "too few for a row": sum(map(Counter.total, counts)) - placed,
            "more of one group than granules": crowded,
        }
        left_over = {reason: rows for reason, rows in reasons.items() if rows}
        if not segments:
            return Arrangement(lanes, granule, by_source, left_over, 0, keys)
        in_segment = _with_segment(keys, segments, scratch)
        large = scratch.keep_counted(_large_groups(in_segment, segments))
        surplus = None
        if large.rows:
            surplus = scratch.keep_counted(_surplus(in_segment, large.frame, segments, granule))
        if surplus is None or not surplus.rows:
            steps_per_row = lanes // shape.granules_per_step
            shared = _same_group_in_step(large.frame, segments, steps_per_row) if large.rows else 0
            places = _places(in_segment, segments, lanes, shape.granules_per_step, scratch)
            return Arrangement(lanes, granule, by_source, left_over, shared, places)
        crowded += surplus.rows
        taken = surplus.frame.groupBy("source", "bucket").count().collect()
        counts = [
            of_source
            - Counter({row["bucket"]: row["count"] for row in taken if row["source"] == source})
            for source, of_source in enumerate(counts)
        ]
        keys = scratch.keep(keys.join(surplus.frame.select("id"), "id", "left_anti"))


def _with_segment(keys: DataFrame, segments: tuple[Segment, ...], scratch: Scratch) -> DataFrame:
    """Adds the number of the segment, and drops what is behind the last one of a source."""
    from pyspark.sql import functions as F  # noqa: N812

    ordered = _with_position(keys, scratch, "source", "bucket", "id_order", "id")
    number: Any = F
    for index, segment in enumerate(segments):
        last = segment.first_example + segment.examples - 1
        number = number.when(F.col("position").between(segment.first_example, last), index)
    placed = ordered.withColumn("segment", number).drop("position")
    return placed.where(F.col("segment").isNotNull())


def _large_groups(frame: DataFrame, segments: tuple[Segment, ...]) -> DataFrame:
    """The groups that have more members in a segment than the segment has rows, with `count`."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = _per_segment([segment.rows for segment in segments])
    return frame.groupBy("segment", "group").count().where(F.col("count") > rows)


def _surplus(
    frame: DataFrame, large: DataFrame, segments: tuple[Segment, ...], granule: int
) -> DataFrame:
    """The members of a group beyond one per granule of the segment."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    granules = _per_segment([segment.examples // granule for segment in segments])
    crowded = large.where(F.col("count") > granules).select("segment", "group")
    members = frame.join(F.broadcast(crowded), ["segment", "group"], "left_semi")
    turn = F.row_number().over(Window.partitionBy("segment", "group").orderBy("id_order", "id"))
    return members.withColumn("turn", turn).where(F.col("turn") > granules)


def _same_group_in_step(large: DataFrame, segments: tuple[Segment, ...], steps_per_row: int) -> int:
    """Examples that share a step with another of their group."""
    sizes = large.withColumnRenamed("count", "members").groupBy("segment", "members").count()
    return sum(
        row["count"]
        * count_same_group_in_step(row["members"], segments[row["segment"]].rows * steps_per_row)
        for row in sizes.collect()
    )


def _places(
    frame: DataFrame,
    segments: tuple[Segment, ...],
    lanes: int,
    granules_per_step: int,
    scratch: Scratch,
) -> DataFrame:
    """Deals the examples of each segment, group by group; the columns of ``PLACED``."""
    ordered = _with_position(frame, scratch, "segment", "group_order", "group", "id_order", "id")
    place = partial(
        place_batches, segments=segments, lanes=lanes, granules_per_step=granules_per_step
    )
    return ordered.select("id", "position").mapInArrow(place, PLACED)


def place_batches(
    batches: Iterator[pa.RecordBatch],
    *,
    segments: tuple[Segment, ...],
    lanes: int,
    granules_per_step: int,
) -> Iterator[pa.RecordBatch]:
    """Gives examples their places by :func:`~pipelines.lanes.plan.deal`. Runs on an executor.

    Args:
        batches: Rows with `id` and `position`, in the order by segment and group.

    Yields:
        Rows of ``PLACED``.
    """
    for batch in batches:
        places = deal(batch.column("position").to_numpy(), segments, lanes, granules_per_step)
        yield pa.RecordBatch.from_pydict({"id": batch.column("id")} | vars(places))


def _per_segment(values: list[int]) -> Column:
    """A column that holds the value of the row's segment."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.array(*[F.lit(value).cast("long") for value in values])[F.col("segment")]


def _with_position(frame: DataFrame, scratch: Scratch, *order: str) -> DataFrame:
    """Adds `position`: the row's place in the total order of the columns, from 0."""
    from pyspark.sql import functions as F  # noqa: N812

    ordered = scratch.keep_counted(
        frame.sort(*order)
        .withColumn("partition", F.spark_partition_id())
        .withColumn("within", F.monotonically_increasing_id().bitwiseAND((1 << 33) - 1))
    )
    starts, total = [], 0
    for partition in range(max(ordered.partitions, default=0) + 1):
        starts.append(F.lit(total).cast("long"))
        total += ordered.partitions.get(partition, 0)
    position = F.array(*starts)[F.col("partition")] + F.col("within")
    return ordered.frame.withColumn("position", position).drop("partition", "within")
