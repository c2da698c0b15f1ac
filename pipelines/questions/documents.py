"""Documents for questions: the distinct texts of a table, and the answers known for them.

A text goes to the file given by its hash, and so do earlier answers about it. A job thus finds them
without a search, however the table has grown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from pipelines.corpus.readers.formats import Dialect
from pipelines.errors import InputError
from pipelines.files import records, storage
from pipelines.files.locations import Location
from pipelines.settings import Config, EmbeddingSettings
from pipelines.spark.frames import read_parquet, shuffle_partitions
from pipelines.vectors.mining_texts import part_name, write_buckets
from pipelines.vectors.parts import RowRange
from pipelines.vectors.sources import (
    Source,
    column_named,
    damage_told,
    has_text,
    read_source,
    text_named,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

INPUTS = "questions.inputs"
DOCUMENTS, KNOWN = "documents", "known"
"""Folders: all documents, and earlier answers about them."""
PAID = "reply is not null or prompt_tokens + reply_tokens > 0"
"""Condition of the model's replies, see :attr:`~pipelines.questions.generator.Reply.is_paid`."""
STAGED_FILE = "staged.json"
_FILE_ROWS = 8192
_ROWS_OF_SHUFFLE = 100_000
_LEAST_ROWS, _MOST_ROWS = 16, 256
_PARTS = 64
"""Least number of parts, as far as there are enough documents."""


def documents_source(config: Config) -> Source:
    """Return the table of documents."""
    settings = config.questions
    texts = {"questions.text_column": settings.text_column}
    if settings.title_column is not None:
        texts["questions.title_column"] = settings.title_column
    key = settings.key_column
    dialect = Dialect.of(settings)
    return Source(
        key=INPUTS,
        format_key="questions.format",
        texts=texts,
        values={} if key is None else {"questions.key_column": key},
        table=EmbeddingSettings(
            inputs=settings.inputs,
            format=settings.format,
            text_column=settings.text_column,
            csv_separator=dialect.separator,
            csv_escape=dialect.escape,
            follow_links=settings.follow_links,
        ),
    )


def build_name(build: int) -> str:
    """Return how the names of a build's answers begin."""
    return f"part-{build:04d}"


@dataclass(frozen=True)
class Staged:
    """The counts of the collected documents.

    ``read`` and ``without_text`` are rows of the input; ``rows`` those of each file of documents,
    by bucket number as text.
    """

    read: int
    without_text: int
    rows: Mapping[str, int]

    @property
    def documents(self) -> int:
        """The number of distinct texts."""
        return sum(self.rows.values())

    @property
    def files(self) -> dict[str, int]:
        """The rows of each file, by its name without ending."""
        return {part_name(int(bucket)): rows for bucket, rows in self.rows.items()}

    @classmethod
    def read_from(cls, folder: Location) -> Staged | None:
        """Return the counts of a folder; None if it is incomplete."""
        path = folder / STAGED_FILE
        known: Staged | None = records.read(path, cls) if path.is_file() else None
        return known

    def parts(self, folder: Location, asked_rows: int | None, build: int) -> list[RowRange]:
        """Cut the files of documents in a folder into parts, the unit of asking.

        Names begin with ``build``, so that no name is ever reused for other documents.
        """
        rows = asked_rows or int(np.clip(self.documents // _PARTS, _LEAST_ROWS, _MOST_ROWS))
        found = []
        for name, count in self.files.items():
            file = folder / f"{name}.parquet"
            begins = f"{build_name(build)}-{name.removeprefix('part-')}"
            for number, start in enumerate(range(0, count, rows)):
                stop = min(start + rows, count)
                found.append(RowRange(f"{begins}-{number:05d}", file, start, stop))
        return found


def read_documents(
    session: SparkSession, config: Config, staged: Location, output: Location
) -> DataFrame:
    """Return `text`, `title` and `key` of the table; null without such a column.

    Arguments and errors are those of :func:`pipelines.vectors.sources.read_source`.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    settings = config.questions
    frame = read_source(session, config, documents_source(config), staged, output)
    title, key = settings.title_column, settings.key_column
    nothing = F.lit(None).cast("string")
    return frame.select(
        text_named(settings.text_column).alias("text"),
        (nothing if title is None else text_named(title)).alias("title"),
        (nothing if key is None else column_named(key)).alias("key"),
    )


def stage_documents(
    session: SparkSession,
    config: Config,
    work: Location,
    output: Location,
    known: Sequence[Location],
) -> Staged:
    """Write documents and known answers into folders of ``work``, as files of the same buckets.

    ``known`` are folders of earlier answers; those of failed requests are left out.

    Raises:
        InputError: The table cannot be read, or has no text.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    # Remains of a killed job: it had not staged all documents.
    storage.discard_folder(work)
    with damage_told(session, config, [documents_source(config)]):
        rows = read_documents(session, config, work / "input", output)
        kept = F.count(F.when(has_text("text"), 1)).alias("kept")
        found = rows.agg(F.count(F.lit(1)).alias("read"), kept).collect()[0]
        if not found["kept"]:
            problem = f"none of {found['read']} rows has a text"
            raise InputError(INPUTS, problem, "Name a table of documents")
        buckets = -(-found["kept"] // _FILE_ROWS)
        with shuffle_partitions(session, found["kept"] // _ROWS_OF_SHUFFLE):
            texts = rows.where(has_text("text")).groupBy("text")
            distinct = texts.agg(F.min("title").alias("title"), F.min("key").alias("key"))
            written = write_buckets(distinct, buckets, ["text"], work / DOCUMENTS, placed=True)
    if known:
        columns = ("text", "prompt", "reply", "problem")
        counts = ("prompt_tokens", "reply_tokens", "max_tokens")
        found_answers = (
            read_parquet(session, folder).select(*columns, *counts).where(PAID) for folder in known
        )
        answers = reduce(lambda left, right: left.union(right), found_answers)
        write_buckets(answers, buckets, ["text", "prompt"], work / KNOWN, placed=False)
    staged = Staged(found["read"], found["read"] - found["kept"], written)
    # Last, as the mark of a complete folder.
    storage.write_json(work / STAGED_FILE, asdict(staged))
    return staged
