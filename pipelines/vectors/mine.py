"""The job `mine`: pairs in, the same pairs with hard negatives out, part by part.

Spark first collects the distinct texts and the places of each pair's texts
(:mod:`pipelines.vectors.mining_texts`). Executors then embed each text once, as the job `embed`
does, and search the documents for the pairs of one file after the other
(:mod:`pipelines.vectors.mining_parts`).

`_mining.json` names the sources of a table, and is the first file in its folder. `_work` holds
texts, vectors and pairs until the table is whole.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pipelines.catalog import SEARCHES
from pipelines.errors import InputError
from pipelines.files import records, storage, versions
from pipelines.files.begun import beginning, begun_folders, check_places, discard_begun, take_place
from pipelines.files.copies import local_folder
from pipelines.files.locations import Location, listed, location
from pipelines.files.ownership import NEGATIVES
from pipelines.models.identity import has_made
from pipelines.models.inference.backends import choose_backend
from pipelines.progress import activity
from pipelines.settings import Config, MiningSettings
from pipelines.spark.session import running_tasks
from pipelines.tokens.start import read_prompts
from pipelines.vectors.column import options_in
from pipelines.vectors.embed import make_vectors, precision_of
from pipelines.vectors.embedding import Columns, EmbeddingOptions, refuse_int8
from pipelines.vectors.mining_inputs import (
    INPUTS,
    MORE_DOCUMENTS,
    check_sources,
    has_groups,
    mining_sources,
    read_documents,
    read_pairs,
    stamps,
)
from pipelines.vectors.mining_parts import PartFigures, Texts, Work, mine_parts
from pipelines.vectors.mining_texts import ANCHORS, DOCUMENTS, PAIRS, Staged, stage
from pipelines.vectors.parts import RowRange, in_threads
from pipelines.vectors.plan import options_for
from pipelines.vectors.sources import damage_told
from pipelines.vectors.store import VectorTable, table_of_parts
from pipelines.vectors.table_job import (
    ATTEMPTS,
    MANIFEST_FILE,
    make_parts,
    missing_parts,
    run_job,
    working_on,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

PLAN_FILE = "_mining.json"
WORK = "_work"
VECTORS = "vectors"
"""Folder of the work, with a folder for documents and one for anchors."""
COLUMNS = Columns(text="text", vector="vector")
OUTPUT = "mining.output"
MODEL = "mining.model"
FORM = 1
"""Version of the work's files: a release does not continue from another version."""

_FORM_KEY = "form"
_NOT_OF_PLAN = ("output", "overwrite", "model", "inputs", "documents")
_OF_TEXTS = (
    *("format", "anchor_column", "positive_column", "group_column", "key_column"),
    *("documents_format", "documents_column", "documents_group_column", "part_rows"),
)


@dataclass(frozen=True)
class MiningSummary:
    """The result of a job.

    Attributes:
        folder: The table; in a store, its current version.
        read: Rows of the input.
        without_text: Rows of the input without an anchor or a positive.
        repeated: Duplicate pairs.
        short: Pairs left out because they have too few negatives.
        filled: Rows of the table with negatives drawn at random.
        documents: Searched texts.
        dropped: Documents dropped by filters, by reason.
        of_own_group: Share of negatives of their anchor's group; None without groups.
        positive_score: Mean cosine of the written anchors and positives.
        negative_score: Mean cosine of the written anchors and negatives.
        searched: Pairs searched by this run, in ``seconds``.
        embedded: Texts embedded by this run.
    """

    folder: str
    read: int
    without_text: int
    repeated: int
    short: int
    rows: int
    filled: int
    documents: int
    dropped: Mapping[str, int]
    of_own_group: float | None
    positive_score: float | None
    negative_score: float | None
    searched: int
    embedded: int
    seconds: float

    @classmethod
    def read_again(cls, folder: Location) -> MiningSummary:
        """Return the result of a finished table, for a run without any work."""
        again = {"folder": str(folder), "searched": 0, "embedded": 0}
        return records.built(
            folder / MANIFEST_FILE, lambda known: cls(**{**known["figures"], **again})
        )

    @property
    def rate(self) -> float:
        """Pairs searched per second."""
        return self.searched / max(self.seconds, 1e-9)

    def lines(self) -> list[str]:
        """Return the lines to print at the end."""
        if not self.searched and not self.embedded:
            return [f"nothing to mine: all {self.rows:,} rows have negatives"]
        lines = [
            f"{self.searched:,} pairs searched in {self.documents:,} documents, "
            f"{self.rate:,.0f} anchors/s ({self.seconds:.0f} s)",
            f"{self.rows:,} of {self.read:,} rows written; left out: {self.without_text:,} without "
            f"text, {self.repeated:,} repeated, {self.short:,} with too few negatives",
        ]
        if any(self.dropped.values()):
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.dropped.items())
            lines.append(f"dropped documents nearer than the negatives: {reasons}")
        if self.filled:
            lines.append(f"{self.filled:,} rows have random negatives")
        if self.positive_score is not None and self.negative_score is not None:
            lines.append(
                f"mean cosine of positives {self.positive_score:.3f}, "
                f"of negatives {self.negative_score:.3f}"
            )
        if self.of_own_group:
            lines.append(f"{self.of_own_group:.1%} of the negatives belong to the anchor's group")
        return lines

    def __str__(self) -> str:
        return self.lines()[0]


