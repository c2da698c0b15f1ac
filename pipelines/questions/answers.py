"""Files of answers: documents are read, asked about, and written with the replies. On executors."""

from __future__ import annotations

import json
import math
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.errors import InputError, PipelineError
from pipelines.files.locations import Location, arrow_source, listed
from pipelines.questions.generator import (
    CUT,
    UNANSWERED,
    GeneratorOptions,
    Reply,
    Request,
    opened,
)
from pipelines.questions.kept import (
    Keeper,
    Place,
    answer_row,
    answers_schema,
    kept_replies,
    replies_in,
    write_rows,
)
from pipelines.questions.parsing import questions_of
from pipelines.questions.prompts import Asking
from pipelines.vectors.parts import RowRange, read_rows
from pipelines.vectors.table_job import life_signs

FIGURES = b"sentence_pipelines.asking"
"""Footer key of a file's :class:`AnswerFigures`."""
REPLIES_KEPT = "; replies are kept, and the same command asks for the others"
_FIRST = 4
"""Requests at a time while their tokens are unknown, if there is a budget."""


@dataclass(frozen=True)
class AnswerFigures:
    """The counts of a part, stored in the footer of its file.

    Attributes:
        documents: Documents with an answer to each prompt, or a failed request. Half a reply does
            not count if the limit has risen since.
        asked: Requests of this job.
        known: Replies taken over from the earlier table.
        problems: Requests without a reply, or with half of one, by their problem.
        without_question: Replies of this job with a whole text, but without any question.
        prompt_tokens: Tokens of the requests of this job; ``reply_tokens`` likewise.
    """

    documents: int = 0
    asked: int = 0
    known: int = 0
    problems: Mapping[str, int] = field(default_factory=dict)
    without_question: int = 0
    prompt_tokens: int = 0
    reply_tokens: int = 0

    @classmethod
    def read(cls, file: Location) -> AnswerFigures:
        """Read the figures of a file.

        Raises:
            pyarrow.ArrowInvalid: The file is not whole.
        """
        footer = pq.read_schema(arrow_source(file)).metadata or {}
        return cls(**json.loads(footer[FIGURES]))

    @classmethod
    def total(cls, parts: Iterable[AnswerFigures]) -> AnswerFigures:
        """Add up the figures of several parts."""
        sums: Counter[str] = Counter()
        problems: Counter[str] = Counter()
        for part in parts:
            figures = asdict(part)
            problems.update(figures.pop("problems"))
            sums.update(figures)
        return cls(**sums, problems=dict(problems))

    @property
    def tokens(self) -> int:
        """Tokens of all requests and replies of this job."""
        return self.prompt_tokens + self.reply_tokens

    @property
    def fullness(self) -> tuple[int, int]:
        """Documents and replies: of two files of a part, the one with more counts."""
        return self.documents, self.asked + self.known - sum(self.problems.values())


@dataclass(frozen=True, kw_only=True)
class AskingWork:
    """The inputs of all parts of a job; sent to executors.

    ``known`` is a folder of known answers, with a file for each file of documents, or None.
    ``budget`` bounds the tokens of a task; those ``paid`` for parts are no longer in it.
    """

    generator: str
    options: GeneratorOptions
    asking: Asking
    folder: Location
    known: Location | None
    key_type: pa.DataType
    budget: float
    paid: Mapping[str, int]


