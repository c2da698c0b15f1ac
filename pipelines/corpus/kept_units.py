"""The kept units of each input file: a later run reads only new and changed files.

    <prepared.folder>/units/
      1/  2/  ...        a generation: the units of one preparation
        rows/            Parquet files of :data:`pipelines.corpus.unit_rows.SCHEMA`
        totals.parquet   their totals, by source
        sources.json     their settings, and the sources

A run of texts lies in one row group of `rows/`: see :mod:`pipelines.corpus.dedup.cut_texts`.

A source is a file or, of a corpus of very many files, a bundle of them: so neither the driver's
memory nor the list of sources grows with the number of files. A generation never changes. When some
of its sources are gone, a new generation takes over the rest before the old one is removed.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses
from pyspark.sql.pandas.types import from_arrow_schema

from pipelines.catalog import FORMATS
from pipelines.corpus.cleaning.redaction import check_redactor
from pipelines.corpus.readers.formats import Damaged, Format
from pipelines.corpus.readers.inputs import find_files, stamp_of
from pipelines.corpus.readers.spark_reader import (
    check_settings,
    read_files,
    read_rows,
    without_damaged,
)
from pipelines.corpus.readers.streams import may_pass, sort_key
from pipelines.corpus.texts import unit_batches
from pipelines.corpus.unit_rows import SCHEMA, Naming, code_versions, deleted_keys
from pipelines.errors import PipelineError
from pipelines.files import records, storage
from pipelines.files.locations import Location, arrow_source
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.files.versions import current
from pipelines.settings import Config, CorpusSettings, StorageSettings
from pipelines.spark.frames import (
    Kept,
    Scratch,
    Totals,
    batches_of,
    read_parquet,
    write_arrow,
)
from pipelines.spark.parquet_parts import Part, find_parts, read_whole

logger = logging.getLogger(__name__)

MOST_SOURCES = 4096
"""With more files, files with the same hash of their paths are one source."""
MOST_GENERATIONS = 8
"""With more of them, all but the largest are merged."""
SOURCES = "sources"
"""Folder of the units of several sources, a folder each."""

COUNTS_FROM: Mapping[str, Literal["corpus", "later"]] = {
    **dict.fromkeys(("inputs", "follow_links", "sources"), "corpus"),
    **dict.fromkeys(("score_range", "pairs_per_group", "near_duplicates"), "corpus"),
    **dict.fromkeys(("exclude", "exclude_columns", "max_dropped", "max_quarantined"), "corpus"),
    **dict.fromkeys(("evaluation_share", "evaluation_pairs", "evaluation_documents"), "corpus"),
    **dict.fromkeys(("prompts", "weight", "objective"), "later"),
}
"""Settings without an effect on the units of a file: whether they count for the corpus as a whole,
or only for later stages. Any other changed setting makes a preparation read files again."""

_LAYOUT = "runs are whole in row groups"
_TOTALS_FILE = "totals.parquet"
_SOURCES_FILE = "sources.json"
_TOTALS = Totals(
    ("level", "quarantined", "language"), ("rows", "bytes", "titled"), numbers=("source",)
)
_TOTALS_OF_ALL = Totals(_TOTALS.keys, _TOTALS.sums)
# 32 MiB in pieces of 64 KiB.
_PIECES_PER_BATCH = 512


def settings_of_corpus(settings: CorpusSettings) -> dict[str, Any]:
    """Return the settings that determine the corpus, as JSON."""
    later = {name for name, stage in COUNTS_FROM.items() if stage == "later"}
    left_out: dict[str, Any] = {**dict.fromkeys(later, True), "sources": {"__all__": later}}
    return settings.model_dump(mode="json", exclude=left_out)


def settings_key(settings: CorpusSettings) -> str:
    """Return a digest of everything that determines the units of a file, besides the file."""
    # Other code, or another schema, may cut the same file into other units.
    values = settings.model_dump(mode="json", exclude={*COUNTS_FROM})
    redactor = settings.redact and check_redactor(settings.redact)
    content = json.dumps([_LAYOUT, code_versions(), values, redactor, str(SCHEMA)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True)
class Source:
    """Files read together or not at all.

    `stamp` is a digest of their paths, sizes and times of change; None if a file is gone.
    """

    files: tuple[Location, ...]
    stamp: str | None


def naming_for(files: Sequence[Location], generation: int) -> Naming:
    """Return the naming of the sources of these files."""
    return Naming(MOST_SOURCES if len(files) > MOST_SOURCES else 0, generation)


def find_sources(files: Iterable[Location], naming: Naming) -> dict[str, Source]:
    """Return the sources of the files in their present state, by name."""
    members: dict[str, list[Location]] = {}
    for file in files:
        members.setdefault(naming.name_of(str(file)), []).append(file)
    return {name: Source(tuple(paths), _stamp(paths)) for name, paths in members.items()}


def unchanged(sources: Mapping[str, Source]) -> dict[str, str | None]:
    """Return the stamps of sources unchanged since they were read; None for changed ones."""
    now = {name: _stamp(source.files) for name, source in sources.items()}
    return {
        name: now[name] if now[name] == source.stamp else None for name, source in sources.items()
    }


def _stamp(files: Iterable[Location]) -> str | None:
    stamps = [stamp_of(file) for file in files]
    if any(len(stamp) == 1 for stamp in stamps):
        return None
    return hashlib.sha256(json.dumps(stamps).encode()).hexdigest()[:32]


class KeptSource(NamedTuple):
    """A source with kept units, and its id in the column `source`.

    `stamp` is the stamp of its files when they were read; None if it must be read again.
    """

    stamp: str | None
    id: int


@dataclass(frozen=True)
class _Listed:
    """The content of ``sources.json``: settings as in :class:`Generation`, stamps and ids."""

    settings: str
    sources: dict[str, tuple[str | None, int]]


@dataclass(frozen=True)
class Generation:
    """A generation on the disk.

    `path` is the folder of its content: in a store, a version of `place`. `settings` is the digest
    of :func:`settings_key`.
    """

    place: Location
    path: Location
    settings: str
    sources: Mapping[str, KeptSource]

    @classmethod
    def load(cls, place: Location) -> Generation:
        """Read a generation from its folder, or raise a `DamagedFileError`."""
        path = current(place)
        listed: _Listed = records.read(path / _SOURCES_FILE, _Listed)
        sources = {name: KeptSource(*fields) for name, fields in listed.sources.items()}
        return cls(place, path, listed.settings, sources)

    @property
    def number(self) -> int:
        """Its number; higher ones are newer."""
        return int(self.place.name)

    @cached_property
    def totals(self) -> pa.Table:
        """The totals of its rows, by source."""
        return pq.read_table(arrow_source(self.path / _TOTALS_FILE))

    @property
    def number_of_rows(self) -> int:
        """The rows of all its files."""
        return int(pc.sum(self.totals["written"]).as_py() or 0)

    @property
    def folder(self) -> Location:
        """The folder of its rows."""
        return self.path / "rows"

    def rows(self, session: SparkSession) -> DataFrame:
        """Return all its rows."""
        return read_parquet(session, self.folder, from_arrow_schema(SCHEMA))

    def without(self, ids: Collection[int]) -> Generation:
        """Return the generation with some sources marked to be read again."""
        sources = {
            name: source._replace(stamp=None) if source.id in ids else source
            for name, source in self.sources.items()
        }
        return replace(self, sources=sources)

    def totals_of(self, ids: Iterable[int]) -> pa.Table:
        """Return the totals of the sources with these ids."""
        wanted = pa.array(list(ids), pa.int64())
        return self.totals.filter(pc.is_in(self.totals["source"], wanted))


def write_generation(
    folder: Location, settings: str, sources: Mapping[str, KeptSource], totals: pa.Table
) -> None:
    """Add totals and sources to the rows in a folder."""
    with storage.built_file(folder / _TOTALS_FILE) as aside:
        pq.write_table(totals, aside, compression="zstd")
    storage.write_json(folder / _SOURCES_FILE, {"settings": settings, "sources": {**sources}})


def find_generations(folder: Location) -> list[Generation]:
    """Return the generations in the folder of units, the newest first."""
    places = [place for place in folder.glob("*") if place.name.isdigit()]
    # `sources.json` is written last: a folder without it is no generation yet.
    complete = [place for place in places if (current(place) / _SOURCES_FILE).is_file()]
    return sorted(map(Generation.load, complete), key=lambda generation: -generation.number)


@dataclass(frozen=True)
class Claim:
    """The part of a generation that belongs to the new corpus.

    `live` holds its unchanged sources, by name.
    """

    generation: Generation
    live: Mapping[str, KeptSource]

    @property
    def is_whole(self) -> bool:
        """Whether all its sources are live."""
        return len(self.live) == len(self.generation.sources)

    @property
    def ids(self) -> list[int]:
        """The ids of its live sources."""
        return [source.id for source in self.live.values()]


def claims(
    generations: Iterable[Generation], settings: str, sources: Mapping[str, Source]
) -> list[Claim]:
    """Return the usable part of each generation, given the newest first.

    A source comes from the newest generation that has it.
    """
    taken: set[str] = set()
    found = []
    for generation in generations:
        usable = generation.sources if generation.settings == settings else {}
        live = {
            name: kept
            for name, kept in usable.items()
            if name in sources
            and name not in taken
            and kept.stamp is not None
            and sources[name].stamp == kept.stamp
        }
        taken |= live.keys()
        found.append(Claim(generation, live))
    return found


@dataclass(frozen=True)
class Units:
    """The texts of all inputs, cleaned and judged one by one.

    `frame` has rows of :data:`.unit_rows.SCHEMA`, which lie in `folders`; `totals` has `rows`,
    `bytes` and `titled` by `level`, `quarantined` and `language`. `tables` are the inputs with
    versions, and the versions read.
    """

    frame: DataFrame
    folders: tuple[Location, ...]
    totals: pa.Table
    tables: tuple[str, ...] = ()


def units_folders(units: Location, names: Sequence[str]) -> list[Location]:
    """Return the folder for the units of each source; of a corpus without names, a single folder.

    It removes the units of sources that the corpus no longer has.
    """
    used = [units / SOURCES / name for name in names] or [units]
    unused = [place for place in units.glob("*") if place.name.isdigit()] if names else []
    unused += [place for place in (units / SOURCES).glob("*") if place not in used]
    for place in unused:
        storage.remove_folder(place)
    return used


def cut_inputs(session: SparkSession, config: Config, scratch: Scratch, folder: Location) -> Units:
    """Return the units of `corpus.inputs`, and reuse the units of unchanged files.

    `scratch` takes the units of inputs read as a whole each time: tables, and formats that Spark
    reads. It raises the errors of :func:`pipelines.corpus.readers.spark_reader.read_rows`.
    """
    settings = config.corpus
    known: Format = FORMATS.load(settings.format)
    deleted = deleted_keys(PreparedFolder.of(config), settings.key_column)
    if known.read is None and config.prepared.keep_units:
        kept = _KeptUnits(session, settings, folder, deleted, config.storage)
        return kept.units(reuse=config.prepared.reuse)
    _remove(folder)
    tables = known.pinned(session, settings.inputs, config.storage)
    if tables:
        logger.info("reading %s", ", ".join(tables))
        settings = settings.model_copy(update={"inputs": tables})
    work = partial(unit_batches, settings=settings, deleted=deleted)

    def cut(damaged: Damaged) -> tuple[Kept, pa.Table]:
        rows = read_rows(session, settings, config.storage, damaged)
        return scratch.keep_arrow(rows, work, SCHEMA, _TOTALS_OF_ALL)

    files = [] if known.files is None else _files(settings, config.storage)
    with batches_of(session, _PIECES_PER_BATCH):
        rows, totals = without_damaged(session, settings, files, cut)
    return Units(rows.frame, (rows.path,), totals, tables)


def _files(settings: CorpusSettings, stores: StorageSettings) -> list[Location]:
    follow = settings.follow_links
    return find_files(settings.inputs, settings.format, stores=stores, follow_links=follow)


@dataclass(frozen=True)
class _KeptUnits:
    """The folder of kept units, for one preparation; made if there is none, and used by it alone.

    No row with the hash of its key in `deleted` is kept.
    """

    session: SparkSession
    settings: CorpusSettings
    folder: Location
    deleted: Collection[int]
    stores: StorageSettings

    def units(self, *, reuse: bool) -> Units:
        """Read the new sources, and forget the removed ones."""
        if not reuse:
            _remove(self.folder)
        check_settings(self.settings)
        files = _files(self.settings, self.stores)
        storage.sweep(self.folder)
        generations = find_generations(self.folder)
        naming = naming_for(
            files, 1 + max((generation.number for generation in generations), default=0)
        )
        sources = find_sources(files, naming)
        key = settings_key(self.settings)
        readable = [self._without_deleted(generation, key) for generation in generations]
        found = claims(readable, key, sources)
        kept = {name for claim in found for name in claim.live}
        new = {name: source for name, source in sources.items() if name not in kept}
        if kept:
            logger.info(
                "%d of %d inputs are unchanged: their units are reused", len(kept), len(sources)
            )
        if new:
            found.insert(0, self._cut(files, new, naming, key))
        settled = self._settled(found, key)
        totals = pa.concat_tables(generation.totals for generation in settled)
        merged = _TOTALS_OF_ALL.merged(totals.drop_columns(["source"]))
        frames = [generation.rows(self.session) for generation in settled]
        folders = tuple(generation.folder for generation in settled)
        return Units(below_one_another(frames), folders, merged)

    def _cut(
        self, files: Sequence[Location], new: Mapping[str, Source], naming: Naming, key: str
    ) -> Claim:
        """Read sources into a new generation."""
        read = sorted((file for source in new.values() for file in source.files), key=sort_key)
        work = partial(unit_batches, settings=self.settings, naming=naming, deleted=self.deleted)
        with storage.new_folder(self.folder / str(naming.generation)) as aside:

            def cut(damaged: Damaged) -> pa.Table:
                # An attempt that failed may have left rows.
                storage.discard_folder(aside / "rows")
                raw = read_files(self.session, self.settings, files, read, self.stores, damaged)
                with batches_of(self.session, _PIECES_PER_BATCH):
                    return write_arrow(raw, work, SCHEMA, _TOTALS, aside / "rows")

            totals = without_damaged(self.session, self.settings, read, cut)
            # A file that vanished or could not be opened may be readable the next time.
            errors = zip(
                totals["source"].to_pylist(), totals["quarantined"].to_pylist(), strict=True
            )
            passing = {source for source, reason in errors if reason and may_pass(reason)}
            kept = {}
            for name, stamp in unchanged(new).items():
                # Files of one bundle share its id, so any of them will do.
                number = naming.id_of(str(new[name].files[0]))
                kept[name] = KeptSource(None if number in passing else stamp, number)
            # A rewritten generation would lose rows of no known source, or keep them for good.
            strange = {*totals["source"].to_pylist()} - {source.id for source in kept.values()}
            if strange:
                raise PipelineError(f"executors read {len(strange)} inputs that nobody requested")
            write_generation(aside, key, kept, totals)
        generation = Generation.load(self.folder / str(naming.generation))
        return Claim(generation, generation.sources)

    def _without_deleted(self, generation: Generation, key: str) -> Generation:
        """Mark the sources with rows of newly deleted keys to be read again."""
        has_keys = self.settings.key_column is not None and generation.settings == key
        if not (self.deleted and has_keys):
            return generation
        held = generation.rows(self.session).where(F.col("key").isin(list(self.deleted)))
        ids = {row["source"] for row in held.select("source").distinct().collect()}
        return generation.without(ids)

    def _settled(self, found: list[Claim], key: str) -> list[Generation]:
        """Return generations with the claimed sources and nothing else, and not too many."""
        largest = max(found, key=lambda claim: claim.generation.number_of_rows)
        # The largest costs most to write again.
        stay = found if len(found) <= MOST_GENERATIONS else [largest]
        written = [claim for claim in found if not claim.is_whole or claim not in stay]
        settled = [claim.generation for claim in found if claim not in written]
        live = [claim for claim in written if claim.live]
        if live:
            newest = max(claim.generation.number for claim in found)
            settled.append(self._written_again(live, newest + 1, key))
        for claim in written:
            storage.remove_folder(claim.generation.place)
        return settled

    def _written_again(self, live: Sequence[Claim], number: int, key: str) -> Generation:
        sources = {name: source for claim in live for name, source in claim.live.items()}
        with storage.new_folder(self.folder / str(number)) as aside:
            parts = [
                (part, claim.ids) for claim in live for part in find_parts(claim.generation.folder)
            ]
            numbers = self.session.range(0, len(parts), 1, len(parts))
            # Not by Spark, whose files cut runs into several row groups.
            work = partial(rows_of_sources, parts=parts)
            write_arrow(numbers, work, SCHEMA, _TOTALS, aside / "rows")
            totals = pa.concat_tables(claim.generation.totals_of(claim.ids) for claim in live)
            write_generation(aside, key, sources, totals)
        return Generation.load(self.folder / str(number))


def rows_of_sources(
    batches: Iterable[pa.RecordBatch], *, parts: Sequence[tuple[Part, Collection[int]]]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of parts, each of the sources with these ids. Runs on an executor.

    `batches` hold numbers of `parts` in the column `id`. A part is a batch, and so a row group.
    """
    for number in (number for batch in batches for number in batch["id"].to_pylist()):
        part, ids = parts[number]
        rows = read_whole(part, SCHEMA)
        yield rows.filter(pc.is_in(rows["source"], pa.array(list(ids), pa.int64())))


def below_one_another(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of frames with the same columns."""
    return reduce(type(frames[0]).unionByName, frames)


def _remove(folder: Location) -> None:
    if folder.is_dir():
        storage.remove_folder(folder)
