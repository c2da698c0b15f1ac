"""Deletion of rows from a table of vectors by their keys, for good.

The table's folder lists hashes of the keys: no part gets such rows, whatever the inputs still hold.
A table without them replaces a whole table, with links to or copies of the other parts. It is a
version with its own log of changes, so stores can follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NotRequired

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import ConfigDict
from typing_extensions import TypedDict

from pipelines.arrow_columns import as_text
from pipelines.corpus.unit_rows import hash_of, hashed_keys
from pipelines.files import records, storage, versions
from pipelines.files.begun import (
    beginning,
    begun_folders,
    check_places,
    discard_begun,
    take_place,
)
from pipelines.files.locations import Location, arrow_source
from pipelines.files.ownership import TABLE
from pipelines.settings import Config
from pipelines.spark.capacity import default_parallelism
from pipelines.spark.tasks import collect_from_tasks, slices
from pipelines.vectors.changes import (
    UPSERT,
    ChangeLog,
    key_type_in,
    model_digest_in,
    newest_logs,
    read_changes,
    write_log,
)
from pipelines.vectors.embedding import Columns
from pipelines.vectors.int8 import CALIBRATION_FILE
from pipelines.vectors.parts import (
    PartFooter,
    RowRange,
    in_threads,
    read_part_footer,
    read_rows,
    write_part,
)
from pipelines.vectors.plan import (
    KEY_COLUMN,
    OUTPUT,
    Version,
    output_folder,
    part_file,
    read_version,
)
from pipelines.vectors.row_changes import Logged, compare_on_spark, log_changes
from pipelines.vectors.table_job import (
    ATTEMPTS,
    INDEX_FOLDER,
    MANIFEST_FILE,
    STAGED,
    run_job,
    working_on,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELETED_FILE = "_deleted.json"
"""List of the rows to keep out of the table."""


@dataclass(frozen=True)
class DeletedRows:
    """The rows to keep out of a table: sorted hashes of their keys, and the column of the keys."""

    column: str
    keys: tuple[int, ...]

    def without(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the other rows. Runs on an executor."""
        return batch.filter(pc.invert(self._are_deleted(batch.column(self.column))))

    def count(self, part: RowRange) -> int:
        """Return the number of deleted rows of a part. Runs on an executor."""
        if self.column in pq.read_schema(arrow_source(part.path)).names:
            return self.count_in(part.path, part.start, part.stop)
        value = next(constant.value for constant in part.constants if constant.name == self.column)
        return part.rows if value is not None and hash_of(value) in self.keys else 0

    def count_in(self, path: Location, start: int, stop: int) -> int:
        """Return the number of deleted rows of a range of a file. Runs on an executor."""
        return sum(
            pc.sum(self._are_deleted(batch.column(self.column))).as_py() or 0
            for batch in read_rows(path, start, stop, [self.column])
        )

    def _are_deleted(self, keys: pa.Array) -> pa.Array:
        return pc.is_in(hashed_keys(_key_texts(keys)), value_set=pa.array(self.keys, pa.int64()))


def _key_texts(keys: pa.Array) -> pa.Array:
    """Return keys as Spark casts them to text: `delete` hashes them so in the corpus."""
    if not pa.types.is_floating(keys.type):
        return as_text(keys)
    values = keys.to_numpy(zero_copy_only=False)
    texts = [_number_text(value) for value in values]
    return pa.array(texts, pa.string(), mask=keys.is_null().to_numpy(zero_copy_only=False))


def _number_text(value: np.floating[Any]) -> str:
    """Format a number as Java does: whole numbers with a null are often a column of floats."""
    if not np.isfinite(value):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return np.format_float_positional(value, trim="0")
    digits, _, exponent = np.format_float_scientific(value, trim="0").partition("e")
    return f"{digits}E{int(exponent)}"


def read_deleted(folder: Location) -> DeletedRows | None:
    """Return the deleted rows of the table in a folder, if any."""
    path = folder / DELETED_FILE
    known: DeletedRows | None = records.read(path, DeletedRows) if path.is_file() else None
    return known


