"""An embedding job without Spark: its own functions one after the other, in this process.

Where Spark would bring rows together that belong together, they are sorted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.files import storage
from pipelines.files.begun import beginning
from pipelines.files.locations import Location
from pipelines.files.versions import current
from pipelines.settings import Config
from pipelines.vectors import embed
from pipelines.vectors import keys as kept_vectors
from pipelines.vectors.embed import EmbeddingJob
from pipelines.vectors.embed_parts import embed_parts
from pipelines.vectors.keys import ROWS, TWICE, UNCHANGED, key_scans, match, scan_keys
from pipelines.vectors.parts import RowRange, partition_columns
from pipelines.vectors.plan import (
    Plan,
    Version,
    publish,
)
from pipelines.vectors.row_changes import ROWS as ROWS_READ
from pipelines.vectors.row_changes import RowScan, kinds_of, read_scan
from pipelines.vectors.row_deletion import read_deleted, write_deleted
from pipelines.vectors.store import VectorTable, open_table
from pipelines.vectors.table_job import ATTEMPTS, KEPT

Rows = Sequence[tuple[int, str | None]]
SLOTS = 2


def write_lake(folder: Path, files: Mapping[str, Rows]) -> None:
    """Makes a folder of Parquet files hold these rows; files that are as they were stay."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.stem not in files:
            path.unlink()
    for name, rows in files.items():
        path = folder / f"{name}.parquet"
        keys, texts = [key for key, _ in rows], [text for _, text in rows]
        columns = pa.table({"id": pa.array(keys, pa.int64()), "text": pa.array(texts, pa.string())})
        if not path.is_file() or not pq.read_table(path).equals(columns):
            # Another file, since a second change may come in the same tick of its clock.
            path.unlink(missing_ok=True)
            pq.write_table(columns, path)


def embed_here(config: Config) -> int:
    """Does what ``embed_table`` does; returns how many rows were embedded."""
    job = EmbeddingJob.of(config)
    settings, options, stores, folder = config.embedding, job.options, config.storage, job.folder
    work = job.work()
    version = work.goes_on
    if version is None:
        before = embed.usable(work.before, folder, job.identity)
        files = embed.parquet_inputs(settings, stores), partition_columns(settings.inputs, stores)
        with beginning(folder) as begun:
            aside = begun.aside
            deleted = read_deleted(current(folder))
            if deleted is not None:
                write_deleted(aside, deleted)
            parts = embed.parts_of(files, job, before, work.build, SLOTS)
            parts = embed.linked(parts, before, aside)
            whole = next((one for one in before if one.is_whole), None)
            earlier = None if whole is None else open_table(whole.folder)
            kept = compare_here(parts, earlier, aside / KEPT)
            parts = [replace(part, reused=kept.get(part.name, part.reused)) for part in parts]
            plan = Plan(job.identity, options.backend, options.precision, tuple(parts), work.build)
            plan.write(aside)
        version = Version(begun.folder, plan, is_whole=False)
    (version.folder / ATTEMPTS).mkdir(exist_ok=True)
    missing = version.missing()
    deleted = read_deleted(version.folder)
    make = partial(embed_parts, folder=version.folder, options=options, columns=job.columns)
    embedded = sum(make(missing, deleted=deleted))
    assert deleted or embedded == sum(part.embedded for part in missing)
    logged = job.log(version, compare_rows_here)
    embed.finish(version, options, job.columns, embedded, time.monotonic(), logged)
    publish(version, folder)
    return embedded


def compare_rows_here(scans: Sequence[RowScan], folder: Location) -> dict[str, int]:
    """Does what ``compare_on_spark`` does."""
    rows = pa.Table.from_batches((batch for scan in scans for batch in read_scan(scan)), ROWS_READ)
    kinds = kinds_of(rows)
    with storage.built_file(folder / "part-00000.parquet") as aside:
        pq.write_table(kinds, aside)
    return dict(Counter(kinds["kind"].to_pylist()))


def compare_here(
    parts: Sequence[RowRange], before: VectorTable | None, folder: Location
) -> dict[str, int]:
    """Does what ``compare_rows`` does, on keys that can be used."""
    rows = pa.Table.from_batches(scan_keys(key_scans(parts, "id", "text", before)), ROWS)
    matches = match(rows)
    assert TWICE not in matches["kind"].to_pylist()
    is_kept = pc.and_(pc.equal(matches["kind"], UNCHANGED), pc.is_valid(matches["first"]))
    kept = matches.filter(is_kept)
    if before is None or not len(kept):
        return {}
    folder.mkdir()
    firsts = [0]
    for part in parts:
        firsts.append(firsts[-1] + part.rows)
    old = [file.first for file in before.files]
    located = kept_vectors._locate(kept.to_batches(), old=old, new=firsts[:-1])
    fetched = kept_vectors._fetch(_sorted(located, "file", "old"), table=before)
    written = kept_vectors._write(
        _sorted(fetched, "part", "row"), folder=folder, names=[part.name for part in parts]
    )
    return {parts[row["part"]].name: row["rows"] for batch in written for row in batch.to_pylist()}


def _sorted(batches: Iterable[pa.RecordBatch], *by: str) -> list[pa.RecordBatch]:
    found = list(batches)
    if not found:
        return []
    return pa.Table.from_batches(found).sort_by([(name, "ascending") for name in by]).to_batches()
