"""The stage that forms granules and writes the lanes.

Two distributed sorts of light keys give each example its lane, row and slot. Then Spark shuffles
the examples to their lanes once, and executors write them.

1. By (source, length bucket, hash): an example's position gives its segment. Examples beyond the
   last whole row move up into a longer bucket. A row has one source.
2. By (segment, group, hash): the members of a group become neighbours, and neighbours are dealt to
   different rows, steps and granules of the segment, as far as these suffice.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import accumulate
from operator import add
from typing import Any, NotRequired

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know
from pyspark.sql.pandas.types import from_arrow_schema
from typing_extensions import TypedDict

from pipelines.errors import InputError, PipelineError
from pipelines.files import records, storage
from pipelines.files.locations import arrow_source
from pipelines.files.prepared_folder import PreparedFolder, TeacherFolder, TokensFolder
from pipelines.lanes.files import (
    COUNTED,
    OPTIONAL,
    TEACHER_SCHEMA,
    WRITTEN,
    LaneManifest,
    TeacherVectors,
    lane_schema,
    write_lanes,
)
from pipelines.lanes.plan import (
    Segment,
    SourceLanes,
    bucket_table,
    choose_lanes,
    count_same_group_in_step,
    deal,
    plan_sources,
)
from pipelines.progress import next_part
from pipelines.settings import Config
from pipelines.spark.frames import Scratch, read_parquet
from pipelines.spark.parquet_parts import data_files
from pipelines.tokens.examples import OPTIONAL as OPTIONAL_COLUMNS
from pipelines.tokens.examples import SOURCE, example_schema
from pipelines.tokens.summary import SourceTokens, TokenSummary

logger = logging.getLogger(__name__)

PART_BYTES = 256 * 2**20
FEWEST_ROWS_OF_SOURCE = 8
"""Least rows of the smallest of several sources: examples beyond whole rows are left over."""
_AGAIN = "Run `sentence-pipelines prepare` with the same settings first"
PLACED = "id long, lane int, row long, slot int"
"""The columns of a place."""


@dataclass(frozen=True)
class Arrangement:
    """The place of every example, in the columns of ``PLACED``.

    Attributes:
        by_source: The rows of each bucket, for each source; empty for a source without a whole row.
        left_over: Examples in no granule, by reason.
        same_group_in_step: Examples that share a step with another of their group.
    """

    lanes: int
    granule: int
    by_source: tuple[tuple[Segment, ...], ...]
    left_over: dict[str, int]
    same_group_in_step: int
    places: DataFrame

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments of all sources."""
        return tuple(segment for segments in self.by_source for segment in segments)

    @property
    def rows(self) -> int:
        """The rows of all segments."""
        return sum(segment.rows for segment in self.segments)

    @property
    def first_rows(self) -> tuple[int, ...]:
        """The first row of each source."""
        rows = (sum(segment.rows for segment in segments) for segments in self.by_source)
        return tuple(accumulate(rows, initial=0))[:-1]


