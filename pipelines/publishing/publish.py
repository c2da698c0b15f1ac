"""The publishing job: brings a collection of a store up to a table of vectors.

The driver makes the plan (:mod:`pipelines.publishing.plan`), creates the collection, keeps its
state, and switches the alias at the end. Between, tasks write (:mod:`pipelines.publishing.write`):
rounds of whole parts of the table, each followed by a state that names the last part. A killed job
repeats at most a round.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from pydantic import ConfigDict
from typing_extensions import TypedDict

from pipelines.catalog import STORES
from pipelines.errors import InputError, PipelineError
from pipelines.files import records
from pipelines.files.locations import Location
from pipelines.libraries import check_store
from pipelines.progress import WorkProgress, activity
from pipelines.progress.display import SHORT_SECONDS
from pipelines.publishing.plan import (
    Content,
    Logs,
    Plan,
    State,
    finished,
    is_written,
    make_plan,
    to_drop,
    updating,
)
from pipelines.publishing.rows import Source, source_of
from pipelines.publishing.store import ADDRESS, Store, StoreKind, Target, opened
from pipelines.publishing.write import (
    Connection,
    Counts,
    Piece,
    Writing,
    changed_keys,
    connected,
    delete_keys,
    deleted_keys,
    write_pieces,
)
from pipelines.settings import Config
from pipelines.settings.redaction import without_password
from pipelines.spark.tasks import collect_from_tasks, slices
from pipelines.vectors.changes import Lineage, logs_after, model_digest_in, read_lineage
from pipelines.vectors.store import VectorFile, VectorTable, open_table
from pipelines.vectors.table_job import MANIFEST_FILE, run_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

TASK_ROWS = 25_000
"""Rows that a task writes in a round: some seconds to a minute of most stores."""
LEAST_TASK_ROWS = 2000
BATCH_BYTES = 64 * 2**20
"""Most bytes of vectors in a batch, unless the settings name a number of rows."""
HERE_ROWS = 50_000
"""Most rows to write, and a hundredth of the most to look through, without starting Spark."""
MOST_CHANGED = 0.5
"""Share of changed rows from which all are written: to look for them would take longer."""
KEPT_SO_FAR = "; whole parts are kept, and the same command writes the others"

Sessions = Callable[[], "SparkSession"]
Task = TypeVar("Task")


@dataclass(frozen=True)
class PublishSummary:
    """The result of a job.

    ``collection`` is behind the alias ``name``, and has ``rows``. ``left_out`` counts rows without
    a vector among those that the job has read.
    """

    store: str
    name: str
    collection: str
    version: int
    rows: int
    upserted: int
    deleted: int
    left_out: int
    seconds: float

    def __str__(self) -> str:
        if not (self.upserted or self.deleted or self.left_out):
            return "nothing to write"
        done = f"{self.upserted:,} rows written, {self.deleted:,} deleted ({self.seconds:.1f} s)"
        return done + (f", {self.left_out:,} without a vector left out" if self.left_out else "")


class _Manifest(TypedDict, total=False):
    """The known fields of a table's manifest for this module, besides others."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc] # as pydantic has it

    texts: int
    build: int


