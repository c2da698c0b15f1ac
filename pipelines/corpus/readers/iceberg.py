"""Iceberg tables through the library `pyiceberg`, where Spark has no connector for them.

The driver asks the catalog, and reads manifests. Executors read a Parquet file by its field ids if
it has all of its rows and columns, and otherwise through the library. So do files in a store for
which the catalog has credentials. See "Column Projection" and "Row-level Deletes" in the
specification of Iceberg.
"""

from __future__ import annotations

import pickle
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from pipelines.corpus.readers.table_files import (
    DataFile,
    TableVersion,
    columns_in,
    is_as_stored,
    place_of_file,
)
from pipelines.errors import InputError, PipelineError
from pipelines.files.locations import Location, is_remote
from pipelines.libraries import EVERYWHERE, EXTRAS, is_installed, pip_install
from pipelines.settings import StorageSettings
from pipelines.spark.parquet_parts import read_footers

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table

LIBRARY = "pyiceberg"
METADATA = ".metadata.json"
"""The ending of a file that describes a table at one moment, without a catalog."""
CONFIGURATION = "~/.pyiceberg.yaml"
"""Where the library looks for catalogs; variables of the environment may hold the same."""
_OF_STORES = ("s3.", "gcs.", "adls.", "hdfs.", "client.")


Value = TypeVar("Value")


class UnknownCatalogError(ValueError):
    """The configuration of the library has no catalog of a name."""


def failures() -> tuple[type[Exception], ...]:
    """Return the errors of the library, its catalogs and its file systems."""
    from pyiceberg import exceptions

    known = [
        kind
        for kind in vars(exceptions).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ]
    # A catalog in a database has loaded it.
    of_database = getattr(sys.modules.get("sqlalchemy.exc"), "SQLAlchemyError", OSError)
    return (*known, of_database, ValueError, NotImplementedError, OSError)


def store_properties(stores: StorageSettings) -> dict[str, str]:
    """Return the settings of stores as properties of the library."""
    properties: dict[str, str | None] = {
        "s3.endpoint": stores.s3_endpoint,
        "s3.region": stores.s3_region,
        "s3.anonymous": "true" if stores.anonymous else None,
        "gcs.service.host": stores.gs_endpoint,
    }
    return {name: value for name, value in properties.items() if value is not None}


def is_metadata(given: str) -> bool:
    """Return whether an input is the metadata file of a table."""
    return given.endswith(METADATA)


def metadata_folder(given: str) -> Path | None:
    """Return the folder of a table on a file system by its metadata file; None by another name."""
    local = given.removeprefix("file://")
    if not is_metadata(given) or is_remote(local):
        return None
    return Path(local).expanduser().absolute().parent.parent


def open_catalog(given: str, stores: StorageSettings) -> tuple[Catalog, str]:
    """Return the catalog of `catalog.database.table`, and the rest of the name.

    Raises:
        UnknownCatalogError: The configuration of the library has no such catalog.
    """
    from pyiceberg.catalog import load_catalog
    from pyiceberg.utils.config import Config

    name, _, table = given.partition(".")
    # The library reads its environment once, when it is imported.
    described = Config().get_catalog_config(name)
    if described is None or not table:
        raise UnknownCatalogError(f"{LIBRARY} knows no catalog `{name}`")
    properties = {**store_properties(stores), **described}
    load = partial(load_catalog, name, **properties)  # type: ignore[arg-type]
    return in_time(load, stores), table


def in_time(ask: Callable[[], Value], stores: StorageSettings) -> Value:
    """Ask a catalog, with the deadline of stores: the library waits for a REST server for ever.

    Raises:
        OSError: There is no answer in time.
    """
    answer: Future[Value] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - carried to the thread that waits
            answer.set_exception(error)

    threading.Thread(target=run, name="catalog", daemon=True).start()
    seconds = stores.timeout_seconds + stores.retry_seconds
    try:
        return answer.result(seconds)
    except TimeoutError:
        raise OSError(f"the catalog has not answered for {seconds:.0f} s") from None


