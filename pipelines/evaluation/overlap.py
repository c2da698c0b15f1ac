"""The overlap of evaluation sets with the training pairs.

Texts match as in `corpus.exclude`: by their letters and digits, exactly or nearly. Spark matches
them on the executors; the driver receives only counts. A preparation keeps these beside the pairs,
a training in its run folder, and an evaluation beside its figures.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pydantic import ConfigDict
from typing_extensions import TypedDict

from pipelines import __version__
from pipelines.corpus.readers.inputs import COLUMNS, find_files, stamp_of
from pipelines.errors import InputError
from pipelines.evaluation.beir import files_of_set
from pipelines.evaluation.pairs import is_pair_file
from pipelines.evaluation.rows import Tables
from pipelines.evaluation.sets import NamedSet, digest_tables, named_sets
from pipelines.files import records, storage
from pipelines.files.locations import Location
from pipelines.files.prepared_folder import CorpusFolder, PreparedFolder
from pipelines.files.run_folder import RunFolder
from pipelines.settings import Config, CorpusSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pipelines.spark.frames import Scratch

logger = logging.getLogger(__name__)

QUERIES, PAIRS = "queries", "pairs"
_NOT_OF_SETS = {"retrieval", "hybrid", "geometry", "every_checkpoints", "samples"}
"""Settings of the section without an effect on the reading of sets."""


@dataclass(frozen=True)
class Overlap:
    """How much of a set is among the training pairs.

    Attributes:
        digest: The set's, see :func:`pipelines.evaluation.sets.digest_sets`.
        of: `queries`, seen if a training pair has the text; or `pairs`, seen if one training pair
            has both texts.
        items: Queries or pairs of the set.
        seen: The seen ones of these.
        relevant: Queries with each of their relevant documents; or pairs.
        seen_relevant: The ones of these with both texts in one training pair.
    """

    digest: str
    of: str
    items: int
    seen: int
    relevant: int
    seen_relevant: int

    def __str__(self) -> str:
        items = f"{self.seen:,} of {self.items:,} {self.of} are among the training pairs"
        if self.of == PAIRS:
            return items
        return f"{items}, {self.seen_relevant:,} of {self.relevant:,} with a relevant document"


class _Record(TypedDict, total=False):
    """The fields of ``overlap.json`` for later jobs."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc] # as pydantic has it

    fingerprint: str
    sets: dict[str, Overlap]


def prepare_overlap(config: Config, session: Callable[[], SparkSession]) -> None:
    """Match the evaluation sets with the training pairs, unless nothing has changed since.

    An unreadable set is left out, with a warning: an evaluation refuses it. ``session`` starts
    Spark, only where needed.
    """
    corpus, named = PreparedFolder.of(config).corpus, _foreign_sets(config)
    fingerprint = _fingerprint(config, named)
    if not named or _read(corpus.overlap).get("fingerprint") == fingerprint:
        return
    found = measure_overlap(session(), config, named, PreparedFolder.of(config).path)
    record = {name: asdict(overlap) for name, overlap in found.items()}
    storage.write_json(corpus.overlap, {"fingerprint": fingerprint, "sets": record})


def measure_overlap(
    session: SparkSession, config: Config, named: Sequence[NamedSet], folder: Location
) -> dict[str, Overlap]:
    """Match sets with the training pairs, log the overlaps, and return them by name.

    Unreadable sets, and those of another kind, are left out. ``folder`` is the job's, for
    intermediate files.
    """
    from pipelines.spark.frames import Scratch

    corpus = PreparedFolder.of(config).corpus
    found: dict[str, Overlap] = {}
    # The name marks it for removal by the next job, should this process be killed.
    with Scratch(storage.aside_name(folder / "overlap", ".part")) as scratch:
        for named_set in named:
            name = named_set.name
            try:
                tables = named_set.read(session, config)
            except InputError as error:
                logger.warning("%s is not compared with the training pairs: %s", name, error)
                continue
            overlap = _overlap(session, corpus, tables, config.corpus, scratch)
            if overlap is not None:
                found[name] = overlap
                log = logger.warning if overlap.seen else logger.info
                log("%s: %s", name, overlap)
    return found


def keep_overlap(prepared: PreparedFolder, run: RunFolder) -> None:
    """Copy the overlap record of the training pairs to a run folder, and warn of overlaps."""
    # A record of an earlier training in this folder would be of other pairs.
    run.overlap.unlink(missing_ok=True)
    if prepared.corpus.overlap.is_file():
        storage.write_json(run.overlap, records.read_object(prepared.corpus.overlap))
        for name, overlap in _read(run.overlap).get("sets", {}).items():
            if overlap.seen:
                logger.warning("%s: %s", name, overlap)


def overlap_of_run(
    session: SparkSession, config: Config, run: RunFolder, digests: Mapping[str, str]
) -> dict[str, Overlap]:
    """Return the known overlaps of the run's training pairs, by set.

    Sets without a match by its preparation are matched now, if its pairs are still there.
    ``digests`` are the present ones of the sets.
    """
    known = {
        name: overlap
        for name, overlap in _read(run.overlap).get("sets", {}).items()
        if digests.get(name) == overlap.digest
    }
    missing = [named for named in _foreign_sets(config) if named.name not in known]
    if missing and _has_its_pairs(config, run):
        known |= measure_overlap(session, config, missing, run.path)
    return known


def _foreign_sets(config: Config) -> list[NamedSet]:
    """Return the sets from outside the corpus: its preparation keeps held-out texts apart."""
    return [named for named in named_sets(config) if not named.evaluation.held_out]


