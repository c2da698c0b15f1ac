"""The embedding job: a table in, the same table with vectors out, part by part.

The plan of the parts comes first (:mod:`pipelines.vectors.plan`). Parts of unchanged input files
are linked from the earlier table. Rows of other files are compared with that table by key, and
their parts get the vectors of equal texts (:mod:`pipelines.vectors.keys`). Executors make the
missing parts. The log of changed keys follows (:mod:`pipelines.vectors.row_changes`), and
`_manifest.json` comes last; then the table takes its place (:mod:`pipelines.vectors.table_job`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from pipelines.arrow_columns import is_key, is_read_by_spark, is_text
from pipelines.corpus.readers.inputs import has_columns
from pipelines.errors import InputError, PipelineError
from pipelines.files import storage, versions
from pipelines.files.begun import beginning, begun_folders
from pipelines.files.copies import local_folder
from pipelines.files.locations import Location, as_remote
from pipelines.models.inference.backends import INT8, choose_backend, choose_precision
from pipelines.progress import activity
from pipelines.settings import Config, EmbeddingSettings
from pipelines.spark.capacity import default_parallelism
from pipelines.spark.session import running_tasks
from pipelines.spark.tasks import collect_from_tasks
from pipelines.tokens.start import DOCUMENT, read_prompts
from pipelines.vectors.changes import read_lineage
from pipelines.vectors.column import check_columns, options_in
from pipelines.vectors.embed_parts import embed_parts
from pipelines.vectors.embedding import Columns, EmbeddingOptions, task_device
from pipelines.vectors.inputs import (
    Files,
    check_no_overlap,
    input_stamps,
    parquet_inputs,
    table_files,
)
from pipelines.vectors.int8 import (
    CALIBRATION_FILE,
    Int8Form,
    Judge,
    calibrate_table,
    check_judged,
)
from pipelines.vectors.keys import compare_rows
from pipelines.vectors.merge import check_target, merge_table
from pipelines.vectors.parts import (
    Constants,
    PartFooter,
    PartSize,
    RowRange,
    cut_file,
    in_threads,
    partition_columns,
    read_part_footer,
    tasks,
)
from pipelines.vectors.plan import (
    INPUTS,
    KEY_COLUMN,
    LAYOUT_KEYS,
    OUTPUT,
    VECTOR_KEYS,
    Changes,
    Plan,
    Version,
    Work,
    choose_work,
    digest_known_in,
    options_for,
    output_folder,
    part_file,
    publish,
    read_version,
)
from pipelines.vectors.row_changes import (
    Compare,
    Logged,
    RowChanges,
    compare_on_spark,
    log_changes,
)
from pipelines.vectors.row_deletion import DeletedRows, read_deleted, write_deleted
from pipelines.vectors.store import open_table
from pipelines.vectors.table_job import (
    ATTEMPTS,
    KEPT,
    MANIFEST_FILE,
    PLAN_FILE,
    STAGED,
    make_parts,
    run_job,
    working_on,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EmbeddingSummary:
    """The result of a job.

    ``folder`` is the table, in a store its current version. ``rows`` and ``texts`` (rows with a
    text) count the whole table; ``embedded`` counts the rows embedded by this run in ``seconds``.
    ``changes`` are since the version before, if both are compared by key; ``int8`` has the figures
    of int8 matrix products.
    """

    folder: str
    rows: int
    texts: int
    embedded: int
    seconds: float
    dimensions: int
    changes: RowChanges | None = None
    int8: Int8Form | None = None

    def __str__(self) -> str:
        kept = self.rows - self.embedded
        if not self.embedded:
            return f"nothing to embed: all {self.rows} rows have vectors"
        rate = self.embedded / max(self.seconds, 1e-9)
        text = f"{self.embedded} rows embedded, {rate:.0f} sentences/s ({self.seconds:.0f} s)"
        return text + (f", {kept} already had vectors" if kept else "")


def embed_table(session: SparkSession, config: Config) -> EmbeddingSummary:
    """Embed the table of ``embedding.inputs`` into the folder ``embedding.output``.

    Raises:
        InputError: See :meth:`EmbeddingJob.of` and :meth:`EmbeddingJob.run`.
        PipelineError: The same, or another job works in the folder.
    """
    job = EmbeddingJob.of(config)
    with job.working():
        return job.run(session)


@dataclass(frozen=True)
class EmbeddingJob:
    """A job of the section ``embedding``, with the present state of its model and inputs.

    ``identity`` decides the content of the table, by setting.
    """

    config: Config
    options: EmbeddingOptions
    identity: Mapping[str, Any]

    @classmethod
    def of(cls, config: Config) -> Self:
        """Read the model, ``<run.folder>/model`` unless named, and the inputs.

        Raises:
            InputError: Model or inputs are missing, do not fit the settings, or overlap with the
                output.
        """
        settings, stores = config.embedding, config.storage
        options = options_for(
            config,
            settings.model,
            prompt_name=settings.prompt_name,
            quantise=settings.quantise,
        )
        if settings.inputs:
            check_no_overlap(settings, output_folder(config), stores)
        asked = settings.model_dump(mode="json")
        followed = (key.removeprefix("embedding.") for key in (*LAYOUT_KEYS, *VECTOR_KEYS[1:]))
        identity = {
            "embedding.model": digest_known_in(output_folder(config), options, stores),
            INPUTS: [list(settings.inputs), input_stamps(settings, stores)],
            **{f"embedding.{name}": asked[name] for name in followed},
            KEY_COLUMN: settings.key_column,
        }
        return cls(config, options, identity)

    @property
    def settings(self) -> EmbeddingSettings:
        """The section ``embedding``."""
        return self.config.embedding

    @property
    def folder(self) -> Location:
        """The place of the table."""
        return output_folder(self.config)

    @property
    def columns(self) -> Columns:
        """The columns of text and vectors."""
        return Columns(text=self.settings.text_column, vector=self.settings.output_column)

    def is_up_to_date(self) -> bool:
        """Return whether the table is finished, and has the same model, inputs and settings."""
        version = read_version(versions.current(self.folder), self.config.storage)
        # Tables known by name have no version, so their changes go unnoticed.
        is_dated = self.identity[INPUTS][1] is not None
        return (
            version is not None
            and version.is_whole
            and is_dated
            and version.plan.identity == self.identity
        )

    def work(self) -> Work:
        """Return the work to do.

        Raises:
            InputError: See :func:`~pipelines.vectors.plan.choose_work`.
        """
        overwrite, stores = self.settings.overwrite, self.config.storage
        return choose_work(self.folder, self.identity, overwrite=overwrite, stores=stores)

    def check(self) -> None:
        """Check all that can be checked without Spark.

        Raises:
            InputError: A column or a key cannot be used, or the folder holds another table.
        """
        self.work()
        # The columns of other formats are known only once they are read.
        if self.settings.format == "parquet":
            named = self._partition_columns()
            _check_files((parquet_inputs(self.settings, self.config.storage), named), self)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Keep other jobs from the folder; see :func:`~pipelines.vectors.table_job.working_on`."""
        with working_on(OUTPUT, self.folder, "embed"):
            yield

    def run(self, session: SparkSession, judge: Judge | None = None) -> EmbeddingSummary:
        """Make the missing parts of the table; the caller holds the lock of its folder.

        New int8 matrix products are measured by ``judge`` on judged sets, if any.

        The output has all columns of the input, then the vectors: lists of one size, float32 or
        int8. Parts of the same job are kept; with ``embedding.key_column``, also vectors of an
        earlier one. A new table replaces another only when it is whole.

        Raises:
            InputError: Input, column or key cannot be used, or the folder holds another table.
            PipelineError: Spark's job failed or stood still; finished parts are kept.
        """
        check_target(session, self.settings, self.folder, self.config.storage)
        work = self.work()
        options = options_in(session, self.options, self.settings.backend)
        version = work.goes_on
        if version is None:
            with activity("embedding", "planning the parts", running_tasks):
                options = _as_before(session, options, work, self.identity)
                _tell_of_prompts(options)
                _tell_of_scales(options, self.columns)
                version = new_version(session, replace(self, options=options), work, judge)
        plan = version.plan
        # An unfinished table keeps its backend and precision, whatever `auto` would be now.
        options = replace(
            options,
            backend=choose_backend(plan.backend),
            precision=plan.precision,
            calibration=None if plan.int8 is None else version.folder / CALIBRATION_FILE,
        )
        began = time.monotonic()
        missing = version.missing()
        embedded = make_vectors(session, version.folder, plan.parts, missing, options, self.columns)
        logged = self.log(version, partial(compare_on_spark, session))
        summary = finish(version, options, self.columns, embedded, began, logged)
        publish(version, self.folder)
        logger.info("embedding: %s", summary)
        table = versions.current(self.folder)
        merge_table(session, self.settings, table, self.config.storage)
        return replace(summary, folder=str(table))

    def log(self, version: Version, compare: Compare) -> Logged | None:
        """Write the log of changes of a version with all of its parts, unless it has one.

        None for a whole table of an earlier release.

        Raises:
            PipelineError: See :func:`~pipelines.vectors.row_changes.log_changes`.
        """
        current = versions.current(self.folder)
        known = read_lineage(version.folder)
        if version.is_whole and (known is not None or version.folder == current):
            return None if known is None else Logged(known, None)
        before = None if version.folder == current else read_version(current, self.config.storage)
        return log_changes(
            version,
            before if before is not None and before.is_whole else None,
            compare,
            model_digest=self.options.made_by,
            keep=self.settings.keep_changes,
        )

    def _partition_columns(self) -> Mapping[Location, Constants]:
        settings = self.settings
        return partition_columns(
            settings.inputs, self.config.storage, follow_links=settings.follow_links
        )


