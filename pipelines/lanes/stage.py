"""The Spark job that forms granules and writes the lanes.

Two distributed sorts of light keys decide where each example goes; then the examples are
shuffled to their lanes once and written by the executors.

1. By (length bucket, hash): an example's position says in which segment it is, which settles
   who moves up into a longer bucket.
2. By (segment, group, hash): the members of a group are neighbours, and neighbours are dealt
   to the segment's granules in turn, so that no two of them meet in one granule.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from pipelines import storage
from pipelines.errors import InputError, PipelineError
from pipelines.frames import Scratch, read_path
from pipelines.lanes.files import SCHEMA, SIDES, LaneManifest, padded_width, part_path, ragged
from pipelines.lanes.plan import Segment, choose_lanes, plan_segments
from pipelines.settings import Config

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

logger = logging.getLogger(__name__)

PART_BYTES = 256 * 2**20
# What an example may be without, and the setting that names where it comes from.
OPTIONAL = {
    "right": "corpus.pair_columns",
    "negative": "corpus.triplet_columns",
    "score": "corpus.score_column",
}
# Counted in every lane; a column's name counts the examples that have it.
COUNTED = ("granules", "tokens", "slots", *OPTIONAL)
WRITTEN = ", ".join(("lane int", *(f"{name} long" for name in COUNTED)))


def prepare_lanes(session: SparkSession, config: Config) -> LaneManifest:
    """Forms granules of ``<prepared.folder>/tokens`` and writes ``<prepared.folder>/lanes``.

    Raises:
        InputError: There are no tokens, too few examples for one row, or only some of the
            examples have a right side, a hard negative or a score.
    """
    prepared = Path(config.prepared.folder).absolute()
    tokens = prepared / "tokens"
    if not (tokens / "manifest.json").is_file():
        raise InputError(
            "prepared.folder",
            f"there are no tokens in {prepared}",
            "run `sentence-pipelines prepare` with the same settings first",
        )
    examples = session.read.parquet(read_path(tokens / "examples.parquet"))
    count = examples.count()
    lanes = choose_lanes(
        count,
        config.lanes.granule,
        most=config.lanes.count,
        granules_per_step=config.training.granules_per_step,
    )
    if lanes < config.lanes.count:
        logger.info("%d lanes instead of %d: the corpus is small", lanes, config.lanes.count)
    rows_per_part = max(1, PART_BYTES // (config.lanes.granule * _most_bytes(config)))
    with storage.new_folder(prepared / "lanes") as folder, Scratch(folder / "scratch") as scratch:
        keys = scratch.keep(_keys(examples, config))
        arrangement = _arrange(keys, lanes, config.lanes.granule, scratch)
        if not arrangement.segments:
            raise InputError(
                "lanes.granule",
                f"{count} examples do not fill a row of {lanes} lanes x {config.lanes.granule}",
                f"at most {max(count // lanes, 2)}, a smaller lanes.count, or a larger corpus",
            )
        written = _write(examples, arrangement, folder, rows_per_part)
        present = _present(written, config.lanes.granule)
        manifest = LaneManifest(
            lanes=lanes,
            granule=config.lanes.granule,
            rows=arrangement.rows,
            rows_per_part=rows_per_part,
            segments=arrangement.segments,
            examples=count,
            left_over=arrangement.left_over,
            tokens=written["tokens"],
            slots=written["slots"],
            vocabulary=int(storage.read_json(tokens / "manifest.json")["vocabulary"]),
            max_length=config.tokens.max_length,
            paired=present["right"],
            triplets=present["negative"],
            scored=present["score"],
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
        places: Columns id, lane, row, slot.
    """

    lanes: int
    granule: int
    segments: tuple[Segment, ...]
    left_over: dict[str, int]
    places: DataFrame

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)


def _most_bytes(config: Config) -> int:
    """Upper bound of an example's size in a lane file."""
    return len(SIDES) * 4 * config.tokens.max_length + 64


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


def _arrange(keys: DataFrame, lanes: int, granule: int, scratch: Scratch) -> _Arrangement:
    """Gives every example that fits its lane, row and slot.

    A group with more members in a segment than the segment has granules cannot be placed
    without twins; its surplus is taken out and the plan made again without it.
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
            return _Arrangement(lanes, granule, (), left_over, keys)
        in_segment = _with_segment(keys, segments, scratch)
        surplus = scratch.keep(_surplus(in_segment, segments, granule))
        surplus_count = surplus.count()
        if surplus_count == 0:
            places = _with_place(in_segment, segments, lanes, granule, scratch)
            return _Arrangement(lanes, granule, segments, left_over, places)
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


def _surplus(frame: DataFrame, segments: tuple[Segment, ...], granule: int) -> DataFrame:
    """The members of a group beyond one per granule of the segment."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    granules = _per_segment([segment.examples // granule for segment in segments])
    crowded = (
        frame.groupBy("segment", "group")
        .count()
        .where(F.col("count") > granules)
        .select("segment", "group")
    )
    members = frame.join(F.broadcast(crowded), ["segment", "group"], "left_semi")
    turn = F.row_number().over(Window.partitionBy("segment", "group").orderBy("id_order", "id"))
    return members.withColumn("turn", turn).where(F.col("turn") > granules)