@dataclass
class _Line:
    """A row of the output: a document, a prompt, and the reply, once it is there.

    ``is_new`` if this update pays for the reply. ``earlier`` is a paid one that ended at a lower
    limit: it stays where no better one comes. ``failure`` is the problem of a request without a
    reply in its place.
    """

    document: Mapping[str, Any]
    prompt: str
    reply: Reply | None
    is_new: bool
    earlier: Reply | None = None
    failure: str | None = None

    @property
    def row(self) -> dict[str, Any]:
        """The row of a line with a reply."""
        assert self.reply is not None, "it is answered"
        return answer_row(self.document, self.prompt, self.reply)

    @property
    def problem(self) -> str | None:
        """The problem of this update's request, if there was one."""
        of_reply = self.reply.problem if self.is_new and self.reply is not None else None
        return self.failure or of_reply

    def take(self, reply: Reply) -> None:
        """Take the reply to the line's request."""
        self.reply, earlier = reply, self.earlier
        if earlier is None or earlier.text is None or reply.text is not None:
            return
        if reply.is_paid:
            self.reply = replace(reply, text=earlier.text, problem=CUT)
        else:
            # Only a failed request is worth another one.
            limit = earlier.limit if reply.has_failed else reply.limit
            self.reply, self.is_new = replace(earlier, limit=limit), False
            self.failure = reply.problem


@dataclass
class _OpenPart:
    """A part on its way: its lines so far, and the number of requests without a reply yet."""

    part: RowRange
    lines: list[_Line] = field(default_factory=list)
    waiting: int = 0
    is_read: bool = False
    is_torn: bool = False


@dataclass(frozen=True)
class Failure:
    """Why a task stopped, as plain values; ``key`` is None for no fault of the settings."""

    key: str | None
    problem: str
    remedy: str

    def error(self) -> PipelineError:
        """Return the error to raise on the driver."""
        if self.key is None:
            return PipelineError(f"questions: {self.problem}{REPLIES_KEPT}")
        return InputError(self.key, self.problem, f"{self.remedy}{REPLIES_KEPT}")


def ask_parts(
    parts: Iterable[RowRange], *, work: AskingWork, attempts: Location
) -> Iterator[int | Failure]:
    """Write a file of answers for each part, atomically; yield its number of requests.

    Requests of the next part begin before the last replies of one. Replies of unfinished parts are
    kept (:mod:`pipelines.questions.kept`), so an attempt may be killed, or run twice at a time. No
    request is sent that would probably exceed the budget. A model that does not answer ends the
    task by a :class:`Failure`: Spark would only ask it again.
    """
    pa.set_cpu_count(work.options.threads)
    with failures_kept() as failures:
        yield from _Task(work, attempts).make(parts)
    yield from failures


@contextmanager
def failures_kept() -> Iterator[list[Failure]]:
    """Yield a list for the error of the block, to be raised on the driver."""
    found: list[Failure] = []
    try:
        yield found
    except InputError as error:
        found.append(Failure(error.key, error.problem, error.remedy))
    except PipelineError as error:
        found.append(Failure(None, str(error), ""))