def _as_before(
    session: SparkSession, options: EmbeddingOptions, work: Work, identity: Mapping[str, Any]
) -> EmbeddingOptions:
    """Return the options with the backend and precision of the vectors to keep, if any."""
    for version in work.before:
        if not version.other_vectors(identity):
            plan = version.plan
            return replace(options, backend=plan.backend, precision=plan.precision)
    return replace(options, precision=precision_of(session, options))


def precision_of(session: SparkSession, options: EmbeddingOptions) -> str:
    """Return the precision of a whole table; an executor resolves ``auto``."""
    return precision_on_executors(session, options.precision, options.backend)


def precision_on_executors(session: SparkSession, precision: str, backend: str) -> str:
    """Return a precision; an executor resolves ``auto`` for the device of a backend."""
    if precision != "auto":
        return precision
    ask = partial(_precision_here, backend=backend)
    act = partial(collect_from_tasks, session, [0], ask)
    return str(run_job(session, "which precision", act)[0])


def _precision_here(_: Iterator[int], *, backend: str) -> Iterator[str]:
    """Yield the precision once. Runs on an executor."""
    yield choose_precision("auto", task_device(backend))


def _tell_of_prompts(options: EmbeddingOptions) -> None:
    """Log a hint if the model has a prompt for documents, and these texts get another one."""
    prompts = read_prompts(local_folder(options.model))
    document = prompts.before(DOCUMENT)
    if options.prompt_name is None and document and document != prompts.before():
        logger.info(
            "the model's prompt for documents is `%s`. Set embedding.prompt_name=document if "
            "queries are to find these texts",
            document,
        )