@dataclass(frozen=True)
class Plan:
    """The plan of a table: the settings behind it, written at its beginning.

    ``texts`` are the settings for texts, vectors and pairs; ``negatives`` all others with effect on
    the table. ``backend`` and ``precision`` are resolved from ``auto``.
    """

    texts: Mapping[str, Any]
    negatives: Mapping[str, Any]
    backend: str
    precision: str

    @classmethod
    def of(cls, config: Config, options: EmbeddingOptions) -> Plan:
        """Return the plan of a new table.

        Raises:
            InputError: An input does not exist.
        """
        asked = config.mining.model_dump(mode="json")
        texts = {
            _FORM_KEY: FORM,
            MODEL: options.model_sha256,
            **stamps(config),
            **{f"mining.{name}": asked[name] for name in _OF_TEXTS},
            # Files of documents are larger for an index.
            "mining.search": asked["search"],
            "embedding.backend": config.embedding.backend,
            "embedding.precision": config.embedding.precision,
            "embedding.batch_tokens": config.embedding.batch_tokens,
            "embedding.dimensions": options.dimensions,
        }
        names = [name for name in MiningSettings.model_fields if f"mining.{name}" not in texts]
        negatives = {f"mining.{name}": asked[name] for name in names if name not in _NOT_OF_PLAN}
        return cls(texts, negatives, options.backend, options.precision)

    @classmethod
    def read(cls, folder: Location, options: EmbeddingOptions) -> Plan | None:
        """Return the plan in a folder, if there is one; it may have an earlier release's digest."""
        path = folder / PLAN_FILE
        known: Plan | None = records.read(path, Plan) if path.is_file() else None
        if known is None or not has_made(str(known.texts.get(MODEL)), options.model):
            return known
        return replace(known, texts={**known.texts, MODEL: options.model_sha256})

    def write(self, folder: Location) -> None:
        """Write the plan into the folder of its table."""
        storage.write_json(folder / PLAN_FILE, asdict(self))

    @property
    def is_dated(self) -> bool:
        """Return whether input changes would be noticed: tables known by name have no version."""
        inputs = (self.texts[INPUTS], self.texts[MORE_DOCUMENTS])
        return all(stamped is None or stamped[1] is not None for stamped in inputs)

    def differing(self, other: Plan) -> str | None:
        """Return the first setting with another value in the other table."""
        asked, known = {**self.texts, **self.negatives}, {**other.texts, **other.negatives}
        return next((key for key in asked if asked[key] != known.get(key)), None)


