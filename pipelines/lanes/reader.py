"""Reads granules: from files in place, or from an object store ahead of their steps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from pipelines.errors import InputError, PipelineError
from pipelines.files.locations import Location, RemotePath
from pipelines.files.versions import current
from pipelines.lanes.files import (
    Granule,
    LaneManifest,
    decode,
    index_path,
    part_path,
)
from pipelines.lanes.index import IndexEntry, checked, decode_index
from pipelines.lanes.plan import GranuleAddress
from pipelines.lanes.read_ahead import Work
from pipelines.lanes.remote import Fetching, RemoteLanes
from pipelines.lanes.teacher import TeacherVectors


class LaneSource(Protocol):
    """Where granules come from."""

    def message(self, address: GranuleAddress) -> pa.Buffer:
        """A granule as the Arrow message of its record batch, which has its checksum.

        Raises:
            OSError: The lane cannot be read.
            PipelineError: It does not hold what was written there.
        """
        ...

    def ahead(self, steps: Iterable[Work]) -> Iterator[Work]:
        """Passes steps on, whose granules are asked for next, and in this order."""
        ...


class MappedLanes:
    """Lanes on a file system, by memory map; one open file per lane.

    Args:
        folder: The folder of the lanes, as this process sees it.
        manifest: What it holds.
    """

    def __init__(self, folder: Path, manifest: LaneManifest) -> None:
        self._folder = folder
        self._manifest = manifest
        self._open: dict[int, tuple[int, pa.Buffer]] = {}
        self._indices: dict[int, np.ndarray] = {}

    def message(self, address: GranuleAddress) -> pa.Buffer:
        """See :meth:`LaneSource.message`; without a copy."""
        lane = address.lane
        part, granule = divmod(address.row, self._manifest.rows_per_part)
        if lane not in self._indices:
            path = index_path(self._folder, lane)
            expected = self._manifest.checksums[lane]
            self._indices[lane] = decode_index(path.read_bytes(), path, expected)
        path = part_path(self._folder, lane, part)
        entry = IndexEntry(*self._indices[lane][address.row].item())
        if lane not in self._open or self._open[lane][0] != part:
            self._open[lane] = (part, pa.memory_map(str(path)).read_buffer())
        whole = self._open[lane][1]
        start = min(entry.offset, whole.size)
        length = min(entry.length, whole.size - start)
        return checked(whole.slice(start, length), entry, path, granule)

    def ahead(self, steps: Iterable[Work]) -> Iterator[Work]:
        """The steps as they are: the system reads ahead."""
        return iter(steps)


def check_unchanged(folder: Location, manifest: LaneManifest) -> None:
    """Makes sure that a folder holds the lanes that a manifest was read of.

    Raises:
        PipelineError: They were prepared again, or it cannot be read, which says nothing of them.
    """
    if isinstance(folder, RemotePath):
        # A version never changes, but goes some time after it was replaced.
        folder = folder.place or folder
    try:
        digest = LaneManifest.load(current(folder)).digest
    except (InputError, OSError) as error:
        problem = error.problem if isinstance(error, InputError) else error
        raise PipelineError(
            f"{folder} cannot be read any more ({problem}): bring it back, then go on with "
            "training.resume=true"
        ) from error
    if digest != manifest.digest:
        raise PipelineError(
            f"{folder} was prepared again since the run began, begin anew with run.overwrite=true"
        )


@dataclass(frozen=True)
class Wanted:
    """What is decoded of the granules of a source.

    Attributes:
        sides: The sides that are wanted, None for all.
        teacher: The vectors of a teacher in the lanes, if they are wanted.
    """

    sides: Collection[str] | None = None
    teacher: TeacherVectors | None = None


class LaneReader:
    """Reads granules; every one is compared with its checksum.

    Args:
        folder: The folder of the lanes, as this process sees it.
        manifest: What it holds.
        sides: The sides of a granule that are wanted, None for all; the others are not decoded.
        teacher: The vectors of a teacher in the lanes, if they are wanted.
        by_source: In place of both, what is wanted of each of several sources.
        cache_bytes: What this machine may keep of lanes in object stores.
        fetching: How lanes in object stores are fetched.
    """

    def __init__(
        self,
        folder: Location,
        manifest: LaneManifest,
        sides: Collection[str] | None = None,
        teacher: TeacherVectors | None = None,
        *,
        by_source: Sequence[Wanted] = (),
        cache_bytes: int = 0,
        fetching: Fetching | None = None,
    ) -> None:
        self._folder = folder
        self._manifest = manifest
        self._wanted = by_source or (Wanted(sides, teacher),) * max(len(manifest.sources), 1)
        self._source: LaneSource = (
            MappedLanes(folder, manifest)
            if isinstance(folder, Path)
            else RemoteLanes(folder, manifest, cache_bytes, fetching or Fetching())
        )

    def ahead(self, steps: Iterable[Work]) -> Iterator[Work]:
        """Passes steps on; the granules of those that follow may be fetched meanwhile.

        Args:
            steps: In the order in which they are made: whatever names each, and the addresses of
                the granules that are asked for before the next.
        """
        return self._source.ahead(steps)

    def message(self, address: GranuleAddress) -> pa.Buffer:
        """A granule as the Arrow message of its record batch.

        Raises:
            OSError: The lane cannot be read.
            PipelineError: It does not hold what was written there, or the lanes are gone, or were
                prepared again, since the manifest was read.
        """
        try:
            return self._source.message(address)
        except (OSError, PipelineError):
            # Lanes that were prepared again look damaged, or have fewer files.
            check_unchanged(self._folder, self._manifest)
            raise

    def batch(self, address: GranuleAddress) -> pa.RecordBatch:
        """The record batch of a granule, without a copy; raises as :meth:`message`."""
        return pa.ipc.read_record_batch(self.message(address), self._manifest.schema)

    def granule(self, address: GranuleAddress) -> Granule:
        """A granule as padded arrays; raises as :meth:`message`."""
        wanted = self._wanted[self._manifest.source_of(address.row)]
        return decode(self.batch(address), self.number(address), wanted.sides, wanted.teacher)

    def number(self, address: GranuleAddress) -> int:
        """The number that names a granule in the corpus."""
        return address.row * self._manifest.lanes + address.lane

    def __iter__(self) -> Iterator[tuple[GranuleAddress, pa.RecordBatch]]:
        """All granules, row by row."""
        for row in range(self._manifest.rows):
            for lane in range(self._manifest.lanes):
                address = GranuleAddress(lane=lane, row=row)
                yield address, self.batch(address)