def _tell_of_scales(options: EmbeddingOptions, columns: Columns) -> None:
    """Log how to compare int8 vectors, since other systems do not know the scales."""
    if options.is_quantised:
        logger.info(
            "embedding: int8 vectors are right only under cosine similarity. For inner products "
            "and distances, multiply each by its `%s`",
            columns.scale,
        )


def make_vectors(
    session: SparkSession,
    folder: Location,
    parts: Sequence[RowRange],
    missing: Sequence[RowRange],
    options: EmbeddingOptions,
    columns: Columns,
) -> int:
    """Make the missing parts on the executors; return the number of embedded rows.

    Raises:
        PipelineError: See :func:`~pipelines.vectors.table_job.make_parts`.
    """
    make = partial(
        embed_parts,
        folder=folder,
        options=options,
        columns=columns,
        deleted=read_deleted(folder),
    )
    dealt = tasks(missing, default_parallelism(session))
    rows = {part.name: part.rows for part in parts}
    return sum(make_parts(session, "embedding", folder, rows, dealt, make))


def finish(
    version: Version,
    options: EmbeddingOptions,
    columns: Columns,
    embedded: int,
    began: float,
    logged: Logged | None,
) -> EmbeddingSummary:
    """Check every part, write the manifest, and remove temporary files.

    ``embedded`` counts this run's rows; ``began`` is its start on the monotonic clock. ``logged``
    is None for a whole table of an earlier release.

    Raises:
        PipelineError: A part lacks rows.
    """
    folder, plan = version.folder, version.plan
    footers = in_threads(partial(_footer, folder=folder, column=columns.text), plan.parts)
    summary = EmbeddingSummary(
        folder=str(folder),
        rows=sum(footer.rows for footer in footers),
        texts=sum(footer.texts for footer in footers),
        embedded=embedded,
        seconds=round(time.monotonic() - began, 2),
        dimensions=options.dimensions,
        changes=None if logged is None else logged.changes,
        int8=plan.int8,
    )
    is_recorded = logged is None or logged.lineage == read_lineage(folder)
    if embedded or not (version.is_whole and is_recorded):
        manifest = {
            "rows": summary.rows,
            "texts": summary.texts,
            "left_out": sum(footer.left_out for footer in footers),
            "text_column": columns.text,
            "key_column": plan.identity.get(KEY_COLUMN),
            "vector_column": columns.vector,
            "scale_column": columns.scale if options.is_quantised else None,
            "dimensions": options.dimensions,
            "type": "int8" if options.is_quantised else "float32",
            # Of the vectors as they are stored; None: any that the model was trained for.
            "compare_by": "cosine" if options.is_quantised else None,
            "normalised": options.normalise,
            "model": str(options.model),
            "model_digest": options.made_by,
            "backend": plan.backend,
            "precision": plan.precision,
            "int8": plan.int8 and asdict(plan.int8),
            "build": plan.build,
            **(asdict(logged.lineage) if logged is not None else {}),
            "changes": _counted(plan, summary),
            "parts": {
                part.name: footer.rows for part, footer in zip(plan.parts, footers, strict=True)
            },
            "settings": dict(plan.identity),
            "last_run": {"rows": summary.embedded, "seconds": summary.seconds},
        }
        storage.write_json(folder / MANIFEST_FILE, manifest)
    for name in (STAGED, ATTEMPTS, KEPT):
        storage.discard_folder(folder / name)
    return summary


