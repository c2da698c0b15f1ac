"""Lane files: a manifest, and one folder of Arrow files per lane.

``lanes/manifest.json`` and ``lanes/lane-007/part-00000.arrow``; an Arrow record batch is a
granule. Token ids are stored unpadded, as little-endian int32 in a binary column, since a
binary value costs Spark's JVM nothing and one numpy view turns a whole column into ids.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from pipelines import storage
from pipelines.errors import InputError
from pipelines.lanes.plan import GranuleAddress, Segment, bucket_length

FORMAT = 2
PADDING_MULTIPLE = 8
SideName = Literal["left", "right", "negative"]
SIDES: tuple[SideName, ...] = get_args(SideName)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("group", pa.int64()),
        ("left", pa.binary()),
        ("right", pa.binary()),
        ("negative", pa.binary()),
        ("score", pa.float32()),
    ]
)


@dataclass(frozen=True, kw_only=True)
class LaneManifest:
    """What a folder of lanes holds.

    Attributes:
        lanes: Number of lanes.
        granule: Examples in a granule.
        rows: Granules in a lane.
        rows_per_part: Granules in a part file; the same in all lanes.
        segments: The rows of each length bucket.
        examples: Examples that came in.
        left_over: Examples that are in no granule, by reason.
        tokens: Token ids in all granules.
        slots: Token ids and padding in all granules.
        vocabulary: Entries of the vocabulary.
        max_length: Longest text, in tokens.
        paired: Whether examples have a right side.
        triplets: Whether examples have a hard negative.
        scored: Whether examples have a score.
    """

    lanes: int
    granule: int
    rows: int
    rows_per_part: int
    segments: tuple[Segment, ...]
    examples: int
    left_over: dict[str, int]
    tokens: int
    slots: int
    vocabulary: int
    max_length: int
    paired: bool
    triplets: bool
    scored: bool

    @property
    def placed(self) -> int:
        """Examples in granules."""
        return self.lanes * self.granule * self.rows

    @property
    def sides(self) -> tuple[SideName, ...]:
        """The sides that every example has."""
        present = {"left": True, "right": self.paired, "negative": self.triplets}
        return tuple(name for name in SIDES if present[name])

    def __str__(self) -> str:
        padding = 100 * (1 - self.tokens / self.slots)
        return (
            f"{self.lanes} lanes of {self.rows} granules of {self.granule} examples, "
            f"{sum(self.left_over.values())} left over, {padding:.1f} % padding"
        )

    def save(self, folder: Path) -> None:
        """Writes ``manifest.json``."""
        storage.write_json(folder / "manifest.json", {"format": FORMAT} | asdict(self))

    @classmethod
    def load(cls, folder: Path) -> LaneManifest:
        """Reads ``manifest.json``.

        Raises:
            InputError: There are no lanes, or lanes of another format.
        """
        path = folder / "manifest.json"
        remedy = "run `sentence-pipelines prepare` with the same settings first"
        if not path.is_file():
            raise InputError("prepared.folder", f"there are no lanes in {folder}", remedy)
        values: dict[str, Any] = storage.read_json(path)
        if values.pop("format", None) != FORMAT:
            raise InputError("prepared.folder", f"{folder} holds lanes of another format", remedy)
        segments = tuple(Segment(**segment) for segment in values.pop("segments"))
        return cls(segments=segments, **values)


@dataclass(frozen=True)
class Side:
    """One side of a granule's examples.

    Attributes:
        token_ids: int32 [examples, width], padded with zeros.
        lengths: int32 [examples], tokens of each.
    """

    token_ids: np.ndarray
    lengths: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Granule:
    """K examples, ready for a forward pass.

    Attributes:
        number: ``row * lanes + lane``; names the granule whoever computes it.
        left: First texts.
        right: Second texts; None for single texts.
        negative: Hard negatives; None without them, or where they are not wanted.
        scores: float32 [examples]; None without scores.
    """

    number: int
    left: Side
    right: Side | None = None
    negative: Side | None = None
    scores: np.ndarray | None = None

    @property
    def examples(self) -> int:
        """How many examples there are."""
        return len(self.left.lengths)

    @property
    def sides(self) -> dict[SideName, Side]:
        """The sides that are there, by name."""
        named = zip(SIDES, (self.left, self.right, self.negative), strict=True)
        return {name: side for name, side in named if side is not None}

    @property
    def tokens(self) -> int:
        """Token ids without padding."""
        return sum(int(side.lengths.sum()) for side in self.sides.values())

    @property
    def slots(self) -> int:
        """Token ids with padding."""
        return sum(int(side.token_ids.size) for side in self.sides.values())


def part_path(folder: Path, lane: int, part: int) -> Path:
    """Where a part file of a lane stands."""
    return folder / f"lane-{lane:03d}" / f"part-{part:05d}.arrow"


def ragged(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Reads a binary column as token ids.

    Returns:
        All ids in one int32 array, and int32 [rows] with the number of ids of each row.
    """
    _, offset_buffer, data = column.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int32)
    offsets = offsets[column.offset : column.offset + len(column) + 1]
    ids = np.frombuffer(data, dtype="<i4", count=offsets[-1] // 4) if data else np.empty(0, "<i4")
    return ids[offsets[0] // 4 :], (np.diff(offsets) // 4).astype(np.int32)


def padded_width(lengths: np.ndarray) -> int:
    """The longest length, rounded up to the next multiple of eight tokens."""
    return bucket_length(int(lengths.max(initial=1)), PADDING_MULTIPLE)


def pad(column: pa.Array) -> Side:
    """Pads a binary column of token ids to the next multiple of eight tokens."""
    ids, lengths = ragged(column)
    width = padded_width(lengths)
    token_ids = np.zeros((len(lengths), width), dtype=np.int32)
    token_ids[np.arange(width) < lengths[:, None]] = ids
    return Side(token_ids, lengths)


def decode(batch: pa.RecordBatch, number: int, sides: Collection[SideName] = SIDES) -> Granule:
    """Turns a granule's record batch into padded arrays.

    Args:
        batch: The record batch, of ``SCHEMA``.
        number: The number that names the granule.
        sides: The sides that are wanted; `left` is always given.
    """
    scores = batch.column("score")
    wanted = {
        name: pad(batch.column(name))
        for name in SIDES
        if name in ("left", *sides) and not batch.column(name).null_count
    }
    return Granule(
        number=number,
        left=wanted["left"],
        right=wanted.get("right"),
        negative=wanted.get("negative"),
        scores=None if scores.null_count else scores.to_numpy(),
    )


class LaneReader:
    """Reads granules in place, by memory map; one open file per lane.

    Args:
        folder: The folder of the lanes, as this process sees it.
        manifest: Its manifest.
        sides: The sides of a granule that are wanted; the others are not even read.
    """

    def __init__(
        self, folder: Path, manifest: LaneManifest, sides: Collection[SideName] = SIDES
    ) -> None:
        self._folder = folder
        self._manifest = manifest
        self._sides = sides
        self._open: dict[int, tuple[int, pa.RecordBatchFileReader]] = {}

    def batch(self, address: GranuleAddress) -> pa.RecordBatch:
        """The record batch of a granule, without a copy."""
        part, index = divmod(address.row, self._manifest.rows_per_part)
        current = self._open.get(address.lane)
        if current is None or current[0] != part:
            source = pa.memory_map(str(part_path(self._folder, address.lane, part)))
            current = (part, pa.ipc.open_file(source))
            self._open[address.lane] = current
        return current[1].get_batch(index)

    def granule(self, address: GranuleAddress) -> Granule:
        """A granule as padded arrays."""
        return decode(self.batch(address), self.number(address), self._sides)

    def number(self, address: GranuleAddress) -> int:
        """The number that names a granule in the corpus."""
        return address.row * self._manifest.lanes + address.lane

    def __iter__(self) -> Iterator[tuple[GranuleAddress, pa.RecordBatch]]:
        """All granules, row by row."""
        for row in range(self._manifest.rows):
            for lane in range(self._manifest.lanes):
                address = GranuleAddress(lane=lane, row=row)
                yield address, self.batch(address)
