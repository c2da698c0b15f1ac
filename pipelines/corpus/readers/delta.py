"""Delta tables through the library `deltalake`, where Spark has no connector for them.

The driver reads the table's log. Executors need no library: a deletion vector travels to them as
positions, and mapped columns as names or ids. See "Delta Transaction Log Protocol", the
specification of Delta Lake.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from pipelines.arrow_columns import is_list
from pipelines.corpus.readers.table_files import DataFile, TableVersion, place_of_file
from pipelines.errors import InputError, PipelineError
from pipelines.files.locations import is_remote
from pipelines.settings import StorageSettings

if TYPE_CHECKING:
    from deltalake import DeltaTable

LIBRARY = "deltalake"
_FEATURES = frozenset(
    ("columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck")
)
"""Features of a table for its readers, as far as they are known here."""
_MAPPING = "delta.columnMapping"


def failures() -> tuple[type[Exception], ...]:
    """Return the errors of the library."""
    from deltalake.exceptions import DeltaError

    return (DeltaError, ValueError, OSError)


def storage_options(stores: StorageSettings) -> dict[str, str]:
    """Return the settings of stores as options of the library, which finds credentials itself."""
    seconds = f"{stores.timeout_seconds:g}s"
    options: dict[str, str | None] = {
        "timeout": seconds,
        "AWS_ENDPOINT_URL": stores.s3_endpoint,
        "AWS_REGION": stores.s3_region,
        "AWS_SKIP_SIGNATURE": "true" if stores.anonymous else None,
        "GOOGLE_BASE_URL": stores.gs_endpoint,
        "AZURE_STORAGE_ENDPOINT": stores.azure_endpoint,
        "ALLOW_HTTP": "true" if _has_plain_http(stores) else None,
    }
    return {name: value for name, value in options.items() if value is not None}


def _has_plain_http(stores: StorageSettings) -> bool:
    endpoints = (stores.s3_endpoint, stores.gs_endpoint, stores.azure_endpoint)
    return any(endpoint is not None and endpoint.startswith("http://") for endpoint in endpoints)


def open_delta(address: str, stores: StorageSettings, version: int | None = None) -> DeltaTable:
    """Open a table by its folder or address, at a version, by default the newest.

    Raises:
        deltalake.exceptions.DeltaError: There is no such table or version.
    """
    from deltalake import DeltaTable

    if not is_remote(address) and unquote(address) != address:
        # The library decodes paths: it would write into one folder and read from another.
        raise ValueError(f"deltalake takes the percent sign in {address} for an encoding")
    options = storage_options(stores) if is_remote(address) else None
    return DeltaTable(address, version=version, storage_options=options)


def delta_version(key: str, given: str, table: DeltaTable, stores: StorageSettings) -> TableVersion:
    """Return the files and columns of an opened table.

    Raises:
        InputError: The table has a feature whose effect on its rows is unknown here. ``key`` is the
            setting that names the table, ``given``.
    """
    features = {*(table.protocol().reader_features or ())}
    mode = table.metadata().configuration.get(f"{_MAPPING}.mode", "none")
    schema = pa.schema(table.schema())
    nested = [field.name for field in schema if _is_mapped_within(field.type)]
    remedy = "Add Delta's package to the cluster, or name a copy without it"
    if unknown := sorted(features - _FEATURES):
        raise InputError(
            key, f"`{given}` uses {', '.join(unknown)}, which only Spark's connector reads", remedy
        )
    if mode != "none" and nested:
        raise InputError(
            key, f"`{given}` maps the names of columns, also within `{nested[0]}`", remedy
        )
    return TableVersion(schema, _stored(table, mode), list(_files(table, schema, stores)))


def _is_mapped_within(kind: pa.DataType) -> bool:
    if is_list(kind):
        return _is_mapped_within(kind.value_type)
    return bool(pa.types.is_nested(kind))


def _stored(table: DeltaTable, mode: str) -> Mapping[str, str | int]:
    """Return the columns in the files by the table's columns; see "Column Mapping"."""
    fields = json.loads(table.schema().to_json())["fields"]
    if mode == "none":
        return {field["name"]: field["name"] for field in fields}
    key = {"name": f"{_MAPPING}.physicalName", "id": f"{_MAPPING}.id"}[mode]
    return {field["name"]: field["metadata"][key] for field in fields}


def _files(table: DeltaTable, schema: pa.Schema, stores: StorageSettings) -> Iterator[DataFile]:
    actions = pa.table(table.get_add_actions())
    partitioned = table.metadata().partition_columns
    values: list[Mapping[str, Any]] = [{}] * actions.num_rows
    if partitioned:
        values = actions["partition"].to_pylist()
    features = table.protocol().reader_features or ()
    deleted = _deleted(table, stores) if "deletionVectors" in features else {}
    root = unquote(table.table_uri).rstrip("/")
    for path, row in zip(actions["path"].to_pylist(), values, strict=True):
        place = place_of_file(_in_table(root, unquote(path)), stores)
        constants = {name: pa.scalar(row[name], schema.field(name).type) for name in partitioned}
        yield DataFile(place, constants, deleted.pop(str(place), b""))
    if deleted:
        raise PipelineError(f"{LIBRARY} lists deleted rows of unknown files, {', '.join(deleted)}")


def _in_table(root: str, path: str) -> str:
    """Return the address of a file of the log; a clone names files of its source."""
    return path if path.startswith("/") or "://" in path else f"{root}/{path}"


def _deleted(table: DeltaTable, stores: StorageSettings) -> dict[str, bytes]:
    """Return the positions of deleted rows by file."""
    found = {}
    for batch in table.deletion_vectors():
        rows = pa.record_batch(batch)
        for uri, kept in zip(rows["filepath"], rows["selection_vector"], strict=True):
            mask = kept.values.to_numpy(zero_copy_only=False)
            positions = np.flatnonzero(~mask).astype(np.int64)
            found[str(place_of_file(unquote(uri.as_py()), stores))] = positions.tobytes()
    return found
