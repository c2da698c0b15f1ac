"""Lane files: a manifest, and one folder of Arrow files and an index per lane.

A granule is an Arrow record batch in a part file such as ``lanes/lane-007/part-00000.arrow``. Token
ids are stored unpadded, as little-endian int32 in a binary column: a binary value costs Spark's JVM
nothing, and one numpy view turns a whole column into ids.

``lanes/lane-007/granules.npy`` holds the position of each granule in its part file, and its
checksum. ``lanes/manifest.json`` holds the checksum of each index. Readers compare each granule
with its checksum, so they get exactly the written bytes, and read nothing beyond the granule.
"""

from __future__ import annotations

import hashlib
import io
import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from pipelines.errors import DamagedFileError, InputError, PipelineError
from pipelines.files import records, storage
from pipelines.files.locations import Location, P
from pipelines.files.prepared_folder import LanesFolder, TeacherFolder
from pipelines.lanes.plan import Segment, SourceLanes, bucket_length
from pipelines.settings.preparing import Precision


def binary_values(column: pa.Array, kind: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of a binary column without a copy, and int32 [rows] with each row's count.

    Each value is a run of numbers of ``kind``.
    """
    _, offset_buffer, data = column.buffers()
    # A sliced column shares its parent's buffers, so its offsets need not begin at 0.
    offsets = np.frombuffer(offset_buffer, dtype=np.int32)
    offsets = offsets[column.offset : column.offset + len(column) + 1] // kind.itemsize
    values = np.frombuffer(data, kind, count=offsets[-1]) if data else np.empty(0, kind)
    return values[offsets[0] :], np.diff(offsets)


INDEX_FILE = "granules.npy"
INDEX_TYPE = np.dtype([("offset", "<u8"), ("length", "<u8"), ("checksum", "<u8")])
ANEW = "Run `sentence-pipelines prepare` with prepared.reuse=false to write the lanes anew"


class IndexEntry(NamedTuple):
    """A line of the index: where a granule's Arrow message begins in its part file, and its size.

    The offset and the length are in bytes; the checksum is XXH3, 64 bits.
    """

    offset: int
    length: int
    checksum: int


def checksum(data: bytes | pa.Buffer) -> int:
    """Return XXH3 of the data, 64 bits: it runs at the memory's speed."""
    digest: int = xxhash.xxh3_64_intdigest(data)
    return digest


def encode_index(entries: Sequence[IndexEntry]) -> tuple[bytes, str]:
    """Return the content of an index file, and its checksum for the manifest."""
    content = _encoded(np.array(entries, INDEX_TYPE))
    return content, f"{checksum(content):016x}"


def _encoded(index: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, index, allow_pickle=False)
    return file.getvalue()


def index_size(rows: int) -> int:
    """Return the bytes of the index of a lane with so many granules."""
    return len(_encoded(np.zeros(rows, INDEX_TYPE)))


def decode_index(content: bytes, path: Location, expected: str) -> np.ndarray:
    """Return the lines of an index file, ``INDEX_TYPE`` [rows].

    `expected` is its checksum in the manifest; `path` names the file in an error.

    Raises:
        PipelineError: It is not the manifest's index.
    """
    if f"{checksum(content):016x}" != expected:
        raise PipelineError(f"{path} is damaged: its checksum is not that of the manifest. {ANEW}.")
    index: np.ndarray = np.load(io.BytesIO(content), allow_pickle=False)
    return index


def checked(
    message: bytes | pa.Buffer, entry: IndexEntry, path: Location, granule: int
) -> pa.Buffer:
    """Return the bytes of a granule, without a copy; `path` and `granule` name it in an error.

    Raises:
        PipelineError: The bytes differ from the written ones.
    """
    if len(message) < entry.length:
        raise PipelineError(f"{path} ends before its granule {granule}. {ANEW}.")
    if checksum(message) != entry.checksum:
        raise PipelineError(
            f"{path}: granule {granule} is damaged: its checksum is not that of the index. {ANEW}."
        )
    return pa.py_buffer(message)


TEACHER_SCHEMA = pa.schema([("id", pa.int64()), ("teacher", pa.list_(pa.binary()))])
"""The columns of ``examples.parquet``: for each example the vectors of its texts, in the order of
the sides."""
_TYPES: Mapping[Precision, str] = {"fp16": "<f2", "fp32": "<f4"}


@dataclass(frozen=True, kw_only=True)
class TeacherVectors:
    """A teacher's vectors of the texts of all sides.

    `source` is a digest of their origin: the model, or the tables.
    """

    width: int
    precision: Precision
    source: str

    @property
    def type(self) -> np.dtype[Any]:
        """The stored type of the values."""
        return np.dtype(_TYPES[self.precision])

    @property
    def bytes(self) -> int:
        """The stored size of a vector."""
        return self.width * self.type.itemsize

    def read(self, column: pa.Array) -> np.ndarray:
        """Return the vectors of a binary column, fp32 [rows, width]."""
        values, _ = binary_values(column, self.type)
        return values.reshape(len(column), self.width).astype(np.float32)

    def along(self, axes: np.ndarray) -> TeacherVectors:
        """Return the same vectors, projected when they are read.

        `axes` is fp32 [width, fewer], its columns orthonormal.
        """
        return _Projected(**asdict(self), axes=axes)

    def write(self, vectors: np.ndarray) -> pa.Array:
        """Return a binary column of vectors, [rows, width]."""
        rows = np.ascontiguousarray(vectors, self.type)
        return pa.array([row.tobytes() for row in rows], pa.binary())

    def save(self, folder: TeacherFolder) -> None:
        """Write ``manifest.json``."""
        storage.write_json(folder.manifest, asdict(self))

    @classmethod
    def load(cls, folder: TeacherFolder) -> TeacherVectors:
        """Read ``manifest.json``.

        Raises:
            InputError: There are no vectors.
            DamagedFileError: The file does not describe them.
        """
        if not folder.manifest.is_file():
            raise InputError(
                "prepared.folder",
                f"there are no teacher vectors in {folder.path}",
                "Run `sentence-pipelines prepare` with the same settings first",
            )
        known: TeacherVectors = records.read(folder.manifest, TeacherVectors)
        return known


@dataclass(frozen=True, kw_only=True)
class _Projected(TeacherVectors):
    """Vectors projected on `axes`, fp32 [width, fewer], when they are read."""

    axes: np.ndarray

    def read(self, column: pa.Array) -> np.ndarray:
        """Return the vectors of a binary column, fp32 [rows, fewer]."""
        projected: np.ndarray = super().read(column) @ self.axes
        return projected


FORMAT = 7
PADDING_MULTIPLE = 8
_IDS = np.dtype("<i4")
SideName = Literal["anchor", "positive", "negative"]
"""A side that a loss embeds; `negative` stands for all hard negatives, the sides `negative_0`,
`negative_1` and so on of a granule."""
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("group", pa.int64()),
        ("anchor", pa.binary()),
        ("positive", pa.binary()),
        ("negatives", pa.list_(pa.binary())),
        ("score", pa.float32()),
        ("candidate_scores", pa.list_(pa.float32())),
        ("teacher", pa.list_(pa.binary())),
    ]
)
_ALWAYS = ("id", "group", "anchor")


