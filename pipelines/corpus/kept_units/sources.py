"""Which inputs are read again as a whole when something of them changes.

A source is a file or, of a corpus of very many files, a bundle of them: so neither the driver's
memory nor the list of what is kept grows with the number of files.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pipelines.corpus.readers.inputs import stamp_of
from pipelines.corpus.unit_schema import hash_of
from pipelines.files.locations import Location

MOST_SOURCES = 4096
"""Of more files, those whose paths have the same hash are one source."""


@dataclass(frozen=True)
class Naming:
    """How the source of a file is called. It travels to the executors.

    Attributes:
        bundles: How many bundles there are; 0 where each file is a source of its own.
        generation: Of what is cut: a file that has changed is not the source that it was.
    """

    bundles: int
    generation: int

    def name_of(self, file: str) -> str:
        """The name of the source that a file belongs to."""
        if not self.bundles:
            return file
        return f"bundle {zlib.crc32(file.encode()) % self.bundles} of {self.bundles}"

    def id_of(self, file: str) -> int:
        """The number that the rows of a file have in the column `source`."""
        return _id_of(self, file)


@lru_cache(maxsize=1024)
def _id_of(naming: Naming, file: str) -> int:
    return hash_of(f"{naming.generation}\0{naming.name_of(file)}")


@dataclass(frozen=True)
class Source:
    """Files that are read together or not at all.

    Attributes:
        files: Absolute.
        stamp: A digest of their paths, sizes and times of change; None where one of them is gone.
    """

    files: tuple[Location, ...]
    stamp: str | None


def naming_for(files: Sequence[Location], generation: int) -> Naming:
    """How the sources of these files are called."""
    return Naming(MOST_SOURCES if len(files) > MOST_SOURCES else 0, generation)


def find_sources(files: Iterable[Location], naming: Naming) -> dict[str, Source]:
    """The sources of the files as they are now, by name."""
    members: dict[str, list[Location]] = {}
    for file in files:
        members.setdefault(naming.name_of(str(file)), []).append(file)
    return {name: Source(tuple(own), _stamp(own)) for name, own in members.items()}


def unchanged(sources: Mapping[str, Source]) -> dict[str, str | None]:
    """The stamps of sources that have the same one now, after they were read; None for others."""
    now = {name: _stamp(source.files) for name, source in sources.items()}
    return {name: now[name] if now[name] == one.stamp else None for name, one in sources.items()}


def _stamp(files: Iterable[Location]) -> str | None:
    stamps = [stamp_of(file) for file in files]
    if any(len(stamp) == 1 for stamp in stamps):
        return None
    return hashlib.sha256(json.dumps(stamps).encode()).hexdigest()[:32]