def _with_place(
    frame: DataFrame,
    segments: tuple[Segment, ...],
    lanes: int,
    granule: int,
    scratch: Scratch,
) -> DataFrame:
    """Deals each segment's examples, group by group, to its granules in turn."""
    from pyspark.sql import functions as F  # noqa: N812

    ordered = _with_position(frame, scratch, "segment", "group_order", "group", "id_order", "id")
    within = F.col("position") - _per_segment([segment.first_example for segment in segments])
    granules = _per_segment([segment.examples // granule for segment in segments])
    first_row = _per_segment([segment.first_row for segment in segments])
    number = within % granules
    return ordered.select(
        "id",
        (number % lanes).cast("int").alias("lane"),
        (first_row + F.floor(number / lanes)).cast("long").alias("row"),
        F.floor(within / granules).cast("int").alias("slot"),
    )


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
    examples: DataFrame, arrangement: _Arrangement, folder: Path, rows_per_part: int
) -> Counter[str]:
    """Shuffles the examples to their lanes, has them written, and checks what was written.

    Returns:
        What is ``COUNTED``, over all lanes.
    """
    write = partial(
        write_lanes,
        folder=str(folder),
        granule=arrangement.granule,
        rows_per_part=rows_per_part,
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
    return Counter({name: sum(row[name] for row in written) for name in COUNTED})


def write_lanes(
    batches: Iterator[pa.RecordBatch], *, folder: str, granule: int, rows_per_part: int
) -> Iterator[pa.RecordBatch]:
    """Writes the lanes of one partition. Runs on an executor.

    Args:
        batches: Rows sorted by lane, row and slot; each lane whole, so that every ``granule``
            rows are one granule.
        folder: Where the lanes go.
        granule: Examples in a granule.
        rows_per_part: Granules in a part file.

    Yields:
        A row per lane with what is ``COUNTED``: its granules, tokens, tokens with padding, and
        the examples that have each of the optional columns.
    """
    writer = _LaneWriter(Path(folder), rows_per_part)
    for rows in _regroup(batches, granule):
        yield from writer.add(rows)
    yield from writer.finish()


def _regroup(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Cuts a stream of rows into batches of ``size`` rows."""
    pending: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        pending.append(batch)
        count += batch.num_rows
        if count < size:
            continue
        table = pa.Table.from_batches(pending).combine_chunks()
        whole = table.to_batches()[0]
        for start in range(0, count - size + 1, size):
            yield whole.slice(start, size)
        rest = count % size
        pending = [whole.slice(count - rest)] if rest else []
        count = rest
    if count:
        raise PipelineError(f"{count} rows are not a whole granule of {size}")


class _LaneWriter:
    """Writes granules to the part files of one lane after the other."""

    def __init__(self, folder: Path, rows_per_part: int) -> None:
        self._folder = folder
        self._rows_per_part = rows_per_part
        self._lane = -1
        self._counts: Counter[str] = Counter()
        self._file: pa.RecordBatchFileWriter | None = None
        self._path = folder
        self._attempt = uuid.uuid4().hex

    def add(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Writes a granule; yields the summary of the lane before when a new one begins."""
        lane = rows.column("lane")[0].as_py()
        if lane != self._lane:
            yield from self.finish()
            self._lane, self._counts = lane, Counter()
        granules = self._counts["granules"]
        if granules % self._rows_per_part == 0:
            self._close_part()
            self._path = part_path(self._folder, lane, granules // self._rows_per_part)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = pa.ipc.new_file(str(self._aside()), SCHEMA)
        batch = rows.select(SCHEMA.names).cast(SCHEMA)
        assert self._file is not None
        self._file.write_batch(batch)
        self._counts["granules"] += 1
        for name in OPTIONAL:
            self._counts[name] += batch.num_rows - batch.column(name).null_count
        for name in SIDES:
            column = batch.column(name)
            if not column.null_count:
                _, lengths = ragged(column)
                self._counts["tokens"] += int(lengths.sum())
                self._counts["slots"] += len(lengths) * padded_width(lengths)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Closes the lane and yields its summary."""
        self._close_part()
        if self._lane >= 0:
            lane = {"lane": pa.array([self._lane], pa.int32())}
            counts = {name: [self._counts[name]] for name in COUNTED}
            yield pa.RecordBatch.from_pydict(lane | counts)

    def _close_part(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._aside().replace(self._path)

    def _aside(self) -> Path:
        # A name of its own: another attempt at the same task must not write into this file.
        return self._path.with_name(f".{self._path.name}.{self._attempt}")