class _Task:
    """The parts of a task on their way: requests without a reply, and the tokens spent."""

    def __init__(self, work: AskingWork, attempts: Location) -> None:
        self._work = work
        self._attempts = attempts
        self._limit = work.options.max_tokens
        self._schema = answers_schema(work.key_type)
        self._keeper = Keeper(work.folder, self._schema, attempts)
        self._open: dict[Request, tuple[_OpenPart, _Line]] = {}
        self._made: list[int] = []
        # Tokens of replies, and those of the longest request and reply.
        self._spent = 0
        self._most = 0
        # The parts of a file of documents share the known replies.
        self._known: tuple[Location | None, Mapping[Place, Reply]] = (None, {})
        self._get_on = life_signs(attempts / f"{uuid.uuid4().hex}.sign")

    def make(self, parts: Iterable[RowRange]) -> Iterator[int]:
        """Write the files of parts; see :func:`ask_parts`."""
        requests = self._requests(parts)
        with self._keeper:
            # Without a new document the model is not even opened.
            first = next(requests, None)
            if first is not None:
                with opened(self._work.generator, self._work.options) as generator:
                    # Each round begins without a request on its way.
                    for request in chain([first], requests):
                        self._take(generator.replies(_round(request, requests)))
        yield from self._made

    def _requests(self, parts: Iterable[RowRange]) -> Iterator[Request | None]:
        """Yield the requests of parts, and write parts without any.

        None stands for a pause until all requests have their replies. Beyond the budget, known
        replies are still taken over: the earlier table goes.
        """
        for part in parts:
            if math.isfinite(self._work.budget):
                # An earlier attempt at this task has spent more than the driver knows.
                paid = self._work.paid.get(part.name, 0)
                self._spent += tokens_of(self._work.folder, part.name) - paid
            figures = figures_of(self._work.folder / f"{part.name}.parquet")
            if figures is not None and figures.documents == part.rows:
                continue
            begun = _OpenPart(part)
            for line, request in self._read(part):
                if line.reply is not None:
                    begun.lines.append(line)
                    if line.is_new:
                        self._most = max(self._most, line.reply.tokens)
                    continue
                if self._open and not self._is_affordable():
                    # They may cost less than foreseen, and must not wait for all other parts.
                    yield None
                if self._is_affordable():
                    begun.lines.append(line)
                    begun.waiting += 1
                    self._open[request] = begun, line
                    yield request
                elif line.earlier is not None:
                    line.reply, line.is_new = line.earlier, False
                    begun.lines.append(line)
            begun.is_read = True
            self._write_if_whole(begun)

    def _is_affordable(self) -> bool:
        """Return whether one more request probably keeps to the budget.

        Those on their way may take the most tokens so far, and foretell them at the beginning.
        """
        if math.isinf(self._work.budget):
            return True
        if not self._most and len(self._open) >= _FIRST:
            return False
        return self._spent + self._most * (len(self._open) + 1) < self._work.budget

    def _take(self, replies: Iterator[tuple[Request, Reply]]) -> None:
        """Give replies to their lines, and write the parts that are whole."""
        for request, reply in replies:
            self._get_on()
            begun, line = self._open.pop(request)
            begun.waiting -= 1
            if reply is UNANSWERED:
                begun.is_torn = True
            else:
                line.take(replace(reply, limit=self._limit))
                if line.is_new:
                    self._keeper.add(begun.part.name, line.row)
                self._count(reply)
            self._write_if_whole(begun)

    def _count(self, reply: Reply) -> None:
        if math.isfinite(self._work.budget) and reply.text is not None and not reply.tokens:
            raise InputError(
                "questions.token_budget",
                "the server does not count tokens",
                "Leave it out, and bound the documents instead",
            )
        self._spent += reply.tokens
        self._most = max(self._most, reply.tokens)

    def _write_if_whole(self, begun: _OpenPart) -> None:
        is_whole = begun.is_read and not begun.waiting and not begun.is_torn
        if is_whole and (not begun.lines or self._write(begun)):
            self._keeper.end(begun.part.name)

    def _write(self, begun: _OpenPart) -> bool:
        """Write the file of a part, unless another attempt has written a fuller one."""
        lines = begun.lines
        new = [line.reply for line in lines if line.is_new and line.reply is not None]
        done = [line for line in lines if line.failure or not self._is_short(line.reply)]
        prompts = Counter(line.document["text"] for line in done)
        asked = len(self._work.asking.prompts)
        problems = Counter(line.problem.partition(":")[0] for line in lines if line.problem)
        asked_for = sum(line.is_new or line.failure is not None for line in lines)
        figures = AnswerFigures(
            documents=sum(count == asked for count in prompts.values()),
            asked=asked_for,
            known=len(lines) - asked_for,
            problems=dict(problems),
            without_question=sum(map(_is_without_question, new)),
            prompt_tokens=sum(reply.prompt_tokens for reply in new),
            reply_tokens=sum(reply.reply_tokens for reply in new),
        )
        schema = self._schema.with_metadata({FIGURES: json.dumps(asdict(figures)).encode()})
        target = self._work.folder / f"{begun.part.name}.parquet"
        self._made.append(len(new))
        present = figures_of(target)
        if present is not None and present.fullness > figures.fullness:
            return False
        write_rows([line.row for line in lines], schema, target, self._attempts)
        return True

    def _read(self, part: RowRange) -> Iterator[tuple[_Line, Request]]:
        """Yield the lines of a part, with the replies that are there, and their requests."""
        columns = ["text", "title", "key"]
        rows = pa.Table.from_batches(read_rows(part.path, part.start, part.stop, columns))
        known = self._known_of(part)
        paid = _paid(self._keeper.begin(part.name))
        # Of a part that ended at a budget, with known replies too.
        ended = _paid(_replies_of(self._work.folder / f"{part.name}.parquet"))
        paid |= {place: reply for place, reply in ended.items() if place not in known}
        for document in rows.to_pylist():
            asked = self._work.asking.requests(document["text"], document["title"])
            for name, prompt, seed in asked:
                place = document["text"], name
                reply = paid.get(place) or known.get(place)
                if self._is_short(reply):
                    line = _Line(document, name, None, is_new=True, earlier=reply)
                else:
                    is_new = place in paid or place not in known
                    line = _Line(document, name, reply, is_new)
                yield line, Request(prompt, seed)

    def _is_short(self, reply: Reply | None) -> bool:
        return reply is not None and reply.is_short(self._limit)

    def _known_of(self, part: RowRange) -> Mapping[Place, Reply]:
        """Return the known replies of the file of a part's documents."""
        file = None if self._work.known is None else self._work.known / part.path.name
        if file is not None and file != self._known[0]:
            self._known = file, _paid(_replies_of(file))
        return self._known[1]


