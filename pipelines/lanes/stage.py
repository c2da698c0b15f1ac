"""The stage that forms granules and writes the lanes.

Each example gets its place (:mod:`pipelines.lanes.arrangement`); then the examples are shuffled to
their lanes once and written by the executors.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.errors import InputError, PipelineError
from pipelines.files import storage
from pipelines.files.locations import arrow_source
from pipelines.files.prepared_folder import PreparedFolder, TeacherFolder, TokensFolder
from pipelines.lanes.arrangement import (
    Arrangement,
    Buckets,
    Shape,
    arrange,
    bucket_counts,
    example_keys,
)
from pipelines.lanes.files import LaneManifest, lane_schema
from pipelines.lanes.plan import choose_lanes
from pipelines.lanes.teacher import SCHEMA as TEACHER_SCHEMA
from pipelines.lanes.teacher import TeacherVectors
from pipelines.lanes.writer import COUNTED, OPTIONAL, WRITTEN, write_lanes
from pipelines.progress import next_part
from pipelines.settings import Config
from pipelines.spark.frames import Scratch, read_parquet
from pipelines.spark.parquet_parts import data_files
from pipelines.tokens.examples import OPTIONAL as OPTIONAL_COLUMNS
from pipelines.tokens.examples import SCHEMA as EXAMPLE_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

PART_BYTES = 256 * 2**20
_AGAIN = "run `sentence-pipelines prepare` with the same settings first"


def prepare_lanes(session: SparkSession, config: Config) -> LaneManifest:
    """Forms granules of ``<prepared.folder>/tokens`` and writes ``<prepared.folder>/lanes``.

    Raises:
        InputError: There are no tokens, too few examples for one row, or only some of the
            examples have a positive or scores.
    """
    prepared = PreparedFolder.of(config)
    if not prepared.tokens.manifest.is_file():
        raise InputError(
            "prepared.folder",
            f"there are no tokens in {prepared.path}",
            _AGAIN,
        )
    examples = _examples(session, prepared.tokens)
    teacher = TeacherVectors.load(prepared.teacher) if config.teacher.is_asked else None
    tokens = storage.read_json(prepared.tokens.manifest)
    count = int(tokens["examples"])
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
    columns = [*tokens["columns"], *(["teacher"] if teacher is not None else [])]
    rows_per_part = max(1, PART_BYTES // (config.lanes.granule * _most_bytes(tokens, teacher)))
    with storage.new_folder(prepared.lanes.path) as folder, Scratch(folder / "scratch") as scratch:
        next_part("arranging examples by length and group")
        buckets = Buckets.of(int(tokens["max_length"]), config.lanes)
        counts = bucket_counts(prepared.tokens, buckets)
        shape = Shape(lanes, config.lanes.granule, granules_per_step)
        arrangement = arrange(example_keys(examples, buckets, config), counts, shape, scratch)
        if not arrangement.segments:
            raise InputError(
                "lanes.granule",
                f"{count} examples do not fill a row of {lanes} lanes x {config.lanes.granule}",
                f"at most {max(count // lanes, 2)}, a smaller lanes.count, or a larger corpus",
            )
        next_part("writing granules")
        if teacher is not None:
            examples = examples.join(_vectors(session, prepared.teacher), "id")
        write = partial(
            write_lanes,
            folder=folder,
            columns=columns,
            granule=config.lanes.granule,
            rows_per_part=rows_per_part,
            vocabulary=int(tokens["vocabulary"]),
        )
        written, checksums = _write(examples, arrangement, write, columns)
        manifest = _manifest(
            arrangement,
            written,
            checksums,
            tokens,
            teacher,
            granules_per_step=granules_per_step,
            rows_per_part=rows_per_part,
        )
        manifest.save(folder)
    return manifest


def _examples(session: SparkSession, tokens: TokensFolder) -> DataFrame:
    """The examples; their schema is known, so that Spark runs no job to find it.

    Raises:
        InputError: An earlier release has written them.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    first = next(iter(data_files(tokens.examples)), None)
    there = None if first is None else pq.read_schema(arrow_source(first)).names
    if there is not None and not {*OPTIONAL_COLUMNS} <= {*there}:
        raise InputError("prepared.folder", f"{tokens.path} has another format", _AGAIN)
    return read_parquet(session, tokens.examples, from_arrow_schema(EXAMPLE_SCHEMA))


def _vectors(session: SparkSession, folder: TeacherFolder) -> DataFrame:
    """The vectors of the examples' texts."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return read_parquet(session, folder.examples, from_arrow_schema(TEACHER_SCHEMA))


def _manifest(
    arrangement: Arrangement,
    written: Counter[str],
    checksums: tuple[str, ...],
    tokens: Mapping[str, int],
    teacher: TeacherVectors | None,
    *,
    granules_per_step: int,
    rows_per_part: int,
) -> LaneManifest:
    """What the manifest says of lanes that were written.

    Args:
        arrangement: Of the examples.
        written: What is ``COUNTED``, over all lanes.
        checksums: Of the index of each lane.
        tokens: What the tokens stage wrote.
        teacher: The vectors of the examples' texts, if they have some.
        granules_per_step: As in the manifest.
        rows_per_part: As in the manifest.

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
        examples=int(tokens["examples"]),
        left_over=arrangement.left_over,
        granules_per_step=granules_per_step,
        same_group_in_step=arrangement.same_group_in_step,
        tokens=written["tokens"],
        slots=written["slots"],
        vocabulary=int(tokens["vocabulary"]),
        max_length=int(tokens["max_length"]),
        paired=present["positive"],
        negatives=int(tokens["negatives"]),
        scored=present["score"],
        candidates_scored=present["candidate_scores"],
        teacher=teacher if present["teacher"] else None,
        checksums=checksums,
    )


def _most_bytes(tokens: Mapping[str, int], teacher: TeacherVectors | None) -> int:
    """Upper bound of an example's size in a lane file.

    Args:
        tokens: What the tokens stage wrote.
        teacher: The vectors of the texts, if they have some.
    """
    texts = 2 + int(tokens["negatives"])
    vector = 0 if teacher is None else teacher.bytes + 8
    return texts * (4 * int(tokens["max_length"]) + vector + 16) + 64


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


def _write(
    examples: DataFrame,
    arrangement: Arrangement,
    write: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]],
    columns: Sequence[str],
) -> tuple[Counter[str], tuple[str, ...]]:
    """Shuffles the examples to their lanes, has them written, and checks what was written.

    Args:
        examples: With their columns.
        arrangement: Of the examples.
        write: Writes the lanes of one partition.
        columns: The optional columns that the lanes have.

    Returns:
        What is ``COUNTED``, over all lanes; and the checksum of each lane's index.
    """
    written = (
        examples.join(arrangement.places, "id")
        .select("lane", "row", "slot", *lane_schema(columns).names)
        .repartition(arrangement.lanes, "lane")
        .sortWithinPartitions("lane", "row", "slot")
        .mapInArrow(write, WRITTEN)
        .collect()
    )
    short = [row["lane"] for row in written if row["granules"] != arrangement.rows]
    if short or len(written) != arrangement.lanes:
        raise PipelineError(f"lanes {short} were not written whole")
    counts = Counter({name: sum(row[name] for row in written) for name in COUNTED})
    checksums = {row["lane"]: row["checksum"] for row in written}
    return counts, tuple(checksums[lane] for lane in range(arrangement.lanes))
