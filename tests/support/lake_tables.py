"""Real Delta and Iceberg tables, made by `deltalake` and `pyiceberg`."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

if TYPE_CHECKING:
    from deltalake import DeltaTable

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


@pytest.fixture
def lake(tmp_path, monkeypatch):
    """An Iceberg catalog `lake` in SQLite, by the environment, with a namespace `db`."""
    from pyiceberg.catalog import load_catalog

    properties = {
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    (tmp_path / "warehouse").mkdir()
    for name, value in properties.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name.upper()}", value)
    catalog = load_catalog("lake", **properties)
    catalog.create_namespace("db")
    return catalog


def write_delta(folder: Path, table: pa.Table, **more) -> DeltaTable:
    from deltalake import DeltaTable, write_deltalake

    write_deltalake(str(folder), table, **more)
    return DeltaTable(str(folder))


def commit(folder: Path, *actions: dict) -> None:
    """Writes the next version of a Delta table by hand, for what the library does not write."""
    log = folder / "_delta_log"
    version = len(list(log.glob("*.json")))
    done = {"commitInfo": {"timestamp": 1, "operation": "WRITE"}}
    lines = "\n".join(json.dumps(action) for action in (*actions, done))
    (log / f"{version:020d}.json").write_text(lines, encoding="utf-8")


def protocol(*features: str) -> dict:
    return {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": [*features],
            "writerFeatures": [*features],
        }
    }


def delete_by_vector(folder: Path, file: int, positions: list[int]) -> None:
    """Deletes rows of a file of a table by a deletion vector in the log, as Spark does."""
    from deltalake import DeltaTable
    from pyroaring import BitMap

    actions = pa.table(DeltaTable(str(folder)).get_add_actions()).to_pylist()
    action = sorted(actions, key=lambda one: one["path"])[file]
    raw = struct.pack("<IQI", 1681511377, 1, 0) + BitMap(positions).serialize()
    partition = action.get("partition") or {}
    known = {"path": action["path"], "partitionValues": partition, "size": action["size_bytes"]}
    vector = {
        "storageType": "i",
        "pathOrInlineDv": _z85(raw),
        "sizeInBytes": len(raw),
        "cardinality": len(positions),
    }
    rows = json.dumps({"numRecords": action["num_records"]})
    commit(
        folder,
        protocol("deletionVectors"),
        {"remove": {**known, "dataChange": True, "extendedFileMetadata": True}},
        {
            "add": {
                **known,
                "modificationTime": 1,
                "dataChange": True,
                "stats": rows,
                "deletionVector": vector,
            }
        },
    )


def _z85(data: bytes) -> str:
    data += b"\0" * (-len(data) % 4)
    words = (int.from_bytes(data[at : at + 4], "big") for at in range(0, len(data), 4))
    return "".join(_Z85[word // 85**place % 85] for word in words for place in (4, 3, 2, 1, 0))