@dataclass(frozen=True)
class MiningJob:
    """A job of the section ``mining``, with the present state of its model and inputs."""

    config: Config
    options: EmbeddingOptions
    plan: Plan

    @classmethod
    def of(cls, config: Config) -> MiningJob:
        """Check all that can be checked without Spark.

        Raises:
            InputError: Model, inputs or settings cannot be used, or see :meth:`is_done`.
        """
        SEARCHES.load(config.mining.search).check()
        refuse_int8(config.embedding.precision, "mine")
        try:
            options = options_for(config, config.mining.model)
        except InputError as error:
            # Other settings of `embedding` apply to this job too, under their own names.
            if error.key != "embedding.model":
                raise
            raise InputError(MODEL, error.problem, error.remedy) from None
        check_sources(config)
        job = cls(config, options, Plan.of(config, options))
        job.is_done()
        return job

    @property
    def folder(self) -> Location:
        """The place of the table."""
        return location(self.config.mining.output, self.config.storage).expanduser().absolute()

    def is_done(self) -> bool:
        """Return whether this table exists already.

        Raises:
            InputError: The folder holds foreign files, or a different table, without
                ``mining.overwrite``.
        """
        check_places(OUTPUT, self.folder, NEGATIVES)
        known = Plan.read(versions.current(self.folder), self.options)
        if known is None or self.config.mining.overwrite:
            return False
        differing = self.plan.differing(known)
        again = "Set mining.overwrite=true to make it again, or name another mining.output"
        if differing == _FORM_KEY:
            raise InputError(OUTPUT, f"{self.folder} was made by another release", again)
        if differing is not None:
            raise InputError(
                differing, f"{self.folder} was made with another value of this setting", again
            )
        if not self.plan.is_dated:
            problem = f"it is unknown whether they have changed since {self.folder} was made"
            raise InputError(INPUTS, problem, again)
        return True

    @contextmanager
    def working(self) -> Iterator[None]:
        """Keep other jobs from the folder; see :func:`~pipelines.vectors.table_job.working_on`."""
        with working_on(OUTPUT, self.folder, "mine"):
            yield

    def run(self, session: SparkSession) -> MiningSummary:
        """Search negatives for the pairs; the caller holds the lock of the folder.

        Raises:
            InputError: See :meth:`is_done`, or no pair has enough negatives.
            PipelineError: Spark's job failed or stood still; finished parts are kept.
        """
        if self.is_done():
            summary = MiningSummary.read_again(versions.current(self.folder))
            logger.info("mining: %s", summary)
            return summary
        options = options_in(session, self.options, self.config.embedding.backend)
        begun, plan = _begun(self.folder, replace(self.plan, backend=options.backend), options)
        if plan.precision == "auto":
            plan = replace(plan, precision=precision_of(session, options))
            plan.write(begun)
        options = replace(options, backend=choose_backend(plan.backend), precision=plan.precision)
        if (begun / MANIFEST_FILE).is_file():
            # The earlier job was killed just before its finished table took its place.
            summary = MiningSummary.read_again(begun)
        else:
            summary = _Making(session, self, begun, options).made()
            for line in summary.lines():
                logger.info("mining: %s", line)
        for name in (WORK, ATTEMPTS):
            storage.discard_folder(begun / name)
        take_place(begun, self.folder)
        return replace(summary, folder=str(versions.current(self.folder)))


def _begun(folder: Location, plan: Plan, options: EmbeddingOptions) -> tuple[Location, Plan]:
    """Return folder and plan of a table: continue a begun one, with its backend and precision."""
    for place in begun_folders(folder):
        known = Plan.read(place, options)
        if known is None or known.texts != plan.texts:
            continue
        plan = replace(plan, backend=known.backend, precision=known.precision)
        # Texts and vectors stay; only the search depends on these settings.
        if known.negatives != plan.negatives:
            (place / MANIFEST_FILE).unlink(missing_ok=True)
            for file in listed(place, "part-*.parquet"):
                file.unlink()
            plan.write(place)
        logger.info("mining: resuming the table in %s", place)
        return place, plan
    discard_begun(folder)
    with beginning(folder) as begun:
        plan.write(begun.aside)
    return begun.folder, plan


