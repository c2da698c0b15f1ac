"""Small lanes of random token ids, written as the lanes stage writes them, without Spark."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from pipelines.lanes.files import (
    COUNTED,
    LaneManifest,
    TeacherVectors,
    index_path,
    part_path,
    write_lanes,
)
from pipelines.lanes.plan import plan_segments

VOCABULARY = 900


def small_manifest(**values) -> LaneManifest:
    """Two lanes of five granules, but for what is given."""
    return LaneManifest(
        **{
            "lanes": 2,
            "granule": 4,
            "rows": 5,
            "rows_per_part": 2,
            "segments": plan_segments({8: 40}, 2, 4),
            "examples": 41,
            "left_over": {"too few for a row": 1},
            "granules_per_step": 2,
            "same_group_in_step": 0,
            "tokens": 240,
            "slots": 300,
            "vocabulary": VOCABULARY,
            "max_length": 8,
            "paired": True,
            "negatives": 0,
            "scored": False,
            "candidates_scored": False,
            "teacher": None,
            "checksums": ("0" * 16, "1" * 16),
        }
        | values
    )


def write_small_lanes(
    folder: Path, seed: int = 1, largest: int = VOCABULARY - 1, vectors: np.ndarray | None = None
) -> LaneManifest:
    """Writes lanes of ids up to the largest, and their manifest.

    Args:
        vectors: Of a teacher, fp32 [examples, sides, width]; None without one.
    """
    teacher = vectors is not None
    held = TeacherVectors(width=vectors.shape[2], precision="fp32", source="0") if teacher else None
    asked = small_manifest(teacher=held)
    count = asked.lanes * asked.rows * asked.granule
    generator = np.random.default_rng(seed)

    def texts() -> pa.Array:
        lengths = generator.integers(2, 9, count)
        ids = [generator.integers(1, largest + 1, length).astype("<i4") for length in lengths]
        ids[count // 2][0] = largest
        return pa.array([text.tobytes() for text in ids], pa.binary())

    numbers = np.arange(count)
    per_lane = asked.rows * asked.granule
    columns = {
        "lane": pa.array(numbers // per_lane, pa.int32()),
        "id": numbers,
        "group": numbers % 7,
        "anchor": texts(),
        "positive": texts(),
    }
    if teacher:
        columns["teacher"] = [[side.tobytes() for side in example] for example in vectors]
    schema = asked.schema.insert(0, pa.field("lane", pa.int32()))
    rows = pa.RecordBatch.from_pydict(columns, schema=schema)
    written = pa.Table.from_batches(
        write_lanes(
            iter([rows]),
            folder=folder,
            columns=["positive", "teacher"] if teacher else ["positive"],
            granule=asked.granule,
            rows_per_part=asked.rows_per_part,
            vocabulary=VOCABULARY,
        )
    ).to_pydict()
    counts = {name: sum(written[name]) for name in COUNTED}
    manifest = small_manifest(
        teacher=held,
        tokens=counts["tokens"],
        slots=counts["slots"],
        checksums=tuple(written["checksum"]),
    )
    manifest.save(folder)
    return manifest


def damage_lane(folder: Path, manifest: LaneManifest, lane: int) -> None:
    """Changes one token id in every granule of a lane."""
    index = np.load(index_path(folder, lane))
    for row, (offset, length, _) in enumerate(index.tolist()):
        path = part_path(folder, lane, row // manifest.rows_per_part)
        content = bytearray(path.read_bytes())
        message = pa.py_buffer(bytes(content[offset : offset + length]))
        text = pa.ipc.read_record_batch(message, manifest.schema).column("anchor")[0].as_py()
        content[content.index(text, offset) + 4] ^= 1
        path.write_bytes(content)