def _counted(plan: Plan, summary: EmbeddingSummary) -> dict[str, int] | None:
    """Return the numbers of changed rows for the manifest; without a log, those by text alone."""
    if summary.changes is not None:
        return summary.changes.fields(summary.rows)
    return None if plan.changes is None else asdict(plan.changes)


def _footer(part: RowRange, *, folder: Location, column: str) -> PartFooter:
    file = part_file(folder, part)
    footer = read_part_footer(file, column)
    if not footer.covers(part.rows):
        raise PipelineError(f"{file} has {footer.rows} of {part.rows} rows")
    return footer


def new_version(
    session: SparkSession, job: EmbeddingJob, work: Work, judge: Judge | None = None
) -> Version:
    """Begin a table: write its plan into a folder apart from the existing table.

    The options of ``job`` are resolved, not ``auto``; ``work`` holds the reusable tables.
    For ``judge`` see :meth:`EmbeddingJob.run`.

    Raises:
        InputError: The input cannot be used, or a key is missing or repeated.
        PipelineError: Spark could not compare keys.
    """
    home, options = job.folder, job.options
    before = usable(work.before, home, job.identity)
    _clear_unplanned(home)
    with beginning(home) as begun:
        aside = begun.aside
        files = table_files(session, job.settings, job.config.storage, aside, home)
        _check_files(files, job)
        if unknown := _unknown_to_spark(files):
            logger.warning(
                "embedding: Spark does not read a table with %s, but pandas and pyarrow do", unknown
            )
        deleted = read_deleted(versions.current(home))
        if deleted is not None:
            _check_deletable(files, deleted, home)
            write_deleted(aside, deleted)
        parts = parts_of(files, job, before, work.build, default_parallelism(session))
        if not parts:
            raise InputError(INPUTS, "they hold no rows", "Name a table with rows")
        int8 = None
        if options.precision == INT8:
            int8 = _calibrated(session, job, before, parts, aside, judge)
        parts = linked(parts, before, aside)
        copied = sum(part.copied_from is not None for part in parts)
        changes = None
        if job.identity[KEY_COLUMN] is not None:
            parts, changes = _compared(session, job, before, parts, aside)
        final = tuple(replace(part, path=begun.final(part.path)) for part in parts)
        plan = Plan(
            dict(job.identity), options.backend, options.precision, final, work.build, changes, int8
        )
        plan.write(aside)
    if changes is not None:
        logger.info(
            "embedding: %s; %d of %d parts stay as they are", changes, copied, len(plan.parts)
        )
    return Version(begun.folder, plan, is_whole=False)