@dataclass(frozen=True)
class _Making:
    """A table in the making; ``folder`` holds it until it takes its place."""

    session: SparkSession
    job: MiningJob
    folder: Location
    options: EmbeddingOptions

    @property
    def settings(self) -> MiningSettings:
        """The section ``mining``."""
        return self.job.config.mining

    @property
    def work(self) -> Location:
        """The temporary folder, removed when the table is whole."""
        return self.folder / WORK

    def made(self) -> MiningSummary:
        """Make the missing parts of the table, and its manifest."""
        # A pair: of queries and of documents.
        prompts = read_prompts(local_folder(self.options.model)).sides
        with activity("mining", "bringing texts together", running_tasks):
            staged = Staged.read_from(self.work) or self._stage(alike=prompts[0] == prompts[1])
        tables, embedded = {}, 0
        for name, prompt in zip((ANCHORS, DOCUMENTS), prompts, strict=True):
            options = replace(self.options, prompt_name=prompt)
            tables[name], count = self._embed(name, staged, options)
            embedded += count
        texts = Texts(tables[DOCUMENTS], tables[ANCHORS] if staged.rows[ANCHORS] else None)
        SEARCHES.load(self.settings.search).prepare(self.session, texts.documents)
        began = time.monotonic()
        searched = self._search(staged, texts)
        seconds = round(time.monotonic() - began, 2)
        files = [self.folder / f"{name}.parquet" for name in staged.names(PAIRS)]
        total = PartFigures.total(in_threads(PartFigures.read, files))
        summary = self._summary(staged, total, searched, embedded, seconds)
        self._write_manifest(summary)
        return summary

    def _stage(self, *, alike: bool) -> Staged:
        """Collect texts and pairs."""
        config, rows, output = self.job.config, self.work / "input", self.job.folder
        # Remains of a killed job: it had not staged all texts.
        storage.discard_folder(self.work)

        def act() -> Staged:
            with damage_told(self.session, config, mining_sources(config)):
                return stage(
                    read_pairs(self.session, config, rows, output),
                    read_documents(self.session, config, rows, output),
                    self.work,
                    asked_rows=self.settings.part_rows,
                    parts_of_file=SEARCHES.load(self.settings.search).parts_of_file,
                    alike=alike,
                )

        return run_job(self.session, "mining: bringing texts together", act)

    def _embed(
        self, name: str, staged: Staged, options: EmbeddingOptions
    ) -> tuple[VectorTable, int]:
        """Embed the texts of a folder without a vector; return the table and their number."""
        rows = dict(zip(staged.names(name), staged.rows[name].values(), strict=True))
        source, folder = self.work / name, self.work / VECTORS / name
        parts = [RowRange(part, source / f"{part}.parquet", 0, rows[part]) for part in rows]
        names = {*missing_parts(folder, rows)}
        missing = [part for part in parts if part.name in names]
        embedded = make_vectors(self.session, folder, parts, missing, options, COLUMNS)
        return table_of_parts(folder, rows, options, COLUMNS), embedded

    def _search(self, staged: Staged, texts: Texts) -> int:
        """Make the missing files; return the number of searched pairs."""
        rows = dict(zip(staged.names(PAIRS), staged.rows[PAIRS].values(), strict=True))
        work = Work(
            settings=self.settings,
            pairs=self.work / PAIRS,
            texts=texts,
            folder=self.folder,
            threads=self.options.threads,
        )
        # Pairs may be left out, so the number of rows in a file is unknown.
        tasks = [[name] for name in missing_parts(self.folder, dict.fromkeys(rows))]
        make = partial(mine_parts, work=work)
        return sum(make_parts(self.session, "mining", self.folder, rows, tasks, make))

    def _summary(
        self, staged: Staged, total: PartFigures, searched: int, embedded: int, seconds: float
    ) -> MiningSummary:
        """Return the totals of the parts; refuse a table without any row."""
        if not total.written:
            most = max(total.dropped, key=lambda reason: total.dropped[reason], default=None)
            reason = f" (most often dropped: {most})" if most and total.dropped[most] else ""
            raise InputError(
                "mining.negatives",
                f"no anchor has {self.settings.negatives} documents that pass the filters{reason}",
                "Ask for fewer, name more mining.documents, loosen the filters, or set "
                "mining.fill=random",
            )
        grouped = has_groups(self.job.config)
        return MiningSummary(
            folder=str(self.folder),
            read=staged.read,
            without_text=staged.without_text,
            repeated=total.repeated,
            short=total.short,
            rows=total.written,
            filled=total.filled,
            documents=sum(staged.rows[DOCUMENTS].values()),
            dropped=total.dropped,
            of_own_group=total.of_own_group / total.negatives if grouped else None,
            positive_score=round(total.positive_scores / total.written, 6),
            negative_score=round(total.negative_scores / total.negatives, 6),
            searched=searched,
            embedded=embedded,
            seconds=seconds,
        )

    def _write_manifest(self, summary: MiningSummary) -> None:
        figures = {name: value for name, value in asdict(summary).items() if name != "folder"}
        manifest = {
            "rows": summary.rows,
            "negatives": self.settings.negatives,
            "model": str(self.options.model),
            "backend": self.options.backend,
            "precision": self.options.precision,
            "anchors_per_second": round(summary.rate, 1),
            "figures": figures,
        }
        storage.write_json(self.folder / MANIFEST_FILE, manifest)