@dataclass(frozen=True)
class PublishJob:
    """A job of the section ``publish``: the present table, and the store.

    ``texts`` is the number of rows with a vector.
    """

    config: Config
    table: VectorTable
    content: Content
    lineage: Lineage
    texts: int
    source: Source
    kind: StoreKind
    target: Target

    @classmethod
    def of(cls, config: Config) -> PublishJob:
        """Read the manifest and footers of ``embedding.output``, and the settings of the store.

        Raises:
            InputError: Table, columns or store cannot be used.
        """
        settings = config.publish
        check_store(settings.store)
        kind: StoreKind = STORES.load(settings.store)
        target = target_of(config)
        table = open_table(config.embedding.output, stores=config.storage)
        source = source_of(table, settings)
        _check_fit(kind, target, source)
        path = table.folder / MANIFEST_FILE
        manifest: _Manifest = records.read(path, _Manifest)
        digest = model_digest_in(manifest)
        if digest is None:
            problem = f"{table.folder} does not say which model made it"
            raise InputError("embedding.output", problem, "Run `sentence-pipelines embed` again")
        lineage = read_lineage(table.folder) or _lineage_of(path, manifest)
        content = Content(lineage.table, digest, table.prompt_name, source.layout.described())
        texts = manifest["texts"]
        return cls(config, table, content, lineage, texts, source, kind, target)

    def plan(self) -> Plan:
        """Return the work to do; reads the states in the store.

        Raises:
            InputError: The store cannot be used, or something else has the collection's name.
        """
        with opened(self.kind, self.target) as store:
            states, current = store.collections(), store.current()
        return make_plan(
            self.target.collection,
            self.content,
            self.lineage,
            states,
            current,
            self._logs_after,
            overwrite=self.config.publish.overwrite,
        )

    def _logs_after(self, version: int, made: str | None) -> Logs | None:
        # A table of an earlier release has no lineage to read.
        if (version, made) == (self.lineage.version, self.lineage.made):
            return ()
        return logs_after(self.table.folder, version, made)

    def told(self, plan: Plan) -> str:
        """Return the work of a plan in words."""
        version = self.lineage.version
        if plan.is_done:
            return f"{plan.name} has version {version} already"
        parts = []
        if plan.is_new:
            because = f", since {plan.reason}" if plan.reason else ""
            parts.append(f"{plan.name} is created{because}")
        if plan.whole_from is not None:
            rows = sum(file.rows for file in self._files_after(plan.whole_from))
            parts.append(f"{rows:,} of {self.table.rows:,} rows are read and written")
        if plan.logs:
            gone = len(deleted_keys(plan.logs))
            kept = len(changed_keys(plan.logs)) - gone
            keys = f"{kept:,} changed and {gone:,} removed keys"
            parts.append(f"{keys} since version {plan.state.version} are applied")
        if plan.switches:
            parts.append(f"{self.target.collection} is switched to it")
        return "; ".join(parts)

    def _files_after(self, name: str) -> list[VectorFile]:
        return [file for file in self.table.files if file.path.stem > name]

    def run(self, plan: Plan, sessions: Sessions) -> PublishSummary:
        """Do the work; ``sessions`` starts Spark where it is needed.

        Raises:
            InputError: The store refuses something that the user can correct.
            PipelineError: A task failed, or the store has lost rows.
        """
        began = time.monotonic()
        self._tell(plan)
        if plan.is_new:
            with opened(self.kind, self.target) as store:
                store.create(plan.name, self.source.layout, plan.state.text())
        if plan.logs:
            plan = replace(plan, state=self._begun(plan))
        counts = Counts()
        if plan.whole_from is not None:
            counts += self._write_whole(plan, plan.whole_from, sessions)
        if plan.logs:
            counts += self._follow(plan, sessions)
        name, rows = self._finish(plan)
        return PublishSummary(
            store=self.target.store,
            name=self.target.collection,
            collection=name,
            version=self.lineage.version,
            rows=rows,
            upserted=counts.upserted,
            deleted=counts.deleted,
            left_out=counts.left_out,
            seconds=round(time.monotonic() - began, 2),
        )

    def _begun(self, plan: Plan) -> State:
        """Note the version of an update before its first change; return the state."""
        state = updating(plan.state, self.lineage)
        if state != plan.state:
            with connected(self.kind, self.target) as connection:
                connection.do(partial(_write_state, name=plan.name, state=state))
        return state

    def _tell(self, plan: Plan) -> None:
        if plan.reason:
            logger.info("publishing: %s becomes a new collection: %s", plan.name, plan.reason)
        elif plan.whole_from:
            logger.info("publishing: %s is unfinished and goes on", plan.name)

    def _write_whole(self, plan: Plan, after: str, sessions: Sessions) -> Counts:
        """Write the parts behind the one named ``after``, in rounds."""
        files = self._files_after(after)
        # Parts of a later version may hold keys that are written already, and a killed job with
        # more connections may have begun with any of the rows.
        writing = replace(self._writing(plan), may_exist=not plan.is_new)
        return self._in_rounds(files, writing, plan.state, sessions)

    def _follow(self, plan: Plan, sessions: Sessions) -> Counts:
        """Apply logs of changes: deletions first, then the rows of changed keys, or all rows."""
        gone, changed = deleted_keys(plan.logs), len(changed_keys(plan.logs))
        writing = self._writing(plan)
        deleting = _cut(gone, self._tasks(len(gone)))
        counts = self._run(deleting, delete_keys, writing, sessions, len(gone))
        if changed == len(gone):
            return counts
        state = plan.state
        files = [file for file in self.table.files if not is_written(state, file.path.stem)]
        share = (changed - len(gone)) / max(1, self.table.rows)
        if share < MOST_CHANGED:
            writing = replace(writing, logs=plan.logs)
        else:
            share = 1.0
        following = state if state.is_complete else None
        return counts + self._in_rounds(files, writing, following, sessions, share)

    def _writing(self, plan: Plan) -> Writing:
        most = max(1, BATCH_BYTES // (4 * self.source.layout.width))
        batch_rows = self.config.publish.batch_rows or min(self.kind.batch_rows, most)
        return Writing(self.kind, self.target, plan.name, self.source, batch_rows)

    def _in_rounds(
        self,
        files: Sequence[VectorFile],
        writing: Writing,
        state: State | None,
        sessions: Sessions,
        share: float = 1.0,
    ) -> Counts:
        """Write files in rounds, and note the state after each.

        A ``share`` of the rows is to be written. Without a state, an interrupted job begins with
        the first file again.
        """
        counts, done, total = Counts(), 0, sum(file.rows for file in files)
        amount = int(total * share)
        round_rows = int(self._connections * TASK_ROWS / max(share, 1e-9))
        # An update reads rows that it does not write.
        line = "publishing {done}/{total} rows read  {text}"
        with WorkProgress("publishing", total, 0, line, "connecting") as progress:
            for group in _rounds(files, round_rows):
                rows = sum(file.rows for file in group)
                pieces = _pieces(group, self._tasks(rows))
                counts += self._run(pieces, write_pieces, writing, sessions, amount)
                done += rows
                progress.show(done, f"{counts.upserted:,} written")
                if state is not None:
                    noted = replace(state, through=group[-1].path.stem)
                    with connected(self.kind, self.target) as connection:
                        connection.do(partial(_write_state, name=writing.name, state=noted))
        return counts

    @property
    def _is_here(self) -> bool:
        return self.kind.is_of_one_process(self.target)

    @property
    def _connections(self) -> int:
        return 1 if self._is_here else self.config.publish.connections

    def _tasks(self, rows: int) -> int:
        return max(1, min(self._connections, rows // LEAST_TASK_ROWS))

    def _run(
        self,
        tasks: Sequence[Task],
        work: Callable[..., Iterator[Counts]],
        writing: Writing,
        sessions: Sessions,
        amount: int,
    ) -> Counts:
        """Do the tasks here, or on the executors for a large ``amount`` of rows in all rounds."""
        do = partial(work, writing=writing)
        is_small = amount <= HERE_ROWS and self.table.rows <= 100 * HERE_ROWS
        if not tasks:
            return Counts()
        if self._is_here or is_small:
            return sum(do(iter(tasks)), Counts())
        session = sessions()
        act = partial(collect_from_tasks, session, tasks, do)
        found: list[Counts] = run_job(session, "publishing", act, ending=KEPT_SO_FAR)
        return sum(found, Counts())

    def _finish(self, plan: Plan) -> tuple[str, int]:
        """Complete the collection, switch the alias and drop old ones; return name and rows."""
        state, layout, alias = plan.state, self.source.layout, self.target.collection
        with (
            activity("indexing", quiet=SHORT_SECONDS),
            connected(self.kind, self.target) as connection,
        ):
            if not connection.do(lambda store: store.collections()).get(plan.name):
                raise PipelineError(
                    f"publishing: {plan.name} is gone. Another job may have dropped it. "
                    "Run the command again."
                )
            connection.do(lambda store: store.finish(plan.name, layout))
            rows = connection.do(lambda store: store.count(plan.name))
            if rows != self.texts:
                self._miscounted(connection, plan, rows)
            noted = finished(state, self.lineage)
            # A replaced collection that serves again has another number than in the store.
            if noted != state or plan.switches:
                connection.do(partial(_write_state, name=plan.name, state=noted))
            name = plan.name
            if plan.switches:
                connection.do(lambda store: store.switch(plan.name))
                name = connection.do(lambda store: store.current()) or plan.name
            if name != plan.name:
                # A copy, of a store without aliases, has no index yet.
                connection.do(lambda store: store.finish(name, layout))
                rows = connection.do(lambda store: store.count(name))
            states = connection.do(lambda store: store.collections())
            for old in to_drop(alias, states, name, self.config.publish.keep_old):
                connection.do(partial(_drop, name=old))
        return name, rows

    def _miscounted(self, connection: Connection, plan: Plan, rows: int) -> None:
        """Warn of other rows than the table's, or drop a collection that has no readers yet."""
        told = f"{plan.name} has {rows:,} rows, and the table has {self.texts:,} with a vector"
        if plan.switches:
            connection.do(partial(_drop, name=plan.name))
            raise PipelineError(f"publishing: {told}. It is dropped. Run the command again.")
        remedy = "Set publish.overwrite=true to build it again"
        logger.warning("publishing: %s. Others may write there. %s", told, remedy)


def target_of(config: Config) -> Target:
    """Return the store of the settings, with the secret of the environment.

    Raises:
        InputError: There is no address.
    """
    settings = config.publish
    if settings.address is None:
        raise InputError(
            ADDRESS,
            f"it does not say where {settings.store} is",
            "Set it to a URL, or to a folder for stores without a server",
        )
    return Target(
        store=settings.store,
        address=settings.address,
        collection=settings.collection,
        user=settings.user,
        secret=os.environ.get(settings.password_variable) or None,
        timeout=settings.timeout_seconds,
    )


def _check_fit(kind: StoreKind, target: Target, source: Source) -> None:
    layout = source.layout
    if layout.is_int8 and not kind.has_int8:
        problem = f"{target.store} at {without_password(target.address)} compares no int8 vectors"
        raise InputError("publish.int8", problem, "Set it to restore")
    if kind.most_numbers is not None and layout.width > kind.most_numbers:
        raise InputError(
            "publish.store",
            f"{target.store} takes vectors of at most {kind.most_numbers:,} numbers, and the table"
            f" has {layout.width:,}",
            "Set embedding.dimensions for a Matryoshka model, or choose another store",
        )


def _lineage_of(path: Location, manifest: _Manifest) -> Lineage:
    """Return a place for a table of an earlier release: its manifest stands for its id."""
    table = sha256(path.read_bytes()).hexdigest()[:32]
    return Lineage(manifest.get("build", 0), table, None)


def _rounds(files: Sequence[VectorFile], rows: int) -> Iterator[list[VectorFile]]:
    """Yield runs of files with about this many rows."""
    group: list[VectorFile] = []
    for file in files:
        group.append(file)
        if sum(member.rows for member in group) >= rows:
            yield group
            group = []
    if group:
        yield group


def _pieces(files: Sequence[VectorFile], tasks: int) -> list[list[Piece]]:
    """Cut the rows of files into equal runs for tasks."""
    total = sum(file.rows for file in files)
    ends = [total * number // tasks for number in range(1, tasks + 1)]
    found: list[list[Piece]] = [[] for _ in ends]
    number = first = 0
    for file in files:
        start = 0
        while start < file.rows:
            stop = min(file.rows, ends[number] - first)
            if stop > start:
                found[number].append(Piece(file.path, start, stop))
                start = stop
            if start < file.rows:
                number += 1
        first += file.rows
    return [pieces for pieces in found if pieces]


def _cut(keys: pa.Array, tasks: int) -> list[pa.Array]:
    bounds = slices(range(len(keys)), tasks)
    # A slice would travel with all the keys.
    return [pa.concat_arrays([keys.slice(part[0], len(part))]) for part in bounds]


def _write_state(store: Store, *, name: str, state: State) -> None:
    store.write_state(name, state.text())


def _drop(store: Store, *, name: str) -> None:
    store.drop(name)
