"""The log of changes of a table of vectors, by which stores follow the table.

Each version of a table with keys has a Parquet file `_changes/<version>.parquet`, with a row for
each key to write (`upsert`) or to delete (`delete`) since the version before. A reader that knows a
version applies the logs after it, the oldest first, and has the rows of the current version. Where
a log of this chain is missing, it has to read the whole table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from pipelines.errors import DamagedFileError
from pipelines.files import records, storage, versions
from pipelines.files.locations import Location, arrow_source
from pipelines.spark.parquet_parts import gathered
from pipelines.vectors.table_job import MANIFEST_FILE

CHANGES_FOLDER = "_changes"
"""Spark, pandas and pyarrow take no folder with an underscore for data."""
METADATA = b"sentence_pipelines"
"""Footer key of a log's head, as JSON."""
UPSERT, DELETE = "upsert", "delete"
"""Values of the column `change`. A key to write has a row in the table, or in a later log."""


@dataclass(frozen=True)
class ChangeLog:
    """The log of a version.

    ``since`` is the version that it is compared with, and ``since_made`` the id of that version;
    None for a log of all keys. ``model_digest`` is of the model of its vectors. ``table`` is the id
    that all versions of a table share.
    """

    version: int
    since: int | None
    path: Location
    model_digest: str | None = None
    table: str | None = None
    since_made: str | None = None


@dataclass(frozen=True)
class Lineage:
    """The place of a version among those of its table, as in the manifest.

    ``version`` is the number of the build; ``table`` is a random id that a copy of the table shares
    too; ``changes_since`` is the version that the log begins at, None for one of all keys. ``made``
    is a random id of this version: a table restored from a backup counts the same numbers again.
    """

    version: int
    table: str
    changes_since: int | None
    made: str | None = None


_Version = Annotated[int, Field(strict=True, ge=0, lt=2**63)]


class _Manifest(TypedDict, total=False):
    """The known fields of a table's manifest for this module, besides others."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc] # as pydantic has it

    version: _Version
    table: str
    changes_since: _Version | None
    made: str | None


class _Head(TypedDict):
    """The head of a log."""

    version: _Version
    since: _Version | None
    since_made: str | None
    model_digest: str | None
    table: str | None


_HEAD = (*_Head.__annotations__,)


def model_digest_in(manifest: Mapping[str, Any]) -> str | None:
    """Return the digest of the model of a table; earlier releases have it among the settings."""
    known = manifest.get("settings", {})
    digest: str | None = manifest.get("model_digest") or known.get("embedding.model")
    return digest


def read_lineage(folder: Location) -> Lineage | None:
    """Return the place of a table among its versions; None for tables of earlier releases.

    ``folder`` is of the table; in a store, also one of its versions.

    Raises:
        DamagedFileError: The manifest cannot be read.
    """
    path = versions.current(folder) / MANIFEST_FILE
    known: _Manifest = records.read(path, _Manifest) if path.is_file() else {}
    if "version" not in known or "table" not in known:
        return None
    since, made = known.get("changes_since"), known.get("made")
    return Lineage(known["version"], known["table"], since, made)


def logs_after(
    folder: Location, version: int, made: str | None = None
) -> tuple[ChangeLog, ...] | None:
    """Return the logs from a version of a table to its current one, the oldest first.

    None if they are no longer all there, or never were: the whole table has to be read. Empty if
    the current version is the one asked for. Another table, or one restored from a backup, has
    other versions of these numbers: ``made`` is the id of the one meant (:attr:`Lineage.made`).

    Raises:
        DamagedFileError: The manifest or a log cannot be read.
    """
    home = versions.current(folder)
    lineage = read_lineage(home)
    if lineage is None:
        return None
    if lineage.version == version:
        return () if made in (None, lineage.made) else None
    chain = newest_logs(home, lineage.version)
    found = list(takewhile(lambda log: log.version > version, chain))
    if not found or found[-1].since != version or made not in (None, found[-1].since_made):
        return None
    return tuple(reversed(found))


def newest_logs(home: Location, version: int) -> Iterator[ChangeLog]:
    """Yield the log of a version and those before it, the newest first, until one is missing."""
    log = read_log(home, version)
    while log is not None:
        yield log
        log = None if log.since is None else read_log(home, log.since)


def read_log(home: Location, version: int) -> ChangeLog | None:
    """Return the log of a version of a table, None if it is missing; reads its footer only.

    Raises:
        DamagedFileError: It has no head, or that of another version.
    """
    path = log_file(home, version)
    if not path.is_file():
        return None
    try:
        metadata = pq.read_metadata(arrow_source(path)).metadata or {}
    except (pa.ArrowException, OSError) as error:
        # Errors of the system have a number; those of pyarrow are about the content.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DamagedFileError(str(path), str(error)) from error
    head = records.read_line(path, metadata.get(METADATA, b""), _Head)
    assert head is not None, "only a torn line is None"
    log = ChangeLog(path=path, **{name: head[name] for name in _HEAD})
    if log.version != version or (log.since is not None and log.since >= version):
        problem = f"it is the log of version {log.version} since {log.since}"
        raise DamagedFileError(str(path), problem)
    return log


def log_file(home: Location, version: int) -> Location:
    """Return the place of a version's log."""
    return home / CHANGES_FOLDER / f"{version:05d}.parquet"


def read_changes(log: ChangeLog) -> Iterator[pa.RecordBatch]:
    """Read the columns `key` (int64 or string) and `change` of a log, in batches."""
    with pq.ParquetFile(arrow_source(log.path)) as file:
        yield from file.iter_batches(columns=["key", "change"], use_threads=False)


def key_type_in(log: ChangeLog) -> pa.DataType:
    """Return the type of the keys in a log: int64 or string."""
    return pq.read_schema(arrow_source(log.path)).field("key").type


def _schema(key_type: pa.DataType, log: ChangeLog) -> pa.Schema:
    """Return the columns of a log's file, with its head."""
    head = {name: getattr(log, name) for name in _HEAD}
    columns = [("key", key_type), ("change", pa.string())]
    return pa.schema(columns, {METADATA: json.dumps(head)})


def write_log(log: ChangeLog, key_type: pa.DataType, batches: Iterable[pa.RecordBatch]) -> None:
    """Write a log in its place, whole or not at all; little of it is in memory at a time."""
    schema = _schema(key_type, log)
    typed = (
        pa.RecordBatch.from_arrays([batch["key"].cast(key_type), batch["change"]], schema=schema)
        for batch in batches
    )
    with (
        storage.built_file(log.path) as aside,
        pq.ParquetWriter(aside, schema, compression="zstd") as writer,
    ):
        for batch in gathered(typed):
            writer.write_batch(batch)


def carry_over(home: Location, version: int, target: Location, keep: int) -> list[ChangeLog]:
    """Link or copy the newest ``keep`` logs of a version into the folder of the next one.

    Logs from before a missing one lead nowhere, and stay behind.
    """
    carried = list(islice(newest_logs(home, version), keep))
    (target / CHANGES_FOLDER).mkdir(exist_ok=True)
    for log in carried:
        storage.link_or_copy(log.path, log_file(target, log.version))
    return carried