def write_deleted(folder: Location, deleted: DeletedRows) -> None:
    """List the rows to keep out of the table in a folder."""
    storage.write_json(folder / DELETED_FILE, asdict(deleted))


class _Manifest(TypedDict):
    """The known fields of a table's manifest, besides others."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc] # as pydantic has it

    text_column: str
    vector_column: str
    left_out: NotRequired[int]


@dataclass(frozen=True)
class _Written:
    """A part of the new table; ``number`` is the old part's, ``name`` changes with the content."""

    number: int
    name: str
    footer: PartFooter


def check_table(config: Config) -> None:
    """Refuse to replace a table with files of the user in its folder.

    Raises:
        InputError: See :func:`pipelines.files.ownership.check_ours`.
    """
    folder, version = _table(config)
    if version is not None or _begun(config):
        check_places(OUTPUT, folder, TABLE)


def has_rows_by(config: Config, column: str) -> bool:
    """Return whether ``embedding.output`` has a table with this column of keys."""
    _, version = _table(config)
    return version is not None and version.is_whole and _has_column(version, column)


def discard_unfinished(config: Config, column: str) -> bool:
    """Discard an unfinished table with this column of keys; return whether there was one.

    It may hold deleted rows, and the next `embed` would continue it.
    """
    if not any(_has_column(version, column) for version in _begun(config)):
        return False
    folder = output_folder(config)
    with working_on(OUTPUT, folder, "delete"):
        check_places(OUTPUT, folder, TABLE)
        discard_begun(folder)
    return True


def _begun(config: Config) -> list[Version]:
    """Return the unfinished tables for ``embedding.output``."""
    places = begun_folders(output_folder(config))
    found = (read_version(place, config.storage) for place in places)
    return [version for version in found if version is not None]


def _has_column(version: Version, column: str) -> bool:
    """Return whether the written parts of a table, or its copies of rows, have a column."""
    copies = {part.path for part in version.plan.parts if part.path.parent.name == STAGED}
    files = [file for file in (*map(version.file, version.plan.parts), *copies) if file.is_file()]
    # Input files may differ in their columns, so every part counts.
    names_of_files = in_threads(lambda file: pq.read_schema(arrow_source(file)).names, files)
    return any(column in names for names in names_of_files)


def _table(config: Config) -> tuple[Location, Version | None]:
    folder = output_folder(config)
    return folder, read_version(versions.current(folder), config.storage)


def delete_from_table(session: SparkSession, config: Config, deleted: DeletedRows) -> int:
    """Remove rows from ``embedding.output`` for good; return their number.

    ``deleted`` are all deletions, now and before; the table has their column.

    Raises:
        PipelineError: Another job works there, or an executor could not read or write.
    """
    with working_on(OUTPUT, output_folder(config), "delete"):
        folder, version = _table(config)
        assert version is not None, "only jobs remove a table, and this one has the lock"
        # An unfinished table may hold such rows, so no job may continue it.
        discard_begun(folder)
        gone = _replace(session, version, folder, deleted, config.embedding.keep_changes)
        # The index and earlier versions still hold the deleted rows.
        storage.discard_folder(folder / INDEX_FOLDER)
        versions.forget_earlier(folder)
    return gone