@dataclass(frozen=True)
class Buckets:
    """The length buckets of a corpus: the narrowest width in tokens, and the edges.

    For the edges see :func:`~pipelines.lanes.plan.bucket_table`.
    """

    width: int
    edges: tuple[int, ...]

    def edge(self, length: int) -> int:
        """Return the upper edge of a length's bucket."""
        return self.edges[-(-length // self.width) - 1]


def example_keys(examples: DataFrame, buckets: Buckets, config: Config) -> DataFrame:
    """Return a light row per example: id, group, source, bucket length, two ordering hashes."""
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
    """The lengths in ``lengths.json``, each with its number of examples."""

    lengths: list[tuple[int, int]]
    sources: NotRequired[list[list[tuple[int, int]]]]


def bucket_counts(tokens: TokensFolder, buckets: Buckets) -> tuple[Counter[int], ...]:
    """Count the examples of each source by bucket length, on the driver."""
    stored: _Lengths = records.read(tokens.lengths, _Lengths)
    by_source = []
    for lengths in stored.get("sources", [stored["lengths"]]):
        counts: Counter[int] = Counter()
        for length, number in lengths:
            counts[buckets.edge(length)] += number
        by_source.append(counts)
    return tuple(by_source)


def arrange(
    keys: DataFrame,
    counts: Sequence[Counter[int]],
    lanes: int,
    granule: int,
    granules_per_step: int,
    scratch: Scratch,
) -> Arrangement:
    """Give each fitting example a lane, row and slot.

    A group with more members in a segment than the segment has granules would need two of them in
    one granule. Its surplus is removed, and the plan made again without it. `counts` holds the
    examples of each source by bucket.
    """
    crowded = 0
    while True:
        by_source = plan_sources(counts, lanes, granule)
        segments = tuple(segment for planned in by_source for segment in planned)
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
        # Groups that are no larger than their segment's rows have no surplus either.
        surplus = large
        if large.rows:
            surplus = scratch.keep_counted(_surplus(in_segment, large.frame, segments, granule))
        if not surplus.rows:
            steps_per_row = lanes // granules_per_step
            shared = _same_group_in_step(large.frame, segments, steps_per_row) if large.rows else 0
            places = _places(in_segment, segments, lanes, granules_per_step, scratch)
            return Arrangement(lanes, granule, by_source, left_over, shared, places)
        crowded += surplus.rows
        taken = surplus.frame.groupBy("source", "bucket").count().collect()
        counts = [
            by_bucket
            - Counter({row["bucket"]: row["count"] for row in taken if row["source"] == source})
            for source, by_bucket in enumerate(counts)
        ]
        keys = scratch.keep(keys.join(surplus.frame.select("id"), "id", "left_anti"))


def _with_segment(keys: DataFrame, segments: tuple[Segment, ...], scratch: Scratch) -> DataFrame:
    """Add the segment's number, and drop rows behind the last segment of a source."""
    ordered = _with_position(keys, scratch, "source", "bucket", "id_order", "id")
    number: Any = F
    for index, segment in enumerate(segments):
        last = segment.first_example + segment.examples - 1
        number = number.when(F.col("position").between(segment.first_example, last), index)
    placed = ordered.withColumn("segment", number).drop("position")
    return placed.where(F.col("segment").isNotNull())


def _large_groups(frame: DataFrame, segments: tuple[Segment, ...]) -> DataFrame:
    """Return the groups with more members in a segment than it has rows, with `count`."""
    rows = _per_segment([segment.rows for segment in segments])
    return frame.groupBy("segment", "group").count().where(F.col("count") > rows)


def _surplus(
    frame: DataFrame, large: DataFrame, segments: tuple[Segment, ...], granule: int
) -> DataFrame:
    granules = _per_segment([segment.examples // granule for segment in segments])
    crowded = large.where(F.col("count") > granules).select("segment", "group")
    # Fewer than `granule` groups of a segment can outnumber its granules, so a broadcast is small.
    members = frame.join(F.broadcast(crowded), ["segment", "group"], "left_semi")
    turn = F.row_number().over(Window.partitionBy("segment", "group").orderBy("id_order", "id"))
    return members.withColumn("turn", turn).where(F.col("turn") > granules)


def _same_group_in_step(large: DataFrame, segments: tuple[Segment, ...], steps_per_row: int) -> int:
    """Count examples that share a step with another of their group."""
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
    """Deal the examples of each segment, group by group; the columns of ``PLACED``."""
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
    """Give examples their places by :func:`~pipelines.lanes.plan.deal`. Runs on an executor.

    Takes rows with `id` and `position`, in the order by segment and group; yields rows of
    ``PLACED``.
    """
    for batch in batches:
        places = deal(batch.column("position").to_numpy(), segments, lanes, granules_per_step)
        yield pa.RecordBatch.from_pydict({"id": batch.column("id")} | vars(places))


def _per_segment(values: list[int]) -> Column:
    return F.array(*[F.lit(value).cast("long") for value in values])[F.col("segment")]


def _with_position(frame: DataFrame, scratch: Scratch, *order: str) -> DataFrame:
    """Add `position`: the row's place in the total order of the columns, from 0."""
    ordered = scratch.keep_counted(
        frame.sort(*order)
        .withColumn("partition", F.spark_partition_id())
        # Spark documents the lower 33 bits as the record's number in its partition.
        .withColumn("within", F.monotonically_increasing_id().bitwiseAND((1 << 33) - 1))
    )
    starts, total = [], 0
    for partition in range(max(ordered.partitions, default=0) + 1):
        starts.append(F.lit(total).cast("long"))
        total += ordered.partitions.get(partition, 0)
    position = F.array(*starts)[F.col("partition")] + F.col("within")
    return ordered.frame.withColumn("position", position).drop("partition", "within")


def prepare_lanes(session: SparkSession, config: Config) -> LaneManifest:
    """Form granules of ``<prepared.folder>/tokens`` and write ``<prepared.folder>/lanes``.

    Raises:
        InputError: There are no tokens, too few examples for one row, or only some of the examples
            have a positive or scores.
    """
    prepared = PreparedFolder.of(config)
    if not prepared.tokens.manifest.is_file():
        raise InputError("prepared.folder", f"there are no tokens in {prepared.path}", _AGAIN)
    examples = _examples(session, prepared.tokens)
    teacher = TeacherVectors.load(prepared.teacher) if config.teacher.is_asked else None
    tokens: TokenSummary = records.read(prepared.tokens.manifest, TokenSummary)
    lanes_of = partial(
        lanes_for, config, tokens.examples, [source.examples for source in tokens.sources]
    )
    lanes, granule = lanes_of(), config.lanes.granule
    if lanes < config.lanes.count:
        logger.info("the small corpus fills %d lanes, not %d", lanes, config.lanes.count)
    # Steps of this size are refused later if it does not divide the lanes; any other may come.
    granules_per_step = config.training.granules_per_step
    granules_per_step = granules_per_step if lanes % granules_per_step == 0 else 1
    columns = [*tokens.columns, *(["teacher"] if teacher is not None else [])]
    rows_per_part = max(1, PART_BYTES // (granule * _most_bytes(tokens, teacher)))
    with storage.new_folder(prepared.lanes.path) as folder, Scratch(folder / "scratch") as scratch:
        next_part("arranging examples by length and group")
        edges = bucket_table(tokens.max_length, config.lanes.bucket, config.lanes.bucket_growth)
        buckets = Buckets(config.lanes.bucket, edges)
        counts = bucket_counts(prepared.tokens, buckets)
        keys = example_keys(examples, buckets, config)
        arrangement = arrange(keys, counts, lanes, granule, granules_per_step, scratch)
        sizes_of = partial(_group_sizes, examples)
        check_rows(arrangement, tokens.sources or (tokens,), sizes_of, lanes_of)
        next_part("writing granules")
        if teacher is not None:
            examples = examples.join(_vectors(session, prepared.teacher), "id")
        write = partial(
            write_lanes,
            folder=folder,
            columns=columns,
            granule=granule,
            rows_per_part=rows_per_part,
            vocabulary=tokens.vocabulary,
            first_rows=arrangement.first_rows,
        )
        written, checksums = _write(examples, arrangement, write, columns)
        manifest = _manifest(
            arrangement,
            written,
            tokens,
            teacher,
            checksums=checksums,
            granules_per_step=granules_per_step,
            rows_per_part=rows_per_part,
        )
        manifest.save(folder)
    return manifest


def lanes_for(
    config: Config, examples: int, of_sources: Sequence[int], granule: int | None = None
) -> int:
    """Return the number of lanes: few enough that the smallest source has several rows.

    `of_sources` holds the examples of each, and is empty where there is one; `granule` replaces
    `lanes.granule`.
    """
    choose = partial(
        choose_lanes,
        granule=config.lanes.granule if granule is None else granule,
        most=config.lanes.count,
        granules_per_step=config.training.granules_per_step,
    )
    smallest = min(of_sources, default=examples)
    return min(choose(examples), choose(smallest, rows=FEWEST_ROWS_OF_SOURCE))


def check_rows(
    arrangement: Arrangement,
    sources: Sequence[TokenSummary | SourceTokens],
    sizes_of: Callable[[int], Mapping[int, int]],
    lanes_of: Callable[..., int],
) -> None:
    """Refuse a source that fills no row.

    `sizes_of` counts the groups of a source, given its number, by their number of members.

    Raises:
        InputError: A source fills no row.
    """
    lanes, granule = arrangement.lanes, arrangement.granule
    for number, (segments, source) in enumerate(zip(arrangement.by_source, sources, strict=True)):
        if segments:
            continue
        count = source.examples
        of_source = f" of source {source.name}" if isinstance(source, SourceTokens) else ""
        if count < lanes * granule:
            raise InputError(
                "lanes.granule",
                f"{count} examples{of_source} do not fill a row of {lanes} lanes x {granule}",
                f"Set it to at most {max(count // lanes, 2)}, lower lanes.count, or prepare a"
                " larger corpus",
            )
        # They are enough for a row, but a granule holds one of each group.
        sizes = sizes_of(number)
        groups = "1 group" if sum(sizes.values()) == 1 else f"{sum(sizes.values())} groups"
        most = largest_granule(sizes, lanes_of, granule)
        or_smaller = "" if most is None else f", or set it to at most {most}"
        raise InputError(
            "lanes.granule",
            f"{count} examples{of_source} do not fill a row of {lanes} lanes x {granule}: a granule"
            f" holds one example of a group, and they form {groups} (equal anchors, or equal values"
            f" of corpus.group_column), the largest of {max(sizes)}",
            f"Prepare a corpus with more groups{or_smaller}",
        )


def _group_sizes(examples: DataFrame, source: int) -> dict[int, int]:
    has_sources = SOURCE in examples.columns
    of_source = examples.where(F.col(SOURCE) == source) if has_sources else examples
    members = of_source.groupBy("group").agg(F.count(F.lit(1)).alias("members"))
    found = members.groupBy("members").agg(F.count(F.lit(1)).alias("groups")).collect()
    return {row["members"]: row["groups"] for row in found}


def largest_granule(
    sizes: Mapping[int, int], lanes_of: Callable[..., int], below: int
) -> int | None:
    """Find the largest granule with which groups fill a row; None if not even 2 does."""
    for granule in range(below - 1, 1, -1):
        lanes = lanes_of(granule=granule)
        placed = sum(min(members, lanes) * groups for members, groups in sizes.items())
        if placed >= lanes * granule:
            return granule
    return None


def _examples(session: SparkSession, tokens: TokensFolder) -> DataFrame:
    """Return the examples, by a known schema: Spark runs no job to find it."""
    first = next(iter(data_files(tokens.examples)), None)
    columns = [] if first is None else pq.read_schema(arrow_source(first)).names
    if first is not None and not {*OPTIONAL_COLUMNS} <= {*columns}:
        raise InputError("prepared.folder", f"{tokens.path} has another format", _AGAIN)
    return read_parquet(session, tokens.examples, from_arrow_schema(example_schema(columns)))


def _vectors(session: SparkSession, folder: TeacherFolder) -> DataFrame:
    return read_parquet(session, folder.examples, from_arrow_schema(TEACHER_SCHEMA))


def _manifest(
    arrangement: Arrangement,
    written: Sequence[Counter[str]],
    tokens: TokenSummary,
    teacher: TeacherVectors | None,
    *,
    checksums: tuple[str, ...],
    granules_per_step: int,
    rows_per_part: int,
) -> LaneManifest:
    """Return the manifest of written lanes; refuse columns with values for only some examples.

    `written` holds the ``COUNTED`` numbers of each source, over all lanes.
    """
    names = [f" of source {source.name}" for source in tokens.sources] or [""]
    present = [
        _present(counts, arrangement.granule, name)
        for counts, name in zip(written, names, strict=True)
    ]
    total = reduce(add, written)
    sources = zip(
        *(tokens.sources, arrangement.by_source, arrangement.first_rows, written, present),
        strict=False,  # of one source the tokens stage says nothing by itself
    )
    return LaneManifest(
        lanes=arrangement.lanes,
        granule=arrangement.granule,
        rows=arrangement.rows,
        rows_per_part=rows_per_part,
        segments=arrangement.segments,
        examples=tokens.examples,
        left_over=arrangement.left_over,
        granules_per_step=granules_per_step,
        same_group_in_step=arrangement.same_group_in_step,
        tokens=total["tokens"],
        slots=total["slots"],
        vocabulary=tokens.vocabulary,
        max_length=tokens.max_length,
        negatives=tokens.negatives,
        **{flag: any(has[flag] for has in present) for flag in present[0]},
        teacher=teacher if total["teacher"] else None,
        checksums=checksums,
        sources=tuple(
            SourceLanes(
                name=source.name,
                first_row=first_row,
                rows=sum(segment.rows for segment in segments),
                examples=source.examples,
                tokens=counts["tokens"],
                negatives=source.negatives,
                **has,
            )
            for source, segments, first_row, counts, has in sources
        ),
    )


def _most_bytes(tokens: TokenSummary, teacher: TeacherVectors | None) -> int:
    vector = 0 if teacher is None else teacher.bytes + 8
    return (2 + tokens.negatives) * (4 * tokens.max_length + vector + 16) + 64


def _present(written: Counter[str], granule: int, of_source: str) -> dict[str, bool]:
    """Return whether the examples have each optional column; refuse one with gaps.

    A granule with gaps could not be computed as one.
    """
    placed = written["granules"] * granule
    for name, key in OPTIONAL.items():
        if 0 < written[name] < placed:
            raise InputError(
                key,
                f"only {written[name]} of {placed} examples{of_source} have a value in `{name}`",
                "Give all of them one, or leave the others out of the corpus",
            )
    flags = {"paired": "positive", "scored": "score", "candidates_scored": "candidate_scores"}
    return {flag: written[name] > 0 for flag, name in flags.items()}


def _write(
    examples: DataFrame,
    arrangement: Arrangement,
    write: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]],
    columns: Sequence[str],
) -> tuple[list[Counter[str]], tuple[str, ...]]:
    """Shuffle the examples to their lanes, write them, and check the result.

    Returns the ``COUNTED`` numbers of each source, over all lanes, and the checksum of each lane's
    index.
    """
    written = (
        examples.join(arrangement.places, "id")
        .select("lane", "row", "slot", *lane_schema(columns).names)
        # A hash may put several lanes into one partition: the sort keeps each lane whole.
        .repartition(arrangement.lanes, "lane")
        .sortWithinPartitions("lane", "row", "slot")
        .mapInArrow(write, WRITTEN)
        .collect()
    )
    lanes = range(arrangement.lanes)
    granules = Counter(dict.fromkeys(lanes, 0))
    counts = [Counter[str]() for _ in arrangement.by_source]
    for row in written:
        granules[row["lane"]] += row["granules"]
        counts[row["source"]].update({name: row[name] for name in COUNTED})
    short = [lane for lane, made in granules.items() if made != arrangement.rows]
    if short or len(granules) != arrangement.lanes:
        raise PipelineError(f"lanes {short} are incomplete")
    checksums = {row["lane"]: row["checksum"] for row in written}
    return counts, tuple(checksums[lane] for lane in lanes)
