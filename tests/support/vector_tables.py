"""Versions of a table of vectors with their logs of changes, as `embed` leaves them.

No model makes the vectors: they are drawn, by key and text, so the same text has the same vector.
"""

from __future__ import annotations

import json
import shutil
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.vectors.changes import DELETE, UPSERT, ChangeLog, log_file, write_log
from pipelines.vectors.embedding import quantised, vector_array

WIDTH = 8
Row = Mapping[str, Any]
"""With `id` and `text`, and any other columns."""


@dataclass
class VectorTables:
    """A table in a folder; each call of :meth:`write` makes its next version."""

    folder: Path
    key_type: pa.DataType = field(default_factory=pa.int64)
    model: str = "0123456789abcdef" * 4
    int8: bool = False
    width: int = WIDTH
    keep: int = 30
    version: int = -1
    table: str = field(default_factory=lambda: uuid.uuid4().hex)
    made: str | None = None
    rows: dict[Any, Row] = field(default_factory=dict)

    def write(self, rows: Sequence[Row], *, part_rows: int = 100, model: str | None = None) -> None:
        """Replaces the table by one of these rows, and logs the changes."""
        now = {row["id"]: row for row in rows}
        assert len(now) == len(rows)
        is_other = model is not None and model != self.model
        self.model = model or self.model
        changed = [key for key, row in now.items() if is_other or self.rows.get(key) != row]
        gone = [key for key in self.rows if key not in now]
        self.version += 1
        aside = self.folder.with_name(f"{self.folder.name}.aside")
        aside.mkdir(parents=True)
        logs = self.folder / "_changes"
        if logs.is_dir():
            shutil.copytree(logs, aside / "_changes")
        since = self.version - 1 if self.version else None
        path = log_file(aside, self.version)
        log = ChangeLog(self.version, since, path, self.model, self.table, self.made)
        self.made = uuid.uuid4().hex
        changes = [UPSERT] * len(changed) + [DELETE] * len(gone)
        batch = pa.record_batch(
            {
                "key": pa.array([*changed, *gone], self.key_type),
                "change": pa.array(changes, pa.string()),
            }
        )
        (aside / "_changes").mkdir(exist_ok=True)
        write_log(log, self.key_type, [batch])
        for old in sorted((aside / "_changes").iterdir())[: -self.keep or None]:
            old.unlink()
        self.rows = now
        for number, start in enumerate(range(0, len(rows), part_rows)):
            name = f"part-{self.version:05d}-00000-{number:05d}.parquet"
            pq.write_table(self.stored(rows[start : start + part_rows]), aside / name)
        (aside / "_manifest.json").write_text(json.dumps(self.manifest(rows)))
        shutil.rmtree(self.folder, ignore_errors=True)
        aside.rename(self.folder)

    def manifest(self, rows: Sequence[Row]) -> dict[str, Any]:
        return {
            "rows": len(rows),
            "texts": sum(row["text"] is not None for row in rows),
            "text_column": "text",
            "key_column": "id",
            "vector_column": "embedding",
            "scale_column": "embedding_scale" if self.int8 else None,
            "dimensions": self.width,
            "type": "int8" if self.int8 else "float32",
            "normalised": True,
            "model_digest": self.model,
            "build": self.version,
            "version": self.version,
            "table": self.table,
            "changes_since": self.version - 1 if self.version else None,
            "made": self.made,
            "settings": {"embedding.model": self.model, "embedding.prompt_name": None},
        }

    def stored(self, rows: Sequence[Row]) -> pa.Table:
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {
            name: pa.array([row.get(name) for row in rows], self.key_type if name == "id" else None)
            for name in names
        }
        columns["text"] = columns["text"].cast(pa.string())
        vectors = [self.vector(row) for row in rows]
        present = np.array([vector is not None for vector in vectors], bool)
        known = [vector for vector in vectors if vector is not None]
        values = np.array(known, np.float32).reshape(-1, self.width)
        if self.int8:
            values, of_present = quantised(values)
            scales = np.zeros(len(rows), np.float32)
            scales[present] = of_present
            columns["embedding_scale"] = pa.array(scales, mask=~present)
        columns["embedding"] = vector_array(values, present)
        return pa.table(columns)

    def vector(self, row: Row) -> np.ndarray | None:
        """The vector of a row, of length 1; None without a text."""
        if row["text"] is None:
            return None
        seed = zlib.crc32(f"{self.model} {row['text']}".encode())
        drawn = np.random.default_rng(seed).normal(size=self.width)
        return (drawn / np.linalg.norm(drawn)).astype(np.float32)

    def expected(self) -> dict[Any, tuple[np.ndarray, dict[str, Any]]]:
        """Vectors and payloads by key, as a store has them: without rows that have no vector."""
        found = {}
        for key, row in self.rows.items():
            vector = self.vector(row)
            if vector is not None:
                payload = {name: value for name, value in row.items() if name != "id"}
                found[key] = (self.kept(vector), payload)
        return found

    def kept(self, vector: np.ndarray) -> np.ndarray:
        """The vector after its way through the table."""
        if not self.int8:
            return vector
        values, scales = quantised(vector[None])
        return (values * np.asarray(scales)[:, None]).astype(np.float32)[0]
