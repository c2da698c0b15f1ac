"""What each input file gave, kept beside the corpus: only new and changed files are read again.

The files of kept units.

    <prepared.folder>/units/
      1/  2/  ...        a generation: what one preparation has cut
        rows/            Parquet files of :data:`pipelines.corpus.unit_rows.SCHEMA`
        totals.parquet   what they add up to, by source
        sources.json     the settings that they were cut with, and the sources

A generation never changes. Where some of its sources are gone, the others are written once more,
into a new one, before it is removed.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.catalog import FORMATS
from pipelines.corpus.cleaning.redaction import check_redactor
from pipelines.corpus.readers.formats import Damaged
from pipelines.corpus.readers.inputs import find_files
from pipelines.corpus.readers.spark_reader import (
    check_settings,
    read_files,
    read_rows,
    without_damaged,
)
from pipelines.corpus.readers.streams import may_pass, sort_key
from pipelines.corpus.texts import unit_batches
from pipelines.corpus.unit_rows import (
    SCHEMA,
    Naming,
    Source,
    code_versions,
    deleted_keys,
    find_sources,
    naming_for,
    unchanged,
)
from pipelines.errors import PipelineError
from pipelines.files import records, storage
from pipelines.files.locations import Location, arrow_source
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.files.versions import current
from pipelines.settings import Config, CorpusSettings, StorageSettings
from pipelines.spark.frames import (
    Scratch,
    Totals,
    batches_of,
    read_parquet,
    write_arrow,
    write_parquet,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_TOTALS_FILE = "totals.parquet"
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
        return pq.read_table(arrow_source(self.path / _TOTALS_FILE))

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
    with storage.built_file(folder / _TOTALS_FILE) as aside:
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


logger = logging.getLogger(__name__)

MOST_GENERATIONS = 8
"""With more of them, all but the largest are made one."""

_TOTALS = Totals(
    ("level", "quarantined", "language"), ("rows", "bytes", "titled"), numbers=("source",)
)
_TOTALS_OF_ALL = Totals(_TOTALS.keys, _TOTALS.sums)
# Of pieces of 64 KiB: 32 MiB.
_PIECES_PER_BATCH = 512
_SETTINGS_OF_THE_WHOLE = {
    "follow_links",
    "inputs",
    "score_range",
    "pairs_per_group",
    "near_duplicates",
    "max_dropped",
    "max_quarantined",
    "evaluation_share",
    "evaluation_pairs",
    "evaluation_documents",
    "exclude",
    "exclude_columns",
    "prompts",
    "sources",
}
"""Settings of the corpus that change nothing of what is made of one file."""


@dataclass(frozen=True)
class Units:
    """The texts of all inputs, cleaned and judged one by one.

    Attributes:
        frame: Rows of :data:`.unit_rows.SCHEMA`.
        totals: `rows`, `bytes` and `titled` by `level`, `quarantined` and `language`.
        tables: The inputs with the versions that were read, where they are tables that have some.
    """

    frame: DataFrame
    totals: pa.Table
    tables: tuple[str, ...] = ()


SOURCES = "sources"
"""Folder of the units of several sources, a folder each."""


def units_folders(units: Location, names: Sequence[str]) -> list[Location]:
    """Where the units of each source are kept; of a corpus that is one, where there are no names.

    What is kept of other sources, that a corpus had before, is removed.

    Args:
        units: The folder of all units.
        names: Of the sources.
    """
    used = [units / SOURCES / name for name in names] or [units]
    there = [*units.glob("*")] if units.is_dir() else []
    sources = [*(units / SOURCES).glob("*")] if (units / SOURCES).is_dir() else []
    others = [place for place in there if place.name.isdigit()] if names else []
    for place in (*others, *(place for place in sources if place not in used)):
        storage.remove_folder(place)
    return used


def cut_inputs(session: SparkSession, config: Config, scratch: Scratch, folder: Location) -> Units:
    """The units of `corpus.inputs`: of files that were read before, as they were kept.

    Args:
        session: Reads what is new.
        config: The settings.
        scratch: For the units of what is read as a whole each time: tables, and formats that
            Spark reads.
        folder: Where units are kept.

    Raises:
        InputError: See :func:`pipelines.corpus.readers.spark_reader.read_rows`.
    """
    settings = config.corpus
    deleted = deleted_keys(PreparedFolder.of(config), settings.key_column)
    if FORMATS.load(settings.format).read is None and config.prepared.keep_units:
        kept = _KeptUnits(session, settings, folder, deleted, config.storage)
        return kept.units(reuse=config.prepared.reuse)
    _remove(folder)
    pin = FORMATS.load(settings.format).pin
    tables = tuple(pin(session, given) for given in settings.inputs) if pin else ()
    if tables:
        logger.info("reading %s", ", ".join(tables))
        settings = settings.model_copy(update={"inputs": tables})
    with batches_of(session, _PIECES_PER_BATCH):
        work = partial(unit_batches, settings=settings, deleted=deleted)

        def cut(damaged: Damaged) -> tuple[DataFrame, pa.Table]:
            rows = read_rows(session, settings, config.storage, damaged)
            return scratch.keep_arrow(rows, work, SCHEMA, _TOTALS_OF_ALL)

        is_table = FORMATS.load(settings.format).files is None
        files = [] if is_table else _files(settings, config.storage)
        frame, totals = without_damaged(session, settings, files, cut)
    return Units(frame, totals, tables)


def _files(settings: CorpusSettings, stores: StorageSettings) -> list[Location]:
    follow = settings.follow_links
    return find_files(settings.inputs, settings.format, stores=stores, follow_links=follow)


@dataclass(frozen=True)
class _KeptUnits:
    """The folder of kept units, for one preparation.

    Attributes:
        session: Of the driver.
        settings: Of the corpus.
        folder: Is made if there is none; no other process works in it.
        deleted: Hashes of the keys whose rows are kept nowhere.
        stores: How object stores are reached.
    """

    session: SparkSession
    settings: CorpusSettings
    folder: Location
    deleted: Collection[int]
    stores: StorageSettings

    def units(self, *, reuse: bool) -> Units:
        """Reads what is new, and forgets what is gone."""
        if not reuse:
            _remove(self.folder)
        check_settings(self.settings)
        files = _files(self.settings, self.stores)
        storage.sweep(self.folder)
        generations = find_generations(self.folder)
        naming = naming_for(files, 1 + max((one.number for one in generations), default=0))
        sources = find_sources(files, naming)
        key = settings_key(self.settings)
        found = claims([self._without_deleted(one, key) for one in generations], key, sources)
        kept = {name for claim in found for name in claim.live}
        new = {name: source for name, source in sources.items() if name not in kept}
        if kept:
            logger.info("%d of %d inputs are as they were, and kept", len(kept), len(sources))
        if new:
            found.insert(0, self._cut(files, new, naming, key))
        return self._of(self._settled(found, key))

    def _cut(
        self, files: Sequence[Location], new: Mapping[str, Source], naming: Naming, key: str
    ) -> Claim:
        """Reads sources into a generation of their own."""
        with storage.new_folder(self.folder / str(naming.generation)) as aside:
            read = sorted((file for one in new.values() for file in one.files), key=sort_key)
            work = partial(
                unit_batches, settings=self.settings, naming=naming, deleted=self.deleted
            )

            def cut(damaged: Damaged) -> pa.Table:
                # Of an attempt that failed.
                storage.discard_folder(aside / "rows")
                raw = read_files(self.session, self.settings, files, read, self.stores, damaged)
                with batches_of(self.session, _PIECES_PER_BATCH):
                    return write_arrow(raw, work, SCHEMA, _TOTALS, aside / "rows")

            totals = without_damaged(self.session, self.settings, read, cut)
            passing = _sources_with_passing_errors(totals)
            kept = {}
            for name, stamp in unchanged(new).items():
                number = naming.id_of(str(new[name].files[0]))
                kept[name] = KeptSource(None if number in passing else stamp, number)
            _check_all_known(totals, kept)
            write_generation(aside, key, kept, totals)
        generation = Generation.load(self.folder / str(naming.generation))
        return Claim(generation, generation.sources)

    def _without_deleted(self, generation: Generation, key: str) -> Generation:
        """Has the sources read again that hold rows of keys which were deleted since."""
        from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

        has_keys = self.settings.key_column is not None and generation.settings == key
        if not (self.deleted and has_keys):
            return generation
        held = self._rows(generation).where(F.col("key").isin(list(self.deleted)))
        ids = {row["source"] for row in held.select("source").distinct().collect()}
        return generation.without(ids)

    def _settled(self, found: list[Claim], key: str) -> list[Generation]:
        """The generations that hold what was claimed and nothing else, and not too many of them."""
        largest = max(found, key=lambda claim: claim.generation.number_of_rows)
        stay = found if len(found) <= MOST_GENERATIONS else [largest]
        written = [claim for claim in found if not claim.is_whole or claim not in stay]
        whole = [claim.generation for claim in found if claim not in written]
        live = [claim for claim in written if claim.live]
        if live:
            newest = max(claim.generation.number for claim in found)
            whole.append(self._written_again(live, newest + 1, key))
        for claim in written:
            storage.remove_folder(claim.generation.place)
        return whole

    def _written_again(self, live: Sequence[Claim], number: int, key: str) -> Generation:
        sources = {name: one for claim in live for name, one in claim.live.items()}
        with storage.new_folder(self.folder / str(number)) as aside:
            rows = below_one_another([self._live_rows(claim) for claim in live])
            write_parquet(rows, aside / "rows")
            totals = pa.concat_tables(claim.generation.totals_of(claim.ids) for claim in live)
            write_generation(aside, key, sources, totals)
        return Generation.load(self.folder / str(number))

    def _live_rows(self, claim: Claim) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

        rows = self._rows(claim.generation)
        return rows if claim.is_whole else rows.where(F.col("source").isin(claim.ids))

    def _rows(self, generation: Generation) -> DataFrame:
        from pyspark.sql.pandas.types import from_arrow_schema

        return read_parquet(self.session, generation.rows, from_arrow_schema(SCHEMA))

    def _of(self, generations: Sequence[Generation]) -> Units:
        totals = pa.concat_tables(generation.totals for generation in generations)
        merged = _TOTALS_OF_ALL.merged(totals.drop_columns(["source"]))
        return Units(below_one_another(list(map(self._rows, generations))), merged)


def below_one_another(frames: Sequence[DataFrame]) -> DataFrame:
    """The rows of frames with the same columns."""
    return reduce(type(frames[0]).unionByName, frames)


def settings_key(settings: CorpusSettings) -> str:
    """A digest of all that the units of a file follow from, besides the file."""
    values = settings.model_dump(mode="json", exclude=_SETTINGS_OF_THE_WHOLE)
    redactor = settings.redact and check_redactor(settings.redact)
    content = json.dumps([code_versions(), values, redactor, str(SCHEMA)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _check_all_known(totals: pa.Table, kept: Mapping[str, KeptSource]) -> None:
    """Rows of no known source would be lost, or stay, when a generation is written again.

    Raises:
        PipelineError: There are some.
    """
    strange = {*totals["source"].to_pylist()} - {one.id for one in kept.values()}
    if strange:
        raise PipelineError(f"{len(strange)} of the inputs that executors read were not asked for")


def _sources_with_passing_errors(totals: pa.Table) -> set[int]:
    """Those of which something could not be read that perhaps can be the next time."""
    reasons = totals["quarantined"].to_pylist()
    passing = pa.array([reason is not None and may_pass(reason) for reason in reasons], pa.bool_())
    return set(pc.filter(totals["source"], passing).to_pylist())


def _remove(folder: Location) -> None:
    if folder.is_dir():
        storage.remove_folder(folder)
