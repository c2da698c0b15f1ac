"""Takes rows of given keys out of a table of vectors that is whole.

Parts that hold such rows are written again without them, and others are linked or copied, into a
table that takes the place of this one; see :mod:`pipelines.vectors.part_files`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired

import pyarrow.parquet as pq
from pydantic import ConfigDict
from typing_extensions import TypedDict

from pipelines.files import records, storage, versions
from pipelines.files.folders import work_folder
from pipelines.files.locations import Location, RemotePath, arrow_source
from pipelines.files.ownership import TABLE
from pipelines.settings import Config
from pipelines.spark.capacity import default_parallelism
from pipelines.spark.tasks import collect_from_tasks, slices
from pipelines.vectors.embedding import Columns
from pipelines.vectors.making import run_job
from pipelines.vectors.part_files import DeletedRows, write_deleted, write_part
from pipelines.vectors.parts import PartFooter, RowRange, in_threads, read_part_footer, read_rows
from pipelines.vectors.plan import (
    INDEX_FOLDER,
    MANIFEST_FILE,
    OUTPUT,
    Version,
    beginning,
    check_places,
    discard_begun,
    lock_file,
    output_folder,
    part_file,
    read_version,
    take_place,
    write_plan,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _Manifest(TypedDict):
    """What is read of a table's manifest, which has more."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc] # as pydantic has it

    text_column: str
    vector_column: str
    left_out: NotRequired[int]


@dataclass(frozen=True)
class _Written:
    """A part of the new table.

    Attributes:
        number: Of the part in the table before.
        name: What it is called now: another content has another name.
        footer: What its footer says.
    """

    number: int
    name: str
    footer: PartFooter


def check_table(config: Config) -> None:
    """Refuses a table that would be replaced with files of the user's in it.

    Raises:
        InputError: See :func:`pipelines.files.ownership.check_ours`.
    """
    folder = output_folder(config.embedding, config.storage)
    if read_version(versions.current(folder), config.storage) is not None:
        check_places(OUTPUT, folder, TABLE)


def has_rows_by(config: Config, column: str) -> bool:
    """Whether there is a table in ``embedding.output`` that has a column of keys."""
    folder = output_folder(config.embedding, config.storage)
    whole = read_version(versions.current(folder), config.storage)
    if whole is None or not whole.is_whole:
        return False
    files = [part_file(whole.folder, part) for part in whole.plan.parts]
    names = in_threads(lambda file: pq.read_schema(arrow_source(file)).names, files)
    return any(column in there for there in names)


def delete_from_table(session: SparkSession, config: Config, deleted: DeletedRows) -> int:
    """Takes rows out of ``embedding.output``, and keeps them out of it.

    Args:
        session: Its executors read and write.
        config: Names a table that has the column.
        deleted: All that were deleted, now and before.

    Returns:
        How many rows were taken out.

    Raises:
        PipelineError: Another job works there, or an executor could not read or write.
    """
    folder = output_folder(config.embedding, config.storage)
    with work_folder("embedding.output", folder, "delete", lock_file(folder)):
        storage.settle(folder)
        whole = read_version(versions.current(folder), config.storage)
        assert whole is not None, "only jobs remove a table, and this one has the lock"
        # It may hold such rows, and is not to go on.
        discard_begun(folder)
        gone = _replace(session, whole, folder, deleted)
        if isinstance(folder, RemotePath):
            storage.discard_folder(folder / INDEX_FOLDER)
            versions.forget_earlier(folder)
    return gone


def _replace(session: SparkSession, whole: Version, folder: Location, deleted: DeletedRows) -> int:
    """Puts a table without the rows in the place; returns how many they are."""
    plan, build = whole.plan, whole.plan.build + 1
    manifest: _Manifest = records.read(whole.folder / MANIFEST_FILE, _Manifest)
    columns = Columns(text=manifest["text_column"], vector=manifest["vector_column"])
    with beginning(folder) as begun:
        work = partial(
            _write_parts,
            source=whole.folder,
            target=begun.aside,
            build=build,
            columns=columns,
            deleted=deleted,
        )
        numbered = list(enumerate(plan.parts))
        tasks = slices(numbered, 4 * default_parallelism(session))
        act = partial(collect_from_tasks, session, tasks, work)
        found: list[_Written] = run_job(session, "embedding: deleting rows", act)
        named = {one.number: one.name for one in found}
        parts = [replace(part, name=named[number]) for number, part in numbered]
        ordered = tuple(sorted(parts, key=lambda part: part.name))
        counts: dict[str, Any] = {
            "rows": sum(one.footer.rows for one in found),
            "texts": sum(one.footer.texts for one in found),
            "build": build,
            "left_out": sum(one.footer.left_out for one in found),
            "changes": None,
            "parts": {one.name: one.footer.rows for one in found},
        }
        write_deleted(begun.aside, deleted)
        write_plan(begun.aside, replace(plan, parts=ordered, build=build, changes=None))
        storage.write_json(begun.aside / MANIFEST_FILE, {**manifest, **counts})
    take_place(begun.folder, folder)
    return int(counts["left_out"]) - manifest.get("left_out", 0)


def _write_parts(
    tasks: Iterable[Sequence[tuple[int, RowRange]]],
    *,
    source: Location,
    target: Location,
    build: int,
    columns: Columns,
    deleted: DeletedRows,
) -> Iterator[_Written]:
    """Writes parts without the rows, or takes them over as they are. Runs on an executor."""
    for number, part in chain.from_iterable(tasks):
        file = part_file(source, part)
        footer = read_part_footer(file, columns.text)
        gone = _count(file, footer.rows, deleted)
        name = f"part-{build:05d}-{number:05d}-00000" if gone else part.name
        if gone:
            batches = map(deleted.without, read_rows(file, 0, footer.rows))
            with storage.built_file(target / f"{name}.parquet") as made:
                write_part(made, batches, columns, footer.left_out + gone)
        else:
            _take_over(file, target / file.name)
        yield _Written(number, name, read_part_footer(target / f"{name}.parquet", columns.text))


def _count(file: Location, rows: int, deleted: DeletedRows) -> int:
    # Input files may have columns that others have not.
    if deleted.column not in pq.read_schema(arrow_source(file)).names:
        return 0
    return deleted.count_in(file, 0, rows)


def _take_over(file: Location, target: Location) -> None:
    if isinstance(file, RemotePath) and isinstance(target, RemotePath):
        versions.copy_file(file, target)
    elif isinstance(file, Path) and isinstance(target, Path):
        with suppress(OSError):
            target.hardlink_to(file)
            return
        shutil.copy2(file, target)