def _has_its_pairs(config: Config, run: RunFolder) -> bool:
    """Tell whether the prepared folder still holds a run's training pairs."""
    from pipelines.lanes.files import LaneManifest

    prepared = PreparedFolder.of(config)
    if not (prepared.lanes.manifest.is_file() and prepared.corpus.pairs.is_dir()):
        return False
    manifest = LaneManifest.load(prepared.lanes.path)
    plan = records.read_object(run.plan) if run.plan.is_file() else {}
    return plan.get("prepared.folder") == f"lanes {manifest.digest}"


def _fingerprint(config: Config, named: Sequence[NamedSet]) -> str:
    sets = [
        [named_set.name, named_set.evaluation.name, *_stamps(config, named_set.given)]
        for named_set in named
    ]
    settings = [config.corpus.near_duplicates, config.corpus.redact]
    reading = config.evaluation.model_dump(mode="json", exclude=_NOT_OF_SETS)
    # Another release may read and match differently.
    content = json.dumps([__version__, sets, settings, reading])
    return hashlib.sha256(content.encode()).hexdigest()


def _stamps(config: Config, given: str) -> list[str | list[str | int]]:
    """Return the name of a set, and the stamps of its files, if any."""
    follow, files = config.evaluation.follow_links, list[Location]()
    try:
        if is_pair_file(given):
            files += find_files([given], COLUMNS, stores=config.storage, follow_links=follow)
        else:
            files += files_of_set(given, config.storage, follow_links=follow)
    except InputError:
        # `measure_overlap` warns of it when it reads the set.
        return [given]
    return [given, *map(stamp_of, files)]


def _read(path: Location) -> _Record:
    """Read the record; an empty one where there is none, as in folders of earlier releases."""
    found: _Record = records.read(path, _Record) if path.is_file() else {}
    return found


def _judged(tables: Tables) -> tuple[DataFrame, str] | None:
    """Return `item`, `first`, `second`: a query and a relevant document, or texts of a pair."""
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    if "pairs" in tables:
        pairs, hashed = tables["pairs"], F.xxhash64("text_0", "text_1")
        judged = pairs.select(hashed, "text_0", "text_1").toDF("item", "first", "second")
        return judged.dropDuplicates(["item"]), PAIRS
    if "asked" in tables:
        documents = tables["documents"].withColumnRenamed("text", "second")
        judged = tables["asked"].join(documents, "document_id", "left")
        return judged.selectExpr("query_id AS item", "text AS first", "second"), QUERIES
    return None


def _overlap(
    session: SparkSession,
    corpus: CorpusFolder,
    tables: Tables,
    settings: CorpusSettings,
    scratch: Scratch,
) -> Overlap | None:
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    found = _judged(tables)
    if found is None:
        return None
    judged, of = found
    sides = ("first", "second")
    keyed = judged.select("item", *(F.xxhash64(side).alias(side) for side in sides))
    texts = judged.select(F.explode(F.array(*sides)).alias("text")).where("text is not null")
    seen = scratch.keep(_seen(session, corpus, texts.distinct(), settings, scratch))
    firsts = keyed.join(seen.toDF("first", "row", "place"), "first")
    # One training text may be like both texts of a pair, so their places must differ.
    both = firsts.join(seen.toDF("second", "row", "second_place"), ["second", "row"])
    both = both.where("place != second_place")
    relevant = both.select("item", "second").distinct().count()
    distinct = F.countDistinct("item")
    counted = keyed.agg(distinct.alias("items"), F.count("*").alias("relevant")).collect()[0]
    asked = relevant if of == PAIRS else firsts.agg(distinct).collect()[0][0]
    return Overlap(
        digest=digest_tables(*tables.values()),
        of=of,
        items=counted["items"],
        seen=asked,
        relevant=counted["relevant"],
        seen_relevant=relevant,
    )


def _seen(
    session: SparkSession,
    corpus: CorpusFolder,
    texts: DataFrame,
    settings: CorpusSettings,
    scratch: Scratch,
) -> DataFrame:
    """Return by `reference`, a text's hash, the `row` and `place` of training texts like it."""
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    from pipelines.corpus.cleaning.rules import text_key
    from pipelines.corpus.dedup.marks import MOST_BROADCAST, comparable, exclude_threshold
    from pipelines.corpus.dedup.near_duplicates import near_match_pairs
    from pipelines.spark.frames import read_parquet

    named = texts.select(F.xxhash64("text").alias("reference"), "text")
    kept = scratch.keep_counted(comparable(named, settings))
    cleaned = kept.frame
    negatives = F.coalesce("negatives", F.array().cast("array<string>"))
    trained = (
        read_parquet(session, corpus.pairs)
        .select("id", F.posexplode(F.concat(F.array("anchor", "positive"), negatives)))
        .toDF("row", "place", "text")
        .where("text is not null")
    )
    keys = cleaned.select("reference", text_key(F.col("text")).alias("key"))
    keys = F.broadcast(keys) if kept.rows <= MOST_BROADCAST else keys
    exact = trained.withColumn("key", text_key(F.col("text"))).join(keys, "key")
    found = exact.select("reference", "row", "place")
    similarity = exclude_threshold(settings)
    if similarity:
        hashed = F.xxhash64("text").alias("key")
        reference = scratch.keep_counted(cleaned.select(hashed, "text").dropDuplicates(["key"]))
        by_key = trained.select(hashed, "text", "row", "place")
        near = near_match_pairs(by_key, reference, similarity, scratch)
        back = cleaned.select(hashed, "reference").withColumnRenamed("key", "other")
        nearly = by_key.join(near.join(back, "other"), "key")
        found = found.unionByName(nearly.select("reference", "row", "place"))
    return found.distinct()