def _calibrated(
    session: SparkSession,
    job: EmbeddingJob,
    before: Sequence[Version],
    parts: Sequence[RowRange],
    aside: Location,
    judge: Judge | None,
) -> Int8Form:
    """Write the calibration of int8 products into a new table; an earlier table has it already.

    Raises:
        InputError: See :func:`~pipelines.vectors.int8.calibrate_table`, or int8 loses too much on a
            judged set.
    """
    target = aside / CALIBRATION_FILE
    if before and (known := before[0].plan.int8) is not None:
        storage.copy_file(before[0].folder / CALIBRATION_FILE, target)
        return known
    content, form = calibrate_table(session, parts, job.columns.text, job.options)
    if judge is not None:
        form = replace(form, ndcg=judge(job.options, content))
        check_judged(form.ndcg)
    with storage.built_file(target) as path:
        path.write_bytes(content)
    logger.info("embedding: %s", form)
    return form


def _clear_unplanned(folder: Location) -> None:
    """Remove the remains, in a store, of jobs killed before they had a plan."""
    for place in map(as_remote, begun_folders(folder)):
        if place is not None and not (place / PLAN_FILE).is_file():
            versions.clear(place)


def usable(
    before: Sequence[Version], folder: Location, identity: Mapping[str, Any]
) -> list[Version]:
    """Return the tables with the wanted vectors; log the reason if there are none."""
    changed = {key: None for version in before for key in version.other_vectors(identity)}
    found = [version for version in before if not version.other_vectors(identity)]
    if before and not found:
        verb = "have" if len(changed) > 1 else "has"
        logger.info(
            "embedding: %s %s changed since %s was made. The job embeds all rows again",
            ", ".join(changed),
            verb,
            folder,
        )
    # Vectors of two calibrations of int8 products are never mixed.
    return [version for version in found if version.plan.int8 == found[0].plan.int8]


def _check_files(files: Files, job: EmbeddingJob) -> None:
    footers, constants = files
    settings = job.settings
    for file in footers:
        named = {
            constant.name: pa.type_for_alias(constant.type)
            for constant in constants.get(file.path, ())
        }
        types = named | file.types
        where = "the table" if file.path.parent.name == STAGED else str(file.path)
        texts = {name: is_text(kind) for name, kind in types.items()}
        check_columns(texts, job.columns, job.options, where)
        _check_key(file.types, settings.key_column, where)
    if settings.merge_into is not None and (unknown := _unknown_to_spark(files)):
        raise InputError(
            "embedding.merge_into",
            f"Spark does not read {unknown} of the inputs",
            "Leave them out, or write them as strings or numbers",
        )


def _check_deletable(files: Files, deleted: DeletedRows, output: Location) -> None:
    """Refuse files without the column of the deleted rows' keys."""
    footers, constants = files
    for file in footers:
        names = {*file.types, *(constant.name for constant in constants.get(file.path, ()))}
        if deleted.column not in names:
            raise InputError(
                INPUTS,
                f"rows were deleted from {output} by `{deleted.column}`, a column that {file.path}"
                " lacks",
                "Name inputs with that column, or another embedding.output",
            )


def _check_key(types: Mapping[str, pa.DataType], key: str | None, where: str) -> None:
    if key is None:
        return
    if key not in types:
        problem = f"{where} has no column `{key}`"
        raise InputError(KEY_COLUMN, problem, has_columns(types, "embedding"))
    if not is_key(types[key]):
        raise InputError(
            KEY_COLUMN,
            f"`{key}` of {where} holds {types[key]}",
            "Name a column of whole numbers or strings",
        )