def lane_schema(columns: Collection[str]) -> pa.Schema:
    """Return the schema of lanes with these optional columns; empty ones would still cost bytes."""
    return pa.schema([field for field in SCHEMA if field.name in (*_ALWAYS, *columns)])


@dataclass(frozen=True, kw_only=True)
class LaneManifest:
    """The contents of a folder of lanes.

    Attributes:
        rows_per_part: Granules in a part file; the same in all lanes.
        left_over: Examples in no granule, by reason.
        granules_per_step: The step size for which examples were dealt.
        same_group_in_step: Examples that share such a step with another of their group.
        tokens: Token ids in all granules.
        slots: Token ids and padding in all granules.
        max_length: Longest text, in tokens.
        paired: Whether examples have a positive.
        negatives: Hard negatives of each example.
        scored: Whether examples have a score.
        candidates_scored: Whether their positive and each hard negative have one.
        checksums: Of the index of each lane, 16 hexadecimal digits.
        sources: Where there are several, in the order of their rows; the flags of examples above
            then hold for some of them.
    """

    lanes: int
    granule: int
    rows: int
    rows_per_part: int
    segments: tuple[Segment, ...]
    examples: int
    left_over: dict[str, int]
    granules_per_step: int
    same_group_in_step: int
    tokens: int
    slots: int
    vocabulary: int
    max_length: int
    paired: bool
    negatives: int
    scored: bool
    candidates_scored: bool
    teacher: TeacherVectors | None
    checksums: tuple[str, ...]
    sources: tuple[SourceLanes, ...] = ()

    @property
    def by_source(self) -> tuple[LaneManifest, ...]:
        """The manifest of each source as if it were alone; with one source, this one."""
        return tuple(replace(self, sources=(), **source.has) for source in self.sources) or (self,)

    def source_of(self, row: int) -> int:
        """Return the number of a row's source."""
        first_rows = [source.first_row for source in self.sources] or [0]
        return bisect_right(first_rows, row) - 1

    @property
    def placed(self) -> int:
        """Examples in granules."""
        return self.lanes * self.granule * self.rows

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides that every example has."""
        return self.embedded(("anchor", "positive", "negative"))

    def embedded(self, wanted: Iterable[SideName]) -> tuple[str, ...]:
        """Return the sides that a loss embeds and every example has, in the loss's order."""
        present: Mapping[SideName, tuple[str, ...]] = {
            "anchor": ("anchor",),
            "positive": ("positive",) if self.paired else (),
            "negative": tuple(map(negative_side, range(self.negatives))),
        }
        return tuple(side for name in wanted for side in present[name])

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of a granule."""
        present = {
            "positive": self.paired,
            "negatives": self.negatives > 0,
            "score": self.scored,
            "candidate_scores": self.candidates_scored,
            "teacher": self.teacher is not None,
        }
        return lane_schema([name for name, is_present in present.items() if is_present])

    @property
    def digest(self) -> str:
        """Identifies these lanes; 16 hexadecimal digits."""
        return _digest(self._record())

    def __str__(self) -> str:
        padding = 100 * (1 - self.tokens / self.slots)
        shared = self.same_group_in_step
        same_group = f", {shared} in a step with one of their group" if shared else ""
        by_source = ", ".join(f"{source.rows} of {source.name}" for source in self.sources)
        rows = f"{self.rows} granules ({by_source})" if by_source else f"{self.rows} granules"
        return (
            f"{self.lanes} lanes of {rows} of {self.granule} examples, "
            f"{sum(self.left_over.values())} left over{same_group}, {padding:.1f} % padding"
        )

    def save(self, folder: Location) -> None:
        """Write ``manifest.json``."""
        storage.write_json(LanesFolder(folder).manifest, self._record() | {"digest": self.digest})

    def _record(self) -> dict[str, Any]:
        # One source is written as lanes were before there could be several.
        unused = () if self.sources else ("sources",)
        values = {name: value for name, value in asdict(self).items() if name not in unused}
        return {"format": FORMAT} | values

    @classmethod
    def load(cls, folder: Location) -> LaneManifest:
        """Read ``manifest.json``.

        Raises:
            InputError: There are no lanes, lanes of another format, or a damaged manifest.
        """
        path = LanesFolder(folder).manifest
        remedy = "Run `sentence-pipelines prepare` with the same settings first"
        if not path.is_file():
            raise InputError("prepared.folder", f"there are no lanes in {folder}", remedy)
        try:
            values = storage.read_json(path)
        except DamagedFileError as error:
            problem = f"{path} is damaged ({error.problem})"
            raise InputError("prepared.folder", problem, ANEW) from error
        if not isinstance(values, dict):
            raise InputError("prepared.folder", f"{path} is damaged", ANEW)
        if values.get("format") != FORMAT:
            raise InputError("prepared.folder", f"{folder} holds lanes of another format", remedy)
        if values.pop("digest", None) != _digest(values):
            raise InputError("prepared.folder", f"{path} is damaged", ANEW)
        del values["format"]
        segments = tuple(Segment(**segment) for segment in values.pop("segments"))
        checksums = tuple(values.pop("checksums"))
        teacher = values.pop("teacher")
        teacher = teacher and TeacherVectors(**teacher)
        sources = tuple(SourceLanes(**source) for source in values.pop("sources", ()))
        return cls(
            segments=segments, checksums=checksums, teacher=teacher, sources=sources, **values
        )


def _digest(record: dict[str, Any]) -> str:
    # The digest depends on the order of the keys, which JSON keeps.
    return hashlib.sha256(json.dumps(record).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Side:
    """One side of a granule's examples.

    `token_ids` is int32 [examples, width], padded with zeros; `lengths` is int32 [examples].
    """

    token_ids: np.ndarray
    lengths: np.ndarray

    @cached_property
    def keys(self) -> np.ndarray:
        """int64 [examples]: hashes of the texts' token ids, to compare texts by."""
        rows = zip(self.token_ids, self.lengths.tolist(), strict=True)
        digests = [xxhash.xxh3_64_intdigest(ids[:length]) for ids, length in rows]
        return np.array(digests, np.uint64).view(np.int64)


