"""The job `mine`: pairs in, the same pairs with hard negatives out, part by part.

First Spark brings together the different texts and where those of each pair are
(:mod:`pipelines.vectors.mining_texts`). Then executors embed each text once, as the job `embed`
does. At last they search the documents for the pairs of one file after the other
(:mod:`pipelines.vectors.mining_plan`). What is written stays, so that a killed job goes on; the
table takes its place when it is whole.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

import pyarrow as pa

from pipelines.catalog import SEARCHES
from pipelines.errors import InputError
from pipelines.files import records, storage, versions
from pipelines.files.locations import Location, RemotePath
from pipelines.models.inference.backends import choose_backend
from pipelines.progress import activity
from pipelines.settings import Config
from pipelines.spark.capacity import task_threads
from pipelines.spark.session import running_tasks
from pipelines.spark.tasks import collect_from_tasks
from pipelines.vectors import making
from pipelines.vectors.column import backend_for
from pipelines.vectors.embedding import Columns, EmbeddingOptions
from pipelines.vectors.making import (
    KEPT_SO_FAR,
    PartsProgress,
    new_attempts,
    precision_of,
    run_job,
    signs,
)
from pipelines.vectors.mining_inputs import (
    check_sources,
    damage_told,
    has_groups,
    read_documents,
    read_pairs,
)
from pipelines.vectors.mining_plan import (
    MANIFEST_FILE,
    WORK,
    MiningSummary,
    PartFigures,
    Texts,
    Work,
    added_up,
    begin,
    finished,
    make_parts,
    options_of,
    output_folder,
    plan_of,
    prompts_of,
    read_figures,
    write_plan,
)
from pipelines.vectors.mining_texts import ANCHORS, DOCUMENTS, PAIRS, Staged, stage
from pipelines.vectors.parts import RowRange, in_threads, read_part_footer
from pipelines.vectors.plan import ATTEMPTS, take_place
from pipelines.vectors.store import VectorFile, VectorTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


logger = logging.getLogger(__name__)

VECTORS = "vectors"
"""Folder of the work, in it one of documents and one of anchors."""
COLUMNS = Columns(text="text", vector="vector")


def check_job(config: Config) -> None:
    """Checks all that can be checked without Spark.

    Raises:
        InputError: Model, inputs or settings cannot be used, or the output is of something else.
    """
    SEARCHES.load(config.mining.search).check()
    options = options_of(config)
    check_sources(config)
    finished(config, plan_of(config, options))


def mine_negatives(session: SparkSession, config: Config) -> MiningSummary:
    """Searches negatives for the pairs of ``mining.inputs``, into ``mining.output``.

    The caller holds the lock of the output.

    Args:
        session: Its executors embed and search.
        config: The sections ``mining`` and ``embedding``.

    Raises:
        InputError: See :func:`check_job`, or no pair has enough negatives.
        PipelineError: Spark's job failed or stood still; what is done is kept.
    """
    folder = output_folder(config)
    storage.settle(folder)
    backend = backend_for(session, config.embedding.backend)
    options = options_of(config, task_threads(session), backend)
    plan = plan_of(config, options)
    if finished(config, plan):
        summary = _summary_of(versions.current(folder))
        logger.info("mining: %s", summary)
        return summary
    made, plan = begin(folder, plan)
    if plan.precision == "auto":
        plan = replace(plan, precision=precision_of(session, options))
        write_plan(made, plan)
    options = replace(options, backend=choose_backend(plan.backend), precision=plan.precision)
    if (made / MANIFEST_FILE).is_file():
        # The job before was killed while its table was about to take its place.
        summary = _summary_of(made)
    else:
        summary = _Making(session, config, made, options).made()
        for line in summary.lines():
            logger.info("mining: %s", line)
    for name in (WORK, ATTEMPTS):
        storage.discard_folder(made / name)
    take_place(made, folder)
    return replace(summary, folder=str(versions.current(folder)))


def _summary_of(folder: Location) -> MiningSummary:
    """Of a table that is whole, in a run that did nothing."""
    again = {"folder": str(folder), "searched": 0, "embedded": 0}
    return records.built(
        folder / MANIFEST_FILE, lambda known: MiningSummary(**{**known["figures"], **again})
    )


@dataclass(frozen=True)
class _Making:
    """A table that is being made.

    Attributes:
        session: Has executors.
        config: The settings.
        folder: Of the table, until it takes its place.
        options: How texts are embedded.
    """

    session: SparkSession
    config: Config
    folder: Location
    options: EmbeddingOptions

    @property
    def work(self) -> Location:
        """What goes when the table is whole."""
        return self.folder / WORK

    def made(self) -> MiningSummary:
        """Makes what is missing of the table, and its manifest."""
        with activity("mining", "bringing texts together", running_tasks):
            staged = Staged.read_from(self.work) or self._stage()
        texts, embedded = self._embed(staged)
        SEARCHES.load(self.config.mining.search).prepare(self.session, texts.documents)
        began = time.monotonic()
        searched = self._search(staged, texts)
        seconds = round(time.monotonic() - began, 2)
        parts = in_threads(read_figures, [self._part(name) for name in staged.names(PAIRS)])
        summary = self._summary(staged, added_up(parts), searched, embedded, seconds)
        self._write_manifest(summary)
        return summary

    def _part(self, name: str) -> Location:
        return self.folder / f"{name}.parquet"

    def _stage(self) -> Staged:
        """Brings together texts and pairs."""
        settings, rows = self.config.mining, self.work / "input"
        storage.discard_folder(self.work)
        output = output_folder(self.config)
        query, document = prompts_of(self.options).sides

        def act() -> Staged:
            with damage_told(self.session, self.config):
                return stage(
                    read_pairs(self.session, self.config, rows, output),
                    read_documents(self.session, self.config, rows, output),
                    self.work,
                    asked_rows=settings.part_rows,
                    parts_of_file=SEARCHES.load(settings.search).parts_of_file,
                    alike=query == document,
                )

        return run_job(self.session, "mining: bringing texts together", act)

    def _embed(self, staged: Staged) -> tuple[Texts, int]:
        """Embeds what has no vector yet; returns how many texts that were, too."""
        sides = zip((ANCHORS, DOCUMENTS), prompts_of(self.options).sides, strict=True)
        embedded, tables = 0, {}
        for name, prompt in sides:
            rows = staged.rows[name]
            source, vectors = self.work / name, self.work / VECTORS / name
            parts = [
                RowRange(part, source / f"{part}.parquet", 0, count)
                for part, count in zip(staged.names(name), rows.values(), strict=True)
            ]
            missing = [part for part in parts if not is_whole(vectors / f"{part.name}.parquet")]
            options = replace(self.options, prompt_name=prompt)
            embedded += making.make_parts(self.session, vectors, parts, missing, options, COLUMNS)
            tables[name] = _vector_table(vectors, parts, options)
        return Texts(tables[DOCUMENTS], tables[ANCHORS] if staged.rows[ANCHORS] else None), embedded

    def _search(self, staged: Staged, texts: Texts) -> int:
        """Makes the files that are missing; returns how many pairs were searched."""
        names = staged.names(PAIRS)
        missing = [name for name in names if not is_whole(self._part(name))]
        if not missing:
            return 0
        attempts = self.folder / new_attempts(self.folder)
        work = Work(
            settings=self.config.mining,
            pairs=self.work / PAIRS,
            texts=texts,
            folder=self.folder,
            attempts=attempts,
            threads=self.options.threads,
        )
        act = partial(
            collect_from_tasks,
            self.session,
            [[name] for name in missing],
            partial(_work_on_tasks, work=work),
        )
        rows = staged.rows[PAIRS].values()
        parts = [
            RowRange(name, self._part(name), 0, count)
            for name, count in zip(names, rows, strict=True)
        ]
        with PartsProgress(self.folder, parts, "mining"):
            return sum(run_job(self.session, "mining", act, signs(attempts), KEPT_SO_FAR))

    def _summary(
        self, staged: Staged, total: PartFigures, searched: int, embedded: int, seconds: float
    ) -> MiningSummary:
        """Adds up what the parts came to.

        Raises:
            InputError: Nothing has been mined.
        """
        settings = self.config.mining
        if not total.written:
            most = max(total.dropped, key=lambda reason: total.dropped[reason], default=None)
            told = f", most often dropped: {most}" if most and total.dropped[most] else ""
            raise InputError(
                "mining.negatives",
                f"no anchor has {settings.negatives} documents that pass the filters{told}",
                "ask for fewer, name more mining.documents, loosen the filters, or set "
                "mining.fill=random",
            )
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
            of_own_group=total.of_own_group / total.negatives if has_groups(self.config) else None,
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
            "negatives": self.config.mining.negatives,
            "model": str(self.options.model),
            "backend": self.options.backend,
            "precision": self.options.precision,
            "anchors_per_second": round(summary.rate, 1),
            "figures": figures,
        }
        storage.write_json(self.folder / MANIFEST_FILE, manifest)


def _work_on_tasks(tasks: Iterator[Sequence[str]], *, work: Work) -> Iterator[int]:
    """Runs on an executor."""
    return (rows for names in tasks for rows in make_parts(names, work=work))


def _vector_table(
    folder: Location, parts: Sequence[RowRange], options: EmbeddingOptions
) -> VectorTable:
    """The table of vectors that parts make, in a folder."""
    firsts = accumulate((part.rows for part in parts), initial=0)
    files = (
        VectorFile(folder / f"{part.name}.parquet", first, part.rows)
        for part, first in zip(parts, firsts, strict=False)
    )
    return VectorTable(
        folder=folder,
        files=tuple(files),
        vector=COLUMNS.vector,
        scale=None,
        text=COLUMNS.text,
        model=str(options.model),
        dimensions=options.dimensions,
    )


def is_whole(file: Location) -> bool:
    """Whether a file is there, as a whole: what is left of an upload that broke off is not."""
    if not file.is_file():
        return False
    if isinstance(file, RemotePath):
        try:
            read_part_footer(file)
        except pa.ArrowInvalid:
            return False
    return True
