"""The job `ask`: documents in, pairs of a question and its document out.

1. :meth:`AskingJob.of` checks the settings and makes the :class:`Plan`: all that the table depends
   on. :meth:`AskingJob.run` begins a folder aside, or finds a begun one, and compares the plans.
2. Spark collects the distinct documents, and the answers that an earlier table has for them
   (:mod:`pipelines.questions.documents`).
3. Executors ask a language model about the others, part by part
   (:mod:`pipelines.questions.answers`), and keep replies of unfinished parts
   (:mod:`pipelines.questions.kept`).
4. The replies are parsed and filtered (:mod:`pipelines.questions.filtering`). With a round trip,
   documents and questions are embedded first.
5. The whole folder takes the place of the earlier table.

Each step finds what a killed job has finished. `_asking.json` is the plan, and the first file in
its folder. `_answers` holds the replies as they came, so that other filters need no further
request. `_work` holds documents, vectors and questions until the table is whole.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pipelines.catalog import GENERATORS
from pipelines.corpus.cleaning.rules import check_languages
from pipelines.corpus.cleaning.rules import is_installed as knows_languages
from pipelines.errors import InputError
from pipelines.files import records, storage, versions
from pipelines.files.begun import beginning, begun_folders, check_places, discard_begun, take_place
from pipelines.files.copies import local_folder
from pipelines.files.locations import Location, listed, location
from pipelines.files.ownership import QUESTIONS as QUESTION_TABLE
from pipelines.libraries import check_installed
from pipelines.models.identity import model_digest
from pipelines.progress import WorkProgress, activity
from pipelines.questions.answers import (
    AnswerFigures,
    AskingWork,
    Failure,
    answer_files,
    ask_parts,
    figures_of,
    first_problem,
    holds_paid,
    tokens_of,
)
from pipelines.questions.documents import (
    DOCUMENTS,
    INPUTS,
    KNOWN,
    STAGED_FILE,
    Staged,
    build_name,
    documents_source,
    stage_documents,
)
from pipelines.questions.filtering import (
    QUESTIONS,
    QuestionFigures,
    RoundTrip,
    write_pairs,
    write_questions,
)
from pipelines.questions.filters import Filters
from pipelines.questions.generator import FAILED, GeneratorKind, GeneratorOptions
from pipelines.questions.kept import KEPT, remove_remains
from pipelines.questions.prompts import Asking
from pipelines.questions.summary import AskingSummary
from pipelines.settings import Config, QuestionSettings
from pipelines.settings.redaction import without_password
from pipelines.spark.capacity import conf_value, default_parallelism, task_threads
from pipelines.spark.session import running_tasks
from pipelines.spark.tasks import slices
from pipelines.tokens.start import read_prompts
from pipelines.vectors.column import options_in
from pipelines.vectors.embed import make_vectors, precision_of
from pipelines.vectors.embedding import Columns, EmbeddingOptions, refuse_int8
from pipelines.vectors.inputs import check_no_overlap
from pipelines.vectors.mining_texts import part_name
from pipelines.vectors.parts import RowRange, in_threads, open_parquet
from pipelines.vectors.plan import options_for
from pipelines.vectors.search import fits_in_process
from pipelines.vectors.sources import check_source, source_stamp
from pipelines.vectors.store import VectorTable, on_this_machine, table_of_parts
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

PLAN_FILE = "_asking.json"
ANSWERS = "_answers"
WORK = "_work"
VECTORS = "vectors"
PARSED = "questions.json"
"""The mark of parsed replies in the work."""
SPECULATION = "spark.speculation"
OUTPUT = "questions.output"
MODEL = "questions.model"
ADDRESS = "questions.address"
GENERATOR = "questions.generator"
ROUND_TRIP = "questions.round_trip_model"
MAX_TOKENS = "questions.max_tokens"
FORM = 2
"""Version of the files: a release does not continue from another version."""

_TASK_TOKENS = 100_000
"""Least share of a budget: a task exceeds its share by a few requests."""

_FORM_KEY = "form"
_OF_INPUTS = ("format", "text_column", "key_column", "part_documents")
_OF_REPLIES = ("generator", "max_tokens", "temperature", "title_column", "extra_body")
_OF_FILTERS = (
    *("min_characters", "max_characters", "meta_phrases", "title_overlap", "copied_words"),
    *("same_language", "round_trip", "per_prompt", "language"),
)
_COLUMNS = {
    DOCUMENTS: Columns(text="text", vector="vector"),
    QUESTIONS: Columns(text="asked", vector="vector"),
}


@dataclass(frozen=True)
class Plan:
    """The plan of a table: the settings behind it, written at its beginning.

    Attributes:
        inputs: Stands for the documents. If it changes, known documents keep their answers.
        replies: The settings behind an answer. If one changes, all answers are void, but for
            ``questions.max_tokens``: the answers that ended at a lower limit are asked for again.
        filters: Those behind the choice of questions. They need no new answers.
        build: How often the documents have changed, or the limit has risen, since the table was
            begun. Names of files of answers begin with it, so earlier ones stay until the table is
            whole.
    """

    inputs: Mapping[str, Any]
    replies: Mapping[str, Any]
    filters: Mapping[str, Any]
    build: int = 0

    @classmethod
    def of(
        cls,
        settings: QuestionSettings,
        stamp: list[Any],
        model: str,
        asking: Asking,
        round_trip: EmbeddingOptions | None,
    ) -> Plan:
        """Return the plan of a new table of inputs with this stamp."""
        asked = settings.model_dump(mode="json")
        inputs, replies, filters = (
            {f"questions.{name}": asked[name] for name in names}
            for names in (_OF_INPUTS, _OF_REPLIES, _OF_FILTERS)
        )
        return cls(
            inputs={_FORM_KEY: FORM, INPUTS: stamp, **inputs},
            replies={**replies, MODEL: model, **asking.identity},
            filters={
                **filters,
                ROUND_TRIP: None if round_trip is None else round_trip.model_sha256,
            },
        )

    @classmethod
    def read(cls, folder: Location) -> Plan | None:
        """Return the plan in a folder, if there is one."""
        path = folder / PLAN_FILE
        known: Plan | None = records.read(path, Plan) if path.is_file() else None
        return known

    def write(self, folder: Location) -> None:
        """Write the plan into the folder of its table."""
        storage.write_json(folder / PLAN_FILE, asdict(self))

    def differing(self, other: Plan) -> str | None:
        """Return the first setting with another value in the other table, inputs included."""
        mine, theirs = ({**plan.inputs, **plan.replies, **plan.filters} for plan in (self, other))
        return next((key for key in {**mine, **theirs} if mine.get(key) != theirs.get(key)), None)

    def differing_reply(self, other: Plan) -> str | None:
        """Return the first setting with another value in the other table that voids its answers."""
        if self.inputs[_FORM_KEY] != other.inputs.get(_FORM_KEY):
            return _FORM_KEY
        others = {**other.replies, MAX_TOKENS: self.replies[MAX_TOKENS]}
        return next((key for key in self.replies if self.replies[key] != others.get(key)), None)


@dataclass(frozen=True)
class AskingJob:
    """A job of the section ``questions``, with the present state of its inputs and prompts.

    ``round_trip`` opens the model that searches for the document of each question, if any does.
    """

    config: Config
    asking: Asking
    round_trip: EmbeddingOptions | None
    plan: Plan

    @classmethod
    def of(cls, config: Config) -> AskingJob:
        """Check all that can be checked without Spark and without a request.

        Raises:
            InputError: Model, inputs, prompts or settings cannot be used.
        """
        settings = config.questions
        model = _checked_model(config)
        _check_language(settings)
        asking = Asking.of(settings, config.storage)
        source = documents_source(config)
        stamp = source_stamp(source, config)
        check_source(source, config)
        folder = location(settings.output, config.storage).expanduser().absolute()
        try:
            check_no_overlap(source.table, folder, config.storage)
        except InputError as error:
            key = error.key.replace("embedding.", "questions.")
            raise InputError(key, error.problem, error.remedy) from None
        round_trip = _checked_round_trip(config)
        plan = Plan.of(settings, stamp, model, asking, round_trip)
        return cls(config, asking, round_trip, plan)

    @property
    def settings(self) -> QuestionSettings:
        """The section ``questions``."""
        return self.config.questions

    @property
    def folder(self) -> Location:
        """The place of the table."""
        return location(self.settings.output, self.config.storage).expanduser().absolute()

    def is_done(self) -> bool:
        """Return whether this table exists already, with all documents asked about.

        Raises:
            InputError: The folder holds foreign files, or answers of another model or prompt,
                finished or not, without ``questions.overwrite``.
        """
        check_places(OUTPUT, self.folder, QUESTION_TABLE)
        if self.settings.overwrite:
            return False
        current = versions.current(self.folder)
        again = "Set questions.overwrite=true to ask again, or name another questions.output"
        for place in (current, *begun_folders(self.folder)):
            plan = Plan.read(place)
            if plan is None:
                continue
            if plan.inputs.get(_FORM_KEY) != FORM:
                raise InputError(OUTPUT, f"{place} was made by another release", again)
            if differing := self.plan.differing_reply(plan):
                problem = f"the answers in {place} were made with another value of this setting"
                remedy = again if place == current else f"{again}. Or remove the unfinished table"
                raise InputError(differing, problem, remedy)
        known = Plan.read(current)
        if known is None or self.plan.differing(known) or self.plan.inputs[INPUTS][1] is None:
            return False
        summary = AskingSummary.read_again(current)
        # A request that failed is worth another one.
        has_failed = bool(summary.problems.get(FAILED))
        return summary.asked_documents == summary.documents and not has_failed

    def changed(self) -> str | None:
        """Return the first setting that has changed since the table was made, inputs included.

        None without a finished table. Changes of a table known by name are invisible.
        """
        known = Plan.read(versions.current(self.folder))
        return None if known is None else self.plan.differing(known)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Keep other jobs from the folder; see :func:`~pipelines.vectors.table_job.working_on`."""
        with working_on(OUTPUT, self.folder, "ask"):
            yield

    def run(self, session: SparkSession) -> AskingSummary:
        """Ask about the documents without an answer; the caller holds the lock of the folder.

        Raises:
            InputError: See :meth:`is_done`, or the model cannot be used.
            PipelineError: Spark's job failed or stood still; finished parts are kept.
        """
        if conf_value(session, SPECULATION, "false") == "true":
            problem = "Spark would send requests twice"
            raise InputError(SPECULATION, problem, "Set it to false")
        if self.is_done():
            summary = AskingSummary.read_again(versions.current(self.folder))
            logger.info("questions: nothing to ask: all %s documents are done", summary.documents)
            return summary
        begun = self._begun()
        if (begun / MANIFEST_FILE).is_file():
            # The earlier job was killed just before its finished table took its place.
            summary = AskingSummary.read_again(begun)
        else:
            summary = _Making(session, self, begun).made()
            for line in summary.lines():
                logger.info("questions: %s", line)
        plan = Plan.read(begun)
        assert plan is not None, "it was written first"
        # Those about earlier documents have been the only copies until now.
        for file in listed(begun / ANSWERS, "part-*.parquet"):
            if not file.name.startswith(build_name(plan.build)):
                file.unlink()
        for name in (WORK, ATTEMPTS, f"{ANSWERS}/{ATTEMPTS}", f"{ANSWERS}/{KEPT}"):
            storage.discard_folder(begun / name)
        take_place(begun, self.folder)
        return replace(summary, folder=str(versions.current(self.folder)))

    def _begun(self) -> Location:
        """Return the folder of the table to make: a begun one with the same answers, or a new."""
        for place in begun_folders(self.folder):
            known = Plan.read(place)
            if known is None or self.plan.differing_reply(known) is not None:
                continue
            is_raised = self.plan.replies[MAX_TOKENS] > known.replies[MAX_TOKENS]
            # The answers stay, and are known ones of another build.
            if known.inputs != self.plan.inputs or is_raised:
                forget_questions(place)
                (place / WORK / STAGED_FILE).unlink(missing_ok=True)
                storage.discard_folder(place / WORK)
                replace(self.plan, build=known.build + 1).write(place)
            elif self.plan.differing(known):
                forget_questions(place)
                if known.filters[ROUND_TRIP] != self.plan.filters[ROUND_TRIP]:
                    storage.discard_folder(place / WORK / VECTORS)
                replace(self.plan, build=known.build).write(place)
            logger.info("questions: resuming the table in %s", place)
            return place
        discard_begun(self.folder)
        with beginning(self.folder) as begun:
            self.plan.write(begun.aside)
        return begun.folder

    def known_answers(self, begun: Location | None = None) -> list[Location]:
        """Return folders of earlier answers: of the table, and of a begun one's other builds."""
        found = []
        for place in (versions.current(self.folder), *([] if begun is None else [begun])):
            plan, answers = Plan.read(place), place / ANSWERS
            if plan is None or self.plan.differing_reply(plan) is not None:
                continue
            found += [
                folder for folder in (answers, answers / KEPT) if listed(folder, "part-*.parquet")
            ]
        return found

    def options(self, session: SparkSession, tasks: int) -> GeneratorOptions:
        """Return what opens the model in each of some tasks."""
        settings, kind = self.settings, _kind(self.settings)
        assert settings.model is not None, "checked with the settings"
        named: str | Location = settings.model
        if not kind.is_remote:
            named = _model_folder(self.config)
        return GeneratorOptions(
            model=named,
            address=settings.address,
            secret=_secret(settings) if kind.is_remote else None,
            requests=max(1, settings.requests // tasks),
            max_tokens=settings.max_tokens,
            temperature=settings.temperature,
            timeout=settings.timeout_seconds,
            retries=settings.retries,
            threads=task_threads(session),
            extra_body=settings.extra_body or {},
        )


def _kind(settings: QuestionSettings) -> GeneratorKind:
    kind: GeneratorKind = GENERATORS.load(settings.generator)
    return kind


def forget_questions(begun: Location) -> None:
    """Remove what follows from the answers of a begun table, but not its vectors of documents."""
    (begun / MANIFEST_FILE).unlink(missing_ok=True)
    for file in listed(begun, "part-*.parquet"):
        file.unlink()
    # First the mark: without it the rest is made again.
    (begun / WORK / PARSED).unlink(missing_ok=True)
    for name in (QUESTIONS, f"{VECTORS}/{QUESTIONS}"):
        storage.discard_folder(begun / WORK / name)


def _model_folder(config: Config) -> Location:
    """Return the folder of a local model."""
    assert config.questions.model is not None, "checked with the settings"
    place = location(config.questions.model, config.storage).expanduser().absolute()
    return versions.current(place)


def _secret(settings: QuestionSettings) -> str | None:
    """Return the API key of the endpoint, without the line end of a mounted file."""
    return os.environ.get(settings.key_variable, "").strip() or None


def _checked_model(config: Config) -> str:
    """Return what identifies the model; refuse one without library, address or folder.

    Raises:
        InputError: With the setting at fault.
    """
    settings, kind = config.questions, _kind(config.questions)
    check_installed(GENERATOR, kind.library)
    if settings.model is None:
        named = "the model at the endpoint" if kind.is_remote else "a folder of a language model"
        raise InputError(MODEL, "it is empty", f"Name {named}")
    if kind.is_remote:
        address, secret = settings.address or "", _secret(settings) or ""
        if not address.startswith(("http://", "https://")):
            problem = f"`{without_password(address)}` is no URL" if address else "it is empty"
            raise InputError(ADDRESS, problem, "Write http://HOST:PORT/v1")
        if not secret.isascii() or len(secret.split()) > 1:
            problem = f"the key in {settings.key_variable} has blanks or other signs than ASCII"
            raise InputError("questions.key_variable", problem, "Correct the variable")
        return settings.model
    if settings.address is not None:
        problem = f"`generator: {settings.generator}` asks no server"
        raise InputError(ADDRESS, problem, "Leave it out, or set questions.generator to endpoint")
    folder = _model_folder(config)
    if not (folder / "config.json").is_file():
        missing = "config.json in" if folder.is_dir() else "folder"
        problem = f"there is no {missing} {folder}"
        raise InputError(MODEL, problem, "Name a folder of a language model")
    return model_digest(folder)


def _checked_round_trip(config: Config) -> EmbeddingOptions | None:
    """Return what opens the model of the round trip; None without one.

    Raises:
        InputError: The model cannot be used.
    """
    if config.questions.round_trip is None:
        return None
    refuse_int8(config.embedding.precision, "ask")
    try:
        return options_for(config, config.questions.round_trip_model)
    except InputError as error:
        if error.key != "embedding.model":
            raise
        raise InputError(ROUND_TRIP, error.problem, error.remedy) from None


def _check_language(settings: QuestionSettings) -> None:
    """Refuse a language that the filter does not know; tell if there is no filter.

    Raises:
        InputError: Every question would be dropped.
    """
    if not settings.same_language:
        return
    if not knows_languages():
        logger.info(
            "questions: no filter of languages: the extra `languages` is not installed "
            "(questions.same_language)"
        )
        return
    try:
        check_languages((settings.language,) if settings.language else ())
    except InputError as error:
        raise InputError("questions.language", error.problem, error.remedy) from None


@dataclass(frozen=True)
class _Making:
    """A table in the making; ``folder`` holds it until it takes its place."""

    session: SparkSession
    job: AskingJob
    folder: Location

    @property
    def settings(self) -> QuestionSettings:
        """The section ``questions``."""
        return self.job.settings

    @property
    def work(self) -> Location:
        """The temporary folder, removed when the table is whole."""
        return self.folder / WORK

    def made(self) -> AskingSummary:
        """Make the missing parts of the table, and its manifest."""
        with activity("questions", "bringing documents together", running_tasks):
            staged = Staged.read_from(self.work) or self._stage()
        began = time.monotonic()
        answered = self._ask(staged)
        seconds = round(time.monotonic() - began, 2)
        figures = self._filter(staged, answered)
        if not figures.parsed:
            problem = first_problem(self._files())
            why = f" ({problem})" if problem else ""
            remedy = (
                "Correct the model's server, the prompt, questions.document_characters or "
                "questions.max_tokens"
            )
            if self._forget_unpaid():
                remedy += f". To pay for the same requests again, remove {self.folder}"
            replies = answered.asked + answered.known
            told = f"the replies to {replies:,} requests hold no question{why}"
            raise InputError(MODEL, told, remedy)
        if not figures.kept:
            most = max(figures.dropped, key=lambda reason: figures.dropped[reason], default=None)
            why = f"; most often dropped: {most}" if most else ""
            raise InputError(
                MODEL,
                f"none of {figures.parsed:,} questions in the replies passes the filters{why}",
                "Read them with `ask --dry-run`, and change the model, the prompt or the filters",
            )
        summary = self._summary(staged, answered, figures, seconds)
        manifest = {
            "rows": summary.rows,
            "model": self.settings.model,
            "kept_share": round(summary.kept_share, 4),
            "figures": {name: value for name, value in asdict(summary).items() if name != "folder"},
        }
        storage.write_json(self.folder / MANIFEST_FILE, manifest)
        return summary

    def _forget_unpaid(self) -> bool:
        """Remove files of answers without a reply of the model; return whether others stay.

        Another server may reply, so the next job asks again. Empty replies cost tokens: they stay,
        and count for the budget. So do answers about earlier documents.
        """
        forget_questions(self.folder)
        is_paid = False
        for file in self._files():
            if holds_paid(file):
                is_paid = True
            else:
                file.unlink()
        return is_paid

    def _files(self) -> list[Location]:
        """Return the files of answers about these documents."""
        plan = Plan.read(self.folder)
        assert plan is not None, "it was written first"
        return answer_files(self.folder / ANSWERS, build_name(plan.build))

    def _stage(self) -> Staged:
        """Collect the documents, and the answers known for them."""
        job = self.job
        known = job.known_answers(self.folder)
        for folder in known:
            remove_remains(folder)
        stage = partial(stage_documents, self.session, job.config, self.work, job.folder, known)
        return run_job(self.session, "questions: bringing documents together", stage)

    def _ask(self, staged: Staged) -> AnswerFigures:
        """Make the missing files of answers, within the budget; return the sums of all."""
        folder, budget = self.folder / ANSWERS, self.settings.token_budget
        plan = Plan.read(self.folder)
        assert plan is not None, "it was written first"
        asked_rows = self.settings.part_documents
        parts = staged.parts(self.work / DOCUMENTS, asked_rows, plan.build)
        missing = self._unfinished(parts)
        if missing:
            # Of a job that ended at its budget: there will be more questions.
            forget_questions(self.folder)
            paid = {} if budget is None else self._paid(parts)
            left = math.inf if budget is None else max(0.0, float(budget - sum(paid.values())))
            tasks = slices(missing, self._most_tasks(left))
            with open_parquet(missing[0].path) as file:
                key_type = file.schema_arrow.field("key").type
            known = self.work / KNOWN
            work = AskingWork(
                generator=self.settings.generator,
                options=self.job.options(self.session, len(tasks)),
                asking=self.job.asking,
                folder=folder,
                known=known if known.is_dir() else None,
                key_type=key_type,
                budget=left / len(tasks),
                paid=paid,
            )
            folder.mkdir(parents=True, exist_ok=True)
            make = partial(ask_parts, work=work)
            rows = {part.name: part.rows for part in parts}
            made = make_parts(self.session, "questions", folder, rows, tasks, make)
            if failed := [one for one in made if isinstance(one, Failure)]:
                raise failed[0].error()
        return self._answered(parts)

    def _paid(self, parts: list[RowRange]) -> dict[str, int]:
        """Return the tokens that this update has paid for in earlier runs, by part."""
        names = [part.name for part in parts]
        tokens = in_threads(partial(tokens_of, self.folder / ANSWERS), names)
        return dict(zip(names, tokens, strict=True))

    def _unfinished(self, parts: list[RowRange]) -> list[RowRange]:
        """Return the parts without a file, or with one that ended at an earlier budget."""
        names = {*missing_parts(self.folder / ANSWERS, dict.fromkeys(part.name for part in parts))}
        written = [part for part in parts if part.name not in names]
        cut = in_threads(self._is_cut, written)
        names |= {part.name for part, is_cut in zip(written, cut, strict=True) if is_cut}
        return [part for part in parts if part.name in names]

    def _is_cut(self, part: RowRange) -> bool:
        """Return whether the file of a part lacks documents; failed requests have a row too."""
        figures = figures_of(self.folder / ANSWERS / f"{part.name}.parquet")
        return figures is None or figures.documents < part.rows

    def _most_tasks(self, tokens: float) -> int:
        """Return the most tasks that ask, each within its share of the tokens."""
        most = default_parallelism(self.session)
        if _kind(self.settings).is_remote:
            most = min(most, self.settings.requests)
        return most if math.isinf(tokens) else max(1, min(most, int(tokens // _TASK_TOKENS)))

    def _answered(self, parts: list[RowRange]) -> AnswerFigures:
        """Return the sums of the existing files of answers."""
        files = [self.folder / ANSWERS / f"{part.name}.parquet" for part in parts]
        found = in_threads(figures_of, files)
        return AnswerFigures.total(figures for figures in found if figures is not None)

    def _filter(self, staged: Staged, answered: AnswerFigures) -> QuestionFigures:
        """Make the files of the table from the answers; return their sums."""
        replies = answered.asked + answered.known
        if not replies:
            return QuestionFigures()
        with activity("questions", "filtering", running_tasks):
            written = self._parse(replies)
            trip = self._round_trip(staged, written) if written else None
        questions = {part_name(int(bucket)): rows for bucket, rows in written.items()}
        source = self.work / QUESTIONS if trip is None else self.work / VECTORS / QUESTIONS
        carried = [
            name
            for name, column in (
                ("title", self.settings.title_column),
                ("key", self.settings.key_column),
            )
            if column is not None
        ]
        missing = {*missing_parts(self.folder, dict.fromkeys(questions))}
        session: SparkSession | None = self.session
        if trip is not None and fits_in_process(trip.documents, hybrid=True):
            # Each file of questions is searched in all documents: here, they are read once.
            session, trip = None, replace(trip, documents=on_this_machine(trip.documents))
        line = "filtering {done}/{total} questions  {text}"
        with WorkProgress("questions", sum(questions.values()), 0, line) as progress:
            done = 0
            for name, rows in questions.items():
                if name in missing:
                    target = self.folder / f"{name}.parquet"
                    file = source / f"{name}.parquet"
                    write = partial(write_pairs, session, file, target, trip, carried)
                    run_job(self.session, "questions: filtering", write)
                done += rows
                progress.move(done)
        files = [self.folder / f"{name}.parquet" for name in questions]
        return QuestionFigures.total(in_threads(QuestionFigures.read, files))

    def _parse(self, replies: int) -> Mapping[str, int]:
        """Write the questions of the answers, unless a killed job has; return the rows of files."""
        folder, mark = self.work / QUESTIONS, self.work / PARSED
        if mark.is_file() and folder.is_dir():
            known: Mapping[str, int] = storage.read_json(mark)
            return known
        mark.unlink(missing_ok=True)
        write = partial(
            write_questions,
            self.session,
            self._files(),
            self.work / DOCUMENTS,
            folder,
            replies=replies,
            count=self.settings.per_prompt,
            filters=Filters(self.settings, knows_languages()),
        )
        written = run_job(self.session, "questions: filtering", write)
        storage.write_json(mark, dict(written))
        return written

    def _round_trip(self, staged: Staged, written: Mapping[str, int]) -> RoundTrip | None:
        """Embed documents and questions for the search; None without a round trip."""
        if self.job.round_trip is None or self.settings.round_trip is None:
            return None
        config = self.job.config
        options = options_in(self.session, self.job.round_trip, config.embedding.backend)
        options = replace(options, precision=precision_of(self.session, options))
        asking, answering = read_prompts(local_folder(options.model)).sides
        rows = {part_name(int(bucket)): count for bucket, count in written.items()}
        self._embed(QUESTIONS, rows, replace(options, prompt_name=asking))
        documents = self._embed(DOCUMENTS, staged.files, replace(options, prompt_name=answering))
        return RoundTrip(documents, self.settings.round_trip)

    def _embed(self, name: str, rows: Mapping[str, int], options: EmbeddingOptions) -> VectorTable:
        """Embed the texts of a folder without a vector, and return their table."""
        source, folder, columns = self.work / name, self.work / VECTORS / name, _COLUMNS[name]
        parts = [RowRange(part, source / f"{part}.parquet", 0, rows[part]) for part in rows]
        names = {*missing_parts(folder, dict(rows))}
        missing = [part for part in parts if part.name in names]
        make_vectors(self.session, folder, parts, missing, options, columns)
        return table_of_parts(folder, rows, options, columns)

    def _summary(
        self, staged: Staged, answered: AnswerFigures, figures: QuestionFigures, seconds: float
    ) -> AskingSummary:
        settings = self.settings
        cost = None
        if settings.price_input is not None or settings.price_output is not None:
            prompts = answered.prompt_tokens * (settings.price_input or 0.0)
            replies = answered.reply_tokens * (settings.price_output or 0.0)
            cost = (prompts + replies) / 1e6
        return AskingSummary(
            folder=str(self.folder),
            read=staged.read,
            without_text=staged.without_text,
            documents=staged.documents,
            asked_documents=answered.documents,
            requests=answered.asked,
            known=answered.known,
            problems=answered.problems,
            without_question=answered.without_question,
            questions=figures.parsed,
            dropped=figures.dropped,
            rows=figures.kept,
            prompt_tokens=answered.prompt_tokens,
            reply_tokens=answered.reply_tokens,
            cost=cost,
            seconds=seconds,
        )
