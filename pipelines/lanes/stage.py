"""The Spark job that forms granules and writes the lanes.

Two distributed sorts of light keys decide where each example goes; then the examples are
shuffled to their lanes once and written by the executors.

1. By (length bucket, hash): an example's position says in which segment it is, which settles
   who moves up into a longer bucket.
2. By (segment, group, hash): the members of a group are neighbours, and neighbours are dealt
   to different rows, steps and granules of the segment, as far as there are so many.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from pipelines.errors import InputError, PipelineError
from pipelines.files import storage
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.lanes.files import SCHEMA, SIDES, LaneManifest
from pipelines.lanes.plan import (
    Segment,
    choose_lanes,
    count_same_group_in_step,
    deal,
    plan_segments,
)
from pipelines.lanes.writer import COUNTED, OPTIONAL, WRITTEN, write_lanes
from pipelines.progress import next_part
from pipelines.settings import Config
from pipelines.spark.frames import Scratch, read_path

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

logger = logging.getLogger(__name__)

PART_BYTES = 256 * 2**20
PLACED = "id long, lane int, row long, slot int"
_AGAIN = "run `sentence-pipelines prepare` with the same settings first"


def prepare_lanes(session: SparkSession, config: Config) -> LaneManifest:
    """Forms granules of ``<prepared.folder>/tokens`` and writes ``<prepared.folder>/lanes``.

    Raises:
        InputError: There are no tokens, too few examples for one row, or only some of the
            examples have a positive, a hard negative or a score.
    """
    prepared = PreparedFolder.of(config)
    if not prepared.tokens.manifest.is_file():
        raise InputError(
            "prepared.folder",
            f"there are no tokens in {prepared.path}",
            _AGAIN,
        )
    examples = session.read.parquet(read_path(prepared.tokens.examples))
    if SIDES[0] not in examples.columns:
        raise InputError("prepared.folder", f"{prepared.tokens.path} has another format", _AGAIN)
    count = examples.count()
    lanes = choose_lanes(
        count,
        config.lanes.granule,
        most=config.lanes.count,
        granules_per_step=config.training.granules_per_step,
    )
    if lanes < config.lanes.count:
        logger.info("%d lanes instead of %d: the corpus is small", lanes, config.lanes.count)
    # Steps of this size are refused later if it does not divide the lanes; any other may come.
    granules_per_step = config.training.granules_per_step
    granules_per_step = granules_per_step if lanes % granules_per_step == 0 else 1
    prepared_tokens = storage.read_json(prepared.tokens.manifest)
    max_length, vocabulary = (int(prepared_tokens[key]) for key in ("max_length", "vocabulary"))
    rows_per_part = max(1, PART_BYTES // (config.lanes.granule * _most_bytes(max_length)))
    with storage.new_folder(prepared.lanes.path) as folder, Scratch(folder / "scratch") as scratch:
        next_part("arranging examples by length and group")
        keys = scratch.keep(_keys(examples, config))
        arrangement = _arrange(keys, lanes, config.lanes.granule, granules_per_step, scratch)
        if not arrangement.segments:
            raise InputError(
                "lanes.granule",
                f"{count} examples do not fill a row of {lanes} lanes x {config.lanes.granule}",
                f"at most {max(count // lanes, 2)}, a smaller lanes.count, or a larger corpus",
            )
        next_part("writing granules")
        written, checksums = _write(examples, arrangement, folder, rows_per_part, vocabulary)
        manifest = _manifest(
            arrangement,
            written,
            checksums,
            examples=count,
            granules_per_step=granules_per_step,
            rows_per_part=rows_per_part,
            vocabulary=vocabulary,
            max_length=max_length,
        )
        manifest.save(folder)
    return manifest


@dataclass(frozen=True)
class _Arrangement:
    """Where every example goes.

    Attributes:
        lanes: Number of lanes.
        granule: Examples in a granule.
        segments: The rows of each bucket; empty if there is not one whole row.
        left_over: Examples that are in no granule, by reason.
        same_group_in_step: Examples that share a step with another of their group.
        places: The columns of ``PLACED``.
    """

    lanes: int
    granule: int
    segments: tuple[Segment, ...]
    left_over: dict[str, int]
    same_group_in_step: int
    places: DataFrame

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)


def _manifest(
    arrangement: _Arrangement,
    written: Counter[str],
    checksums: tuple[str, ...],
    *,
    examples: int,
    granules_per_step: int,
    rows_per_part: int,
    vocabulary: int,
    max_length: int,
) -> LaneManifest:
    """What the manifest says of lanes that were written; arguments as its attributes.

    Raises:
        InputError: Only some of the examples have an optional column.
    """
    present = _present(written, arrangement.granule)
    return LaneManifest(
        lanes=arrangement.lanes,
        granule=arrangement.granule,
        rows=arrangement.rows,
        rows_per_part=rows_per_part,
        segments=arrangement.segments,
        examples=examples,
        left_over=arrangement.left_over,
        granules_per_step=granules_per_step,
        same_group_in_step=arrangement.same_group_in_step,
        tokens=written["tokens"],
        slots=written["slots"],
        vocabulary=vocabulary,
        max_length=max_length,
        paired=present["positive"],
        triplets=present["negative"],
        scored=present["score"],
        checksums=checksums,
    )


def _most_bytes(max_length: int) -> int:
    """Upper bound of an example's size in a lane file."""
    return len(SIDES) * 4 * max_length + 64