def parts_of(
    files: Files, job: EmbeddingJob, before: Sequence[Version], build: int, slots: int
) -> list[RowRange]:
    """Return all rows in parts: unchanged files keep earlier parts, other files are cut anew.

    ``build`` is the number of the new table, ``slots`` the number of concurrent tasks.
    """
    footers, constants = files
    known: dict[Location, list[RowRange]] = {}
    for version in before:
        known = _parts_of_same_files(version, job.identity) | known
    kept, changed_files = [], []
    for file in footers:
        parts = known.get(file.path, [])
        same = [part for part in parts if part.constants == constants.get(file.path, ())]
        if sum(part.rows for part in same) == file.rows:
            kept += same
        else:
            changed_files.append(file)
    options, settings = job.options, job.settings
    vector_bytes = options.dimensions + 4 if options.is_quantised else options.dimensions * 4
    size = PartSize(settings.part_megabytes * 2**20, settings.part_rows, vector_bytes)
    size = size.shared(changed_files, slots)
    for number, file in enumerate(changed_files):
        name = f"part-{build:05d}-{number:05d}"
        kept += cut_file(file, size, name, constants.get(file.path, ()))
    # A row's position counts those of files before, by their names.
    return sorted(kept, key=lambda part: part.name)


def _parts_of_same_files(
    version: Version, identity: Mapping[str, Any]
) -> dict[Location, list[RowRange]]:
    """Return the parts of unchanged input files, by file."""
    known, stamps = (settings[INPUTS][1] or {} for settings in (version.plan.identity, identity))
    if not version.has_same_files(identity) or identity["embedding.format"] != "parquet":
        return {}
    before = {stamp[0]: stamp for stamp in known.get("files", ())}
    same = {stamp[0] for stamp in stamps["files"] if before.get(stamp[0]) == stamp}
    parts: dict[Location, list[RowRange]] = {}
    for part in version.plan.parts:
        if str(part.path) in same:
            kept = replace(part, reused=0, copied_from=version.file(part))
            parts.setdefault(part.path, []).append(kept)
    return parts


def linked(parts: Sequence[RowRange], before: Sequence[Version], aside: Location) -> list[RowRange]:
    """Link the parts of an earlier table.

    If links are impossible, the returned part names the file for executors to copy.
    """
    lasting = {version.folder for version in before if version.is_whole}

    def taken(part: RowRange) -> RowRange:
        if part.copied_from is None:
            return part
        # An unfinished table is removed once this one has been begun or published.
        may_wait = part.copied_from.parent in lasting
        if _is_taken(part.copied_from, part_file(aside, part), may_wait=may_wait):
            return replace(part, reused=part.rows)
        return replace(part, copied_from=None)

    return in_threads(taken, parts)


def _is_taken(file: Location, target: Location, *, may_wait: bool) -> bool:
    """Return whether a part is linked, or can be copied later if ``may_wait``."""
    if may_wait and as_remote(file) is not None:
        return file.is_file()
    try:
        storage.link(file, target)
    except OSError:
        return may_wait and file.is_file()
    return True


def _compared(
    session: SparkSession,
    job: EmbeddingJob,
    before: Sequence[Version],
    parts: Sequence[RowRange],
    aside: Location,
) -> tuple[list[RowRange], Changes | None]:
    """Return the parts with counts of kept vectors, after writing these into a folder."""
    finished = next((version for version in before if version.is_whole), None)
    table = None if finished is None else open_table(finished.folder)
    compare = partial(compare_rows, session, parts, job.settings, table, aside / KEPT)
    kept, changes = run_job(session, "embedding: comparing keys", compare)
    counted = [replace(part, reused=kept.get(part.name, part.reused)) for part in parts]
    return counted, changes if before else None


def _unknown_to_spark(files: Files) -> str:
    """Return the columns readable for pandas and pyarrow, but not for Spark."""
    found = {
        f"`{name}` ({kind})": None
        for file in files[0]
        for name, kind in file.types.items()
        if not (is_read_by_spark(kind) or pa.types.is_null(kind))
    }
    return ", ".join(found)