def _is_without_question(reply: Reply) -> bool:
    return reply.problem is None and not questions_of(reply.text or "", 1, is_cut=False)


def _round(request: Request | None, others: Iterator[Request | None]) -> Iterator[Request]:
    """Yield a request and others up to the next pause."""
    while request is not None:
        yield request
        request = next(others, None)


def tokens_of(folder: Location, part: str) -> int:
    """Return the tokens that this update has paid for a part, whole or not."""
    file = folder / f"{part}.parquet"
    figures, (kept, _) = figures_of(file), kept_replies(folder, part)
    # A job killed just before it removed kept files has their replies twice.
    written = _paid(replies_in(file)) if figures is not None and kept else {}
    spent = sum(reply.tokens for place, reply in kept.items() if place not in written)
    return spent + (0 if figures is None else figures.tokens)


def answer_files(folder: Location, build: str = "part-") -> list[Location]:
    """Return the files of answers whose names begin so; remove the remains of uploads."""
    found = []
    for file in listed(folder, f"{build}*.parquet"):
        if figures_of(file) is None:
            file.unlink()
        else:
            found.append(file)
    return found


def first_problem(files: Iterable[Location]) -> str | None:
    """Return a problem in files of answers, if there is one."""
    tables = (pq.read_table(arrow_source(file), columns=["problem"]) for file in files)
    problems = chain.from_iterable(table["problem"].drop_null().to_pylist() for table in tables)
    return next(problems, None)


def holds_paid(file: Location) -> bool:
    """Return whether a whole file has a reply of the model, known before or new.

    Some servers count no tokens, so a text counts, too.
    """
    return bool(_paid(replies_in(file)))


def figures_of(file: Location) -> AnswerFigures | None:
    """Return the figures of a whole file; None for none, or for the remains of an upload."""
    try:
        return AnswerFigures.read(file)
    except (FileNotFoundError, KeyError, pa.ArrowInvalid):
        return None


def _replies_of(file: Location) -> dict[Place, Reply]:
    """Return the replies in a file; none without the file."""
    return replies_in(file) if file.is_file() else {}


def _paid(replies: Mapping[Place, Reply]) -> dict[Place, Reply]:
    """Return the replies of the model: a failed request is worth another one."""
    return {place: reply for place, reply in replies.items() if reply.is_paid}