def open_iceberg(given: str, stores: StorageSettings) -> Table:
    """Open a table by `catalog.database.table`, or by its metadata file.

    Raises:
        UnknownCatalogError: See :func:`open_catalog`; :func:`failures` has the other errors.
    """
    if is_metadata(given):
        from pyiceberg.table import StaticTable

        return StaticTable.from_metadata(given, store_properties(stores))
    catalog, name = open_catalog(given, stores)
    return in_time(partial(catalog.load_table, name), stores)


def iceberg_version(
    key: str, given: str, table: Table, snapshot: int | None, stores: StorageSettings
) -> TableVersion:
    """Return the files and columns of an opened table, at a snapshot or as it is now.

    Raises:
        InputError: The library cannot read the rows. ``key`` is the setting that names the table,
            ``given``.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    newest = table.current_snapshot()
    if newest is not None and snapshot == newest.snapshot_id:
        # A column may have got another name since.
        snapshot = None
    try:
        scan = table.scan(snapshot_id=snapshot)
        wanted, tasks = scan.projection(), list(scan.plan_files())
    except failures() as error:
        problem = f"pyiceberg cannot read `{given}` ({str(error).splitlines()[0]})"
        remedy = "Add Iceberg's package to the cluster, or compact the table first"
        raise InputError(key, problem, remedy) from None
    schema = _in_microseconds(schema_to_pyarrow(wanted, include_field_ids=False))
    stored = {field.name: field.field_id for field in wanted.fields}
    has_access = _is_access_ours(table.io.properties, stores)
    own = [task for task in tasks if has_access and _is_whole(task)]
    places = [place_of_file(task.file.file_path, stores) for task in own]
    plain = _plain(own, places, schema, stored)
    files = [
        DataFile(plain[path], {})
        if (path := task.file.file_path) in plain
        else DataFile(
            place_of_file(path, stores),
            {},
            task=pickle.dumps(task),
            rows=task.file.record_count,
            size=task.file.file_size_in_bytes,
        )
        for task in tasks
    ]
    shared = zlib.compress(pickle.dumps((table.metadata, table.io, wanted)))
    return TableVersion(schema, stored, files, partial(_read_by_library, shared=shared))


def _in_microseconds(schema: pa.Schema) -> pa.Schema:
    """Return the columns with timestamps as Spark reads them."""
    fields = [
        field.with_type(pa.timestamp("us", field.type.tz))
        if pa.types.is_timestamp(field.type)
        else field
        for field in schema
    ]
    return pa.schema(fields)


def _is_access_ours(properties: Mapping[str, Any], stores: StorageSettings) -> bool:
    """Return whether the section `storage` reaches the files, without a catalog's credentials."""
    ours = store_properties(stores)
    return not any(
        name.startswith(_OF_STORES) and ours.get(name) != value
        for name, value in properties.items()
    )


def _is_whole(task: FileScanTask) -> bool:
    from pyiceberg.manifest import FileFormat

    return task.file.file_format == FileFormat.PARQUET and not task.delete_files


def _plain(
    tasks: Sequence[FileScanTask],
    places: Sequence[Location],
    schema: pa.Schema,
    stored: Mapping[str, int],
) -> dict[str, Location]:
    """Return the files that have all columns of a table as they are."""
    found = {}
    for task, place, footer in zip(tasks, places, read_footers(places), strict=True):
        file = footer.schema.to_arrow_schema()
        names = columns_in(file, stored)
        if len(names) == len(schema) and all(
            is_as_stored(file.field(name).type, schema.field(column).type)
            for column, name in names.items()
        ):
            found[task.file.file_path] = place
    return found


def _read_by_library(task: bytes, *, shared: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file without its deleted ones. Runs on an executor.

    ``shared`` is the packed table, ``task`` the file. The library holds a file in memory.
    """
    if not is_installed(LIBRARY):
        remedy = f"Run `{pip_install(EXTRAS[LIBRARY])}` {EVERYWHERE}"
        raise PipelineError(f"{LIBRARY} is not installed on this executor. {remedy}")
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    metadata, files, wanted = pickle.loads(zlib.decompress(shared))
    schema: Schema = wanted
    scan = ArrowScan(metadata, files, schema, AlwaysTrue())
    yield from scan.to_record_batches([pickle.loads(task)])