@dataclass(frozen=True, kw_only=True)
class Granule:
    """A fixed micro-batch of K examples, ready for a forward pass.

    Attributes:
        number: ``row * lanes + lane``; does not depend on the worker.
        groups: int64 [examples]; examples of one group are no negatives of one another.
        anchor: The texts that the others are compared with.
        positive: Texts of about the same meaning; None for single texts.
        negatives: Hard negatives: the first of each example, the second of each, and so on; None in
            place of unwanted ones.
        scores: float32 [examples]; None without scores.
        candidate_scores: float32 [examples, 1 + negatives], of the positive and of each hard
            negative; None without such scores.
        teacher: A teacher's vectors of the texts of each side, fp32 [examples, width], of length 1;
            empty unless wanted.
    """

    number: int
    groups: np.ndarray
    anchor: Side
    positive: Side | None = None
    negatives: tuple[Side | None, ...] = ()
    scores: np.ndarray | None = None
    candidate_scores: np.ndarray | None = None
    teacher: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def examples(self) -> int:
        """The number of examples."""
        return len(self.anchor.lengths)

    @property
    def sides(self) -> dict[str, Side]:
        """The present sides, by name."""
        negatives = {negative_side(place): side for place, side in enumerate(self.negatives)}
        named = {"anchor": self.anchor, "positive": self.positive, **negatives}
        return {name: side for name, side in named.items() if side is not None}

    @property
    def tokens(self) -> int:
        """Token ids without padding."""
        return sum(int(side.lengths.sum()) for side in self.sides.values())

    @property
    def padded_tokens(self) -> int:
        """Token ids with padding."""
        return sum(int(side.token_ids.size) for side in self.sides.values())