def _replace(
    session: SparkSession, version: Version, folder: Location, deleted: DeletedRows, keep: int
) -> int:
    """Replace the table by one without the rows; return their number.

    ``keep`` is the number of logs of changes.
    """
    plan, build = version.plan, version.plan.build + 1
    manifest: _Manifest = records.read(version.folder / MANIFEST_FILE, _Manifest)
    columns = Columns(text=manifest["text_column"], vector=manifest["vector_column"])
    with beginning(folder) as begun:
        work = partial(
            _write_parts,
            source=version.folder,
            target=begun.aside,
            build=build,
            columns=columns,
            deleted=deleted,
        )
        tasks = slices(list(enumerate(plan.parts)), 4 * default_parallelism(session))
        act = partial(collect_from_tasks, session, tasks, work)
        found: list[_Written] = run_job(session, "embedding: deleting rows", act)
        named = {part.number: part.name for part in found}
        parts = (replace(part, name=named[number]) for number, part in enumerate(plan.parts))
        ordered = tuple(sorted(parts, key=lambda part: part.name))
        write_deleted(begun.aside, deleted)
        plan = replace(plan, parts=ordered, build=build, changes=None)
        if plan.int8 is not None:
            storage.copy_file(version.folder / CALIBRATION_FILE, begun.aside / CALIBRATION_FILE)
        plan.write(begun.aside)
        made = Version(begun.aside, plan, is_whole=False)
        logged = _log(session, made, version, deleted, model_digest_in(manifest), keep)
        rows = sum(part.footer.rows for part in found)
        counts: dict[str, Any] = {
            "rows": rows,
            "texts": sum(part.footer.texts for part in found),
            "build": build,
            **asdict(logged.lineage),
            "left_out": sum(part.footer.left_out for part in found),
            "changes": None if logged.changes is None else logged.changes.fields(rows),
            "parts": {part.name: part.footer.rows for part in found},
        }
        storage.write_json(begun.aside / MANIFEST_FILE, {**manifest, **counts})
    take_place(begun.folder, folder)
    return int(counts["left_out"]) - manifest.get("left_out", 0)


def _log(
    session: SparkSession,
    made: Version,
    before: Version,
    deleted: DeletedRows,
    model_digest: str | None,
    keep: int,
) -> Logged:
    """Write the log of a deletion, and take its keys out of the logs before.

    Those name them at most as keys to delete: who follows from an earlier version has to know.
    """
    compare = partial(compare_on_spark, session)
    logged = log_changes(
        made, before, compare, model_digest=model_digest, keep=keep, equality="keys"
    )
    storage.discard_folder(made.folder / ATTEMPTS)
    logs = list(newest_logs(made.folder, logged.lineage.version))
    if len(logs) < 2:
        return logged
    gone = chain.from_iterable(
        hashed_keys(as_text(batch["key"])).to_pylist() for batch in read_changes(logs[0])
    )
    # A deleted row may have left the table before, and only its key tells that it was there.
    is_key = deleted.column == made.plan.identity[KEY_COLUMN]
    hashes = {*gone, *(deleted.keys if is_key else ())}
    forget = partial(_forget_keys, hashes=pa.array(sorted(hashes), pa.int64()))
    act = partial(collect_from_tasks, session, logs[1:], forget)
    run_job(session, "embedding: deleting keys from the log", act)
    return logged


def _forget_keys(logs: Iterable[ChangeLog], *, hashes: pa.Array) -> Iterator[int]:
    """Rewrite logs without the upserts of some keys; yield nothing. Runs on an executor."""

    def kept(batch: pa.RecordBatch) -> pa.RecordBatch:
        is_one = pc.is_in(hashed_keys(as_text(batch["key"])), value_set=hashes)
        return batch.filter(pc.invert(pc.and_(is_one, pc.equal(batch["change"], UPSERT))))

    for log in logs:
        write_log(log, key_type_in(log), map(kept, read_changes(log)))
    yield from ()


def _write_parts(
    tasks: Iterable[Sequence[tuple[int, RowRange]]],
    *,
    source: Location,
    target: Location,
    build: int,
    columns: Columns,
    deleted: DeletedRows,
) -> Iterator[_Written]:
    """Write parts without the rows, or take them over unchanged. Runs on an executor."""
    for number, part in chain.from_iterable(tasks):
        file = part_file(source, part)
        footer = read_part_footer(file, columns.text)
        # Input files may differ in their columns.
        has_column = deleted.column in pq.read_schema(arrow_source(file)).names
        gone = deleted.count_in(file, 0, footer.rows) if has_column else 0
        name = f"part-{build:05d}-{number:05d}-00000" if gone else part.name
        if gone:
            batches = map(deleted.without, read_rows(file, 0, footer.rows))
            with storage.built_file(target / f"{name}.parquet") as made:
                write_part(made, batches, columns.stored, footer.left_out + gone)
        else:
            storage.link_or_copy(file, target / file.name)
        yield _Written(number, name, read_part_footer(target / f"{name}.parquet", columns.text))