def _present(written: Counter[str], granule: int) -> dict[str, bool]:
    """Whether the examples have each optional column: all of them, or none.

    Raises:
        InputError: Only some have it, and a granule could not be computed as one.
    """
    placed = written["granules"] * granule
    for name, key in OPTIONAL.items():
        if 0 < written[name] < placed:
            raise InputError(
                key,
                f"only {written[name]} of {placed} examples have a value in `{name}`",
                "give all of them one, or leave the others out of the corpus",
            )
    return {name: written[name] > 0 for name in OPTIONAL}


def _keys(examples: DataFrame, config: Config) -> DataFrame:
    """One light row per example: id, group, bucket length and two hashes that order them."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    seed, bucket = F.lit(config.lanes.seed), config.lanes.bucket
    return examples.select(
        "id",
        "group",
        (F.ceil(F.col("length") / bucket) * bucket).cast("int").alias("bucket"),
        F.xxhash64(seed, "id").alias("id_order"),
        F.xxhash64(seed, "group").alias("group_order"),
    )


def _arrange(
    keys: DataFrame, lanes: int, granule: int, granules_per_step: int, scratch: Scratch
) -> _Arrangement:
    """Gives every example that fits its lane, row and slot.

    A group with more members in a segment than the segment has granules cannot be placed
    without two of them in one; its surplus is taken out and the plan made again without it.
    """
    crowded = 0
    while True:
        counts = {row["bucket"]: row["count"] for row in keys.groupBy("bucket").count().collect()}
        segments = plan_segments(counts, lanes, granule)
        placed = sum(segment.examples for segment in segments)
        reasons = {
            "too few for a row": sum(counts.values()) - placed,
            "more of one group than granules": crowded,
        }
        left_over = {reason: rows for reason, rows in reasons.items() if rows}
        if not segments:
            return _Arrangement(lanes, granule, (), left_over, 0, keys)
        in_segment = _with_segment(keys, segments, scratch)
        large = scratch.keep(_large_groups(in_segment, segments))
        surplus = scratch.keep(_surplus(in_segment, large, segments, granule))
        surplus_count = surplus.count()
        if surplus_count == 0:
            shared = _same_group_in_step(large, segments, lanes // granules_per_step)
            places = _places(in_segment, segments, lanes, granules_per_step, scratch)
            return _Arrangement(lanes, granule, segments, left_over, shared, places)
        crowded += surplus_count
        keys = scratch.keep(keys.join(surplus.select("id"), "id", "left_anti"))


def _with_segment(keys: DataFrame, segments: tuple[Segment, ...], scratch: Scratch) -> DataFrame:
    """Adds the number of the segment, and drops what is behind the last one."""
    from pyspark.sql import functions as F  # noqa: N812

    ordered = _with_position(keys, scratch, "bucket", "id_order", "id")
    last = segments[-1]
    placed = ordered.where(F.col("position") < last.first_example + last.examples)
    number = F.lit(len(segments) - 1)
    for index in range(len(segments) - 2, -1, -1):
        end = segments[index].first_example + segments[index].examples
        number = F.when(F.col("position") < end, F.lit(index)).otherwise(number)
    return placed.withColumn("segment", number).drop("position")


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

    ordered = scratch.keep(
        frame.sort(*order)
        .withColumn("partition", F.spark_partition_id())
        .withColumn("within", F.monotonically_increasing_id().bitwiseAND((1 << 33) - 1))
    )
    sizes = {
        row["partition"]: row["count"] for row in ordered.groupBy("partition").count().collect()
    }
    starts, total = [], 0
    for partition in range(max(sizes, default=0) + 1):
        starts.append(F.lit(total).cast("long"))
        total += sizes.get(partition, 0)
    position = F.array(*starts)[F.col("partition")] + F.col("within")
    return ordered.withColumn("position", position).drop("partition", "within")


def _write(
    examples: DataFrame,
    arrangement: _Arrangement,
    folder: Path,
    rows_per_part: int,
    vocabulary: int,
) -> tuple[Counter[str], tuple[str, ...]]:
    """Shuffles the examples to their lanes, has them written, and checks what was written.

    Returns:
        What is ``COUNTED``, over all lanes; and the checksum of each lane's index.
    """
    write = partial(
        write_lanes,
        folder=str(folder),
        granule=arrangement.granule,
        rows_per_part=rows_per_part,
        vocabulary=vocabulary,
    )
    written = (
        examples.join(arrangement.places, "id")
        .select("lane", "row", "slot", *SCHEMA.names)
        .repartition(arrangement.lanes, "lane")
        .sortWithinPartitions("lane", "row", "slot")
        .mapInArrow(write, WRITTEN)
        .collect()
    )
    short = [row["lane"] for row in written if row["granules"] != arrangement.rows]
    if short or len(written) != arrangement.lanes:
        raise PipelineError(f"lanes {short} of {folder} were not written whole")
    counts = Counter({name: sum(row[name] for row in written) for name in COUNTED})
    checksums = {row["lane"]: row["checksum"] for row in written}
    return counts, tuple(checksums[lane] for lane in range(arrangement.lanes))