def negative_side(place: int) -> str:
    """Return the side of the hard negatives at one place of the examples' lists."""
    return f"negative_{place}"


def part_path(folder: P, lane: int, part: int) -> P:
    """Return the path of a part file."""
    return folder / f"lane-{lane:03d}" / f"part-{part:05d}.arrow"


def index_path(folder: P, lane: int) -> P:
    """Return the path of a lane's index."""
    return folder / f"lane-{lane:03d}" / INDEX_FILE


def ragged(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return all ids of a binary column, int32, and the number of ids of each row, int32 [rows]."""
    return binary_values(column, _IDS)


def padded_width(lengths: np.ndarray) -> int:
    """Return the longest length, rounded up to the next multiple of eight tokens."""
    return bucket_length(int(lengths.max(initial=1)), PADDING_MULTIPLE)


def pad(column: pa.Array) -> Side:
    """Pad a binary column of token ids to the next multiple of eight tokens."""
    ids, lengths = ragged(column)
    width = padded_width(lengths)
    token_ids = np.zeros((len(lengths), width), dtype=np.int32)
    token_ids[np.arange(width) < lengths[:, None]] = ids
    return Side(token_ids, lengths)


def text_columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the texts of a record batch, a binary column for each present side."""
    found = {name: _values(batch, name) for name in ("anchor", "positive")}
    columns = {name: column for name, column in found.items() if column is not None}
    lists = _values(batch, "negatives")
    negatives = [] if lists is None else _by_place(lists)
    return columns | {negative_side(place): column for place, column in enumerate(negatives)}


def _values(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    place = batch.schema.get_field_index(name)
    column = batch.column(place) if place >= 0 else None
    return None if column is None or column.null_count else column


def _by_place(lists: pa.ListArray) -> list[pa.Array]:
    values = lists.flatten()
    count = len(values) // len(lists)
    if count == 1:
        return [values]
    places = np.arange(len(values), dtype=np.int64).reshape(-1, count)
    return [values.take(_places(place)) for place in np.ascontiguousarray(places.T)]


def _places(numbers: np.ndarray) -> pa.Array:
    # Not `pa.array`, for which pyarrow imports pandas in every worker.
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def decode(
    batch: pa.RecordBatch,
    number: int,
    sides: Collection[str] | None = None,
    teacher: TeacherVectors | None = None,
) -> Granule:
    """Turn a granule's record batch, of columns of ``SCHEMA``, into padded arrays.

    Decodes `anchor` and the wanted sides, all for None, and the vectors of `teacher`, if given.
    """
    texts = text_columns(batch)
    wanted = {
        name: pad(column)
        for name, column in texts.items()
        if sides is None or name in ("anchor", *sides)
    }
    scores, candidate_scores = (_values(batch, name) for name in ("score", "candidate_scores"))
    vectors = _values(batch, "teacher") if teacher is not None else None
    return Granule(
        number=number,
        groups=_numbers(batch.column("group")),
        anchor=wanted["anchor"],
        positive=wanted.get("positive"),
        negatives=tuple(wanted.get(name) for name in texts if name not in ("anchor", "positive")),
        scores=None if scores is None else _numbers(scores),
        candidate_scores=None
        if candidate_scores is None
        else _numbers(candidate_scores.flatten()).reshape(batch.num_rows, -1),
        teacher={}
        if teacher is None or vectors is None
        else {
            name: teacher.read(column)
            for name, column in zip(texts, _by_place(vectors), strict=True)
            if name in wanted
        },
    )


def _numbers(column: pa.Array) -> np.ndarray:
    # Not `to_numpy`, for which pyarrow imports pandas in every worker.
    return np.from_dlpack(column)


# Optional columns of an example, with the settings that name their origin.
OPTIONAL = {
    "positive": "corpus.pair_columns",
    "score": "corpus.score_column",
    "candidate_scores": "corpus.score_columns",
    "teacher": "teacher.model",
}
# Counted in every lane, for each source; a column's name counts the examples that have it.
COUNTED = ("granules", "tokens", "slots", *OPTIONAL)
_KEYS = ("lane int", "source int", "checksum string")
WRITTEN = ", ".join((*_KEYS, *(f"{name} long" for name in COUNTED)))


def write_lanes(
    batches: Iterable[pa.RecordBatch],
    *,
    folder: Location,
    columns: Sequence[str],
    granule: int,
    rows_per_part: int,
    vocabulary: int,
    first_rows: Sequence[int] = (0,),
) -> Iterator[pa.RecordBatch]:
    """Write the lanes of one partition. Runs on an executor.

    Args:
        batches: Rows sorted by lane, row and slot; each lane whole, so that every ``granule`` rows
            are one granule.
        columns: The optional columns of the lanes.
        vocabulary: Token ids are below this.
        first_rows: The first row of each source.

    Yields:
        A row per lane and source: the checksum of the lane's index, and the ``COUNTED`` numbers.

    Raises:
        PipelineError: A text has ids outside the vocabulary.
    """
    schema = lane_schema(columns)
    granules = _regroup(batches, granule)
    for lane, of_lane in groupby(granules, lambda rows: rows.column("lane")[0].as_py()):
        yield _write_lane(lane, of_lane, folder, schema, rows_per_part, vocabulary, first_rows)


def _regroup(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Cut a stream of rows into batches of ``size`` rows."""
    pending: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        pending.append(batch)
        count += batch.num_rows
        if count < size:
            continue
        # One chunk, so that each granule is a slice without another copy.
        table = pa.Table.from_batches(pending).combine_chunks()
        joined = table.to_batches()[0]
        for start in range(0, count - size + 1, size):
            yield joined.slice(start, size)
        rest = count % size
        pending = [joined.slice(count - rest)] if rest else []
        count = rest
    if count:
        raise PipelineError(f"the last {count} rows do not fill a granule of {size}")


def _write_lane(
    lane: int,
    granules: Iterable[pa.RecordBatch],
    folder: Location,
    schema: pa.Schema,
    rows_per_part: int,
    vocabulary: int,
    first_rows: Sequence[int],
) -> pa.RecordBatch:
    """Write the part files of a lane and its index; return its rows of :func:`write_lanes`."""
    index: list[IndexEntry] = []
    counts = [Counter[str]() for _ in first_rows]
    for part, rows in groupby(enumerate(granules), lambda numbered: numbered[0] // rows_per_part):
        path = part_path(folder, lane, part)
        # An attempt that dies leaves a hidden file, and another one writes its own.
        with (
            storage.built_file(path) as aside,
            pa.OSFile(str(aside), "wb") as sink,
            pa.ipc.new_file(sink, schema) as file,
        ):
            for row, granule in rows:
                batch = granule.select(schema.names).cast(schema)
                source_counts = counts[bisect_right(first_rows, row) - 1]
                _count(source_counts, batch, vocabulary, f"{path}: granule {row % rows_per_part}")
                # The very bytes that the file gets, which end where it ends now.
                message = batch.serialize()
                file.write_batch(batch)
                offset = sink.tell() - message.size
                index.append(IndexEntry(offset, message.size, checksum(message)))
    content, digest = encode_index(index)
    with storage.built_file(index_path(folder, lane)) as aside:
        aside.write_bytes(content)
    sources = len(first_rows)
    columns = {
        "lane": pa.array([lane] * sources, pa.int32()),
        "source": pa.array(range(sources), pa.int32()),
        "checksum": [digest] * sources,
    }
    return pa.RecordBatch.from_pydict(
        columns | {name: [source[name] for source in counts] for name in COUNTED}
    )


def _count(counts: Counter[str], batch: pa.RecordBatch, vocabulary: int, place: str) -> None:
    """Add a granule's ``COUNTED`` numbers; refuse ids outside the vocabulary, naming `place`."""
    counts["granules"] += 1
    for name in OPTIONAL:
        if name in batch.schema.names:
            counts[name] += batch.num_rows - batch.column(name).null_count
    for column in text_columns(batch).values():
        ids, lengths = ragged(column)
        least, most = int(ids.min(initial=0)), int(ids.max(initial=0))
        if least < 0 or most >= vocabulary:
            raise PipelineError(
                f"{place} would have the token id {least if least < 0 else most}, but the "
                f"vocabulary has {vocabulary} entries. The tokens are damaged: run "
                "`sentence-pipelines prepare` with prepared.reuse=false to write them anew."
            )
        counts["tokens"] += int(lengths.sum())
        counts["slots"] += len(lengths) * padded_width(lengths)
