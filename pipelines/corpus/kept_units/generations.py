"""The files of kept units.

    <prepared.folder>/units/
      1/  2/  ...        a generation: what one preparation has cut
        rows/            Parquet files of :data:`pipelines.corpus.unit_schema.SCHEMA`
        totals.parquet   what they add up to, by source
        sources.json     the settings that they were cut with, and the sources

A generation never changes. Where some of its sources are gone, the others are written once more,
into a new one, before it is removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.corpus.kept_units.sources import Source
from pipelines.files import records, storage
from pipelines.files.locations import Location, arrow_source
from pipelines.files.versions import current

_TOTALS = "totals.parquet"
_SOURCES = "sources.json"


@dataclass(frozen=True)
class KeptSource:
    """A source whose units are kept.

    Attributes:
        stamp: Of its files when they were read; None if it must be read again.
        id: In the column `source`.
    """

    stamp: str | None
    id: int


@dataclass(frozen=True)
class _Told:
    """All of ``sources.json``.

    Attributes:
        settings: See :class:`Generation`.
        sources: Stamp and id of each source, by name.
    """

    settings: str
    sources: dict[str, tuple[str | None, int]]


@dataclass(frozen=True)
class Generation:
    """A generation on the disk.

    Attributes:
        place: Its folder.
        path: Where the content of the folder is: in a store, a version of it.
        settings: A digest of what its rows follow from besides the files.
        sources: By name.
    """

    place: Location
    path: Location
    settings: str
    sources: Mapping[str, KeptSource]

    @classmethod
    def load(cls, place: Location) -> Generation:
        """Reads what a folder says.

        Raises:
            DamagedFileError: It says something else.
        """
        path = current(place)
        told: _Told = records.read(path / _SOURCES, _Told)
        sources = {name: KeptSource(*one) for name, one in told.sources.items()}
        return cls(place, path, told.settings, sources)

    @property
    def number(self) -> int:
        """Higher ones are newer."""
        return int(self.place.name)

    @property
    def rows(self) -> Location:
        """The folder of its Parquet files."""
        return self.path / "rows"

    @cached_property
    def totals(self) -> pa.Table:
        """What its rows add up to."""
        return pq.read_table(arrow_source(self.path / _TOTALS))

    @property
    def number_of_rows(self) -> int:
        """Of all its files."""
        return int(pc.sum(self.totals["written"]).as_py() or 0)

    def without(self, ids: Collection[int]) -> Generation:
        """The same, of which sources must be read again."""
        sources = {
            name: replace(one, stamp=None) if one.id in ids else one
            for name, one in self.sources.items()
        }
        return replace(self, sources=sources)

    def totals_of(self, ids: Iterable[int]) -> pa.Table:
        """The totals of some of its sources."""
        wanted = pa.array(list(ids), pa.int64())
        return self.totals.filter(pc.is_in(self.totals["source"], wanted))


def write_generation(
    folder: Location, settings: str, sources: Mapping[str, KeptSource], totals: pa.Table
) -> None:
    """Adds to the rows in a folder what says where they are from."""
    with storage.built_file(folder / _TOTALS) as aside:
        pq.write_table(totals, aside, compression="zstd")
    listed = {name: [one.stamp, one.id] for name, one in sources.items()}
    storage.write_json(folder / _SOURCES, {"settings": settings, "sources": listed})


@dataclass(frozen=True)
class Claim:
    """What of a generation is part of the corpus as it is to be.

    Attributes:
        generation: The generation.
        live: Its sources that are as they were when it was cut, by name.
    """

    generation: Generation
    live: Mapping[str, KeptSource]

    @property
    def is_whole(self) -> bool:
        """Whether nothing of it is gone."""
        return len(self.live) == len(self.generation.sources)

    @property
    def ids(self) -> list[int]:
        """Of its live sources."""
        return [one.id for one in self.live.values()]


def find_generations(folder: Location) -> list[Generation]:
    """Those in the folder of units, the newest first."""
    places = [place for place in folder.glob("*") if place.name.isdigit()]
    found = [Generation.load(place) for place in places if (current(place) / _SOURCES).is_file()]
    return sorted(found, key=lambda generation: -generation.number)


def claims(
    generations: Iterable[Generation], settings: str, sources: Mapping[str, Source]
) -> list[Claim]:
    """What can be taken from each generation; a source is taken from the newest that has it.

    Args:
        generations: The newest first.
        settings: What rows follow from now.
        sources: As they are now.
    """
    taken: set[str] = set()
    found = []
    for generation in generations:
        live = {
            name: one
            for name, one in generation.sources.items()
            if generation.settings == settings
            and name not in taken
            and one.stamp is not None
            and name in sources
            and sources[name].stamp == one.stamp
        }
        taken |= live.keys()
        found.append(Claim(generation, live))
    return found
