"""Files of answers: documents are read, asked about, and written with the replies. On executors."""

from __future__ import annotations

import json
import math
import uuid
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.errors import InputError, PipelineError
from pipelines.files import storage
from pipelines.files.locations import Location, arrow_source, listed
from pipelines.questions.generator import UNANSWERED, GeneratorOptions, Reply, Request, opened
from pipelines.questions.prompts import Asking
from pipelines.vectors.parts import RowRange, read_rows
from pipelines.vectors.table_job import KEPT_SO_FAR, life_signs

FIGURES = b"sentence_pipelines.asking"
"""Footer key of a file's :class:`AnswerFigures`."""
KEPT = "_kept"
"""Folder of the answers of parts that an error cut off."""
_FIRST = 4
"""Requests of a task whose tokens are unknown, if there is a budget."""


@dataclass(frozen=True)
class AnswerFigures:
    """The counts of a part, stored in the footer of its file.

    Attributes:
        documents: Documents with an answer to each prompt, or a failed request.
        asked: Requests of this job.
        known: Replies taken over from the earlier table.
        problems: Requests without a reply, by their problem.
        prompt_tokens: Tokens of the requests of this job; ``reply_tokens`` likewise.
    """

    documents: int = 0
    asked: int = 0
    known: int = 0
    problems: Mapping[str, int] = field(default_factory=dict)
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


@dataclass(frozen=True, kw_only=True)
class AskingWork:
    """The inputs of all parts of a job; sent to executors.

    ``known`` is a folder of known answers, with a file for each file of documents, or None.
    ``budget`` bounds the tokens of a task.
    """

    generator: str
    options: GeneratorOptions
    asking: Asking
    folder: Location
    known: Location | None
    key_type: pa.DataType
    budget: float


class _Line(NamedTuple):
    """A request about a document: its row of the output, the request, and the known reply.

    ``is_paid`` if this update has paid for the known reply, before an error.
    """

    part: RowRange
    document: Mapping[str, Any]
    prompt: str
    request: Request
    known: Reply | None
    is_paid: bool


@dataclass(frozen=True)
class Failure:
    """Why a task stopped, as plain values; ``key`` is None for no fault of the settings."""

    key: str | None
    problem: str
    remedy: str

    def error(self) -> PipelineError:
        """Return the error to raise on the driver."""
        if self.key is None:
            return PipelineError(f"questions: {self.problem}{KEPT_SO_FAR}")
        return InputError(self.key, self.problem, f"{self.remedy}{KEPT_SO_FAR}")


def ask_parts(
    parts: Iterable[RowRange], *, work: AskingWork, attempts: Location
) -> Iterator[int | Failure]:
    """Write a file of answers for each part, atomically; yield its number of requests.

    Requests of the next part begin before the last replies of one. No request is sent that would
    probably exceed the budget. A model that does not answer ends the task by a
    :class:`Failure`: Spark would only ask it again.
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
    """The parts of a task on their way: lines not yet answered, and the tokens spent."""

    def __init__(self, work: AskingWork, attempts: Location) -> None:
        self._work = work
        self._attempts = attempts
        self._lines: deque[_Line] = deque()
        self._answered: list[tuple[_Line, Reply]] = []
        self._made: list[int] = []
        # Requests on their way, and the tokens of the others.
        self._open = 0
        self._spent = 0
        self._most = 0
        self._torn: set[str] = set()
        # The parts of a file of documents share the known replies.
        self._known: tuple[Location | None, Mapping[tuple[str, str], Reply]] = (None, {})
        self._get_on = life_signs(attempts / f"{uuid.uuid4().hex}.sign")

    def make(self, parts: Iterable[RowRange]) -> Iterator[int]:
        """Write the files of parts; see :func:`ask_parts`."""
        requests = self._requests(parts)
        # Without a new document the model is not even opened.
        first = next(requests, None)
        if first is not None:
            with opened(self._work.generator, self._work.options) as generator:
                asked = chain([first], requests)
                if math.isfinite(self._work.budget):
                    # Their tokens foretell those of the others.
                    self._answer(generator.replies(islice(asked, _FIRST)))
                self._answer(generator.replies(asked))
        self._take_known()
        self._write()
        yield from self._made

    def _answer(self, replies: Iterator[Reply]) -> None:
        try:
            for reply in replies:
                self._get_on()
                self._open -= 1
                self._take_known()
                self._take(self._lines.popleft(), reply)
                self._count(reply)
        except PipelineError:
            # What the last part has is paid for.
            self._torn |= {line.part.name for line, _ in self._answered}
            self._write()
            raise

    def _count(self, reply: Reply) -> None:
        if math.isfinite(self._work.budget) and reply.text is not None and not reply.tokens:
            raise InputError(
                "questions.token_budget",
                "the server does not count tokens",
                "Leave it out, and bound the documents instead",
            )
        self._spent += reply.tokens
        self._most = max(self._most, reply.tokens)

    def _take_known(self) -> None:
        while self._lines and (known := self._lines[0].known) is not None:
            self._take(self._lines.popleft(), known)

    def _take(self, line: _Line, reply: Reply) -> None:
        """Add a line to its part, after writing the part before it."""
        if self._answered and self._answered[0][0].part is not line.part:
            self._write()
        if reply is UNANSWERED:
            self._torn.add(line.part.name)
        else:
            self._answered.append((line, reply))

    def _write(self) -> None:
        if self._answered:
            lines, self._answered = self._answered, []
            is_whole = lines[0][0].part.name not in self._torn
            self._made.append(write_answers(self._work, lines, self._attempts, is_whole=is_whole))

    def _requests(self, parts: Iterable[RowRange]) -> Iterator[Request]:
        """Yield the requests of parts; append their lines to those not yet answered.

        Beyond the budget, known replies are still taken over: the earlier table goes.
        """
        for part in parts:
            figures = figures_of(self._work.folder / f"{part.name}.parquet")
            if figures is not None and figures.documents == part.rows:
                # Of an earlier attempt at this task, which has paid for it.
                self._spent += figures.tokens
                continue
            for line in self._read(part):
                if line.known is not None:
                    self._lines.append(line)
                    if line.is_paid:
                        # The driver has taken its tokens off the budget.
                        self._most = max(self._most, line.known.tokens)
                elif self._foreseen() < self._work.budget:
                    self._lines.append(line)
                    self._open += 1
                    yield line.request
            if not self._open:
                # Nothing is on its way, and known lines may be many.
                self._take_known()

    def _foreseen(self) -> int:
        """Return the tokens after one more request, if those on their way take the most so far."""
        return self._spent + self._most * (self._open + 1)

    def _read(self, part: RowRange) -> Iterator[_Line]:
        columns = ["text", "title", "key"]
        rows = pa.Table.from_batches(read_rows(part.path, part.start, part.stop, columns))
        known = self._known_of(part)
        paid: dict[tuple[str, str], Reply] = {}
        for file in listed(self._work.folder / KEPT, f"{part.name}-*.parquet"):
            paid |= _replies_in(file)
        # Of a part that ended at a budget, with known replies too.
        ended = _replies_in(self._work.folder / f"{part.name}.parquet")
        paid |= {place: reply for place, reply in ended.items() if place not in known}
        for document in rows.to_pylist():
            asked = self._work.asking.requests(document["text"], document["title"])
            for name, prompt, seed in asked:
                place = document["text"], name
                reply = paid.get(place) or known.get(place)
                request = Request(prompt, seed)
                yield _Line(part, document, name, request, reply, place in paid)

    def _known_of(self, part: RowRange) -> Mapping[tuple[str, str], Reply]:
        """Return the known replies of the file of a part's documents."""
        file = None if self._work.known is None else self._work.known / part.path.name
        if file is not None and file != self._known[0]:
            self._known = file, _replies_in(file)
        return self._known[1]


def tokens_of(folder: Location, part: str) -> int:
    """Return the tokens that this update has paid for a part, whole or not."""
    figures, kept = figures_of(folder / f"{part}.parquet"), dict[tuple[str, str], Reply]()
    for file in listed(folder / KEPT, f"{part}-*.parquet"):
        kept |= _replies_in(file)
    # A later file of a part holds the replies of those before.
    return max(0 if figures is None else figures.tokens, sum(one.tokens for one in kept.values()))


def answer_files(folder: Location, build: str = "part-") -> list[Location]:
    """Return the files of answers whose names begin so; remove the remains of uploads."""
    found = []
    for file in listed(folder, f"{build}*.parquet"):
        if figures_of(file) is None:
            file.unlink()
        else:
            found.append(file)
    return found


def problem_without_reply(files: Iterable[Location]) -> str | None:
    """Return a problem of files of answers without a single reply; None for others."""
    problem = None
    for file in files:
        table = pq.read_table(arrow_source(file), columns=["reply", "problem"])
        if table["reply"].null_count < len(table):
            return None
        problem = problem or next(iter(table["problem"].drop_null().to_pylist()), None)
    return problem


def _is_parquet(file: Location) -> bool:
    try:
        pq.read_metadata(arrow_source(file))
    except (FileNotFoundError, pa.ArrowInvalid):
        return False
    return True


def figures_of(file: Location) -> AnswerFigures | None:
    """Return the figures of a whole file; None for none, or for the remains of an upload."""
    try:
        return AnswerFigures.read(file)
    except (FileNotFoundError, KeyError, pa.ArrowInvalid):
        return None


def _replies_in(file: Location) -> Mapping[tuple[str, str], Reply]:
    """Return the replies of a file, by text and prompt; none without the file, or a whole one."""
    found: dict[tuple[str, str], Reply] = {}
    if not _is_parquet(file):
        return found
    with pq.ParquetFile(arrow_source(file)) as opened:
        for batch in opened.iter_batches(use_threads=False):
            for row in batch.to_pylist():
                # A failed request is worth another one.
                if row["reply"] is not None:
                    reply = Reply(row["reply"], row["prompt_tokens"], row["reply_tokens"])
                    found[row["text"], row["prompt"]] = reply
    return found


def answers_schema(key_type: pa.DataType) -> pa.Schema:
    """Return the columns of answers: a row for each document and prompt."""
    return pa.schema(
        [
            ("text", pa.string()),
            ("title", pa.string()),
            ("key", key_type),
            ("prompt", pa.string()),
            ("reply", pa.string()),
            ("problem", pa.string()),
            ("prompt_tokens", pa.int32()),
            ("reply_tokens", pa.int32()),
        ]
    )


def _is_new(line: _Line) -> bool:
    """Return whether this update pays for a line."""
    return line.known is None or line.is_paid


def write_answers(
    work: AskingWork,
    lines: list[tuple[_Line, Reply]],
    attempts: Location,
    *,
    is_whole: bool,
) -> int:
    """Write the file of a part, or what there is of one; return the number of its requests."""
    part = lines[0][0].part
    prompts = Counter(line.document["text"] for line, _ in lines)
    whole = len(work.asking.prompts)
    new = [reply for line, reply in lines if _is_new(line)]
    problems = Counter(reply.problem.partition(":")[0] for reply in new if reply.problem)
    figures = AnswerFigures(
        documents=sum(count == whole for count in prompts.values()),
        asked=len(new),
        known=len(lines) - len(new),
        problems=dict(problems),
        prompt_tokens=sum(reply.prompt_tokens for reply in new),
        reply_tokens=sum(reply.reply_tokens for reply in new),
    )
    rows = [
        {
            **line.document,
            "prompt": line.prompt,
            "reply": reply.text,
            "problem": reply.problem,
            "prompt_tokens": reply.prompt_tokens,
            "reply_tokens": reply.reply_tokens,
        }
        for line, reply in lines
    ]
    schema = answers_schema(work.key_type).with_metadata(
        {FIGURES: json.dumps(asdict(figures)).encode()}
    )
    target = work.folder / f"{part.name}.parquet"
    if not is_whole:
        # Others are in the earlier table, and cost nothing again.
        rows = [row for row, (line, _) in zip(rows, lines, strict=True) if _is_new(line)]
        target = work.folder / KEPT / f"{part.name}-{uuid.uuid4().hex}.parquet"
    table = pa.Table.from_pylist(rows, schema=schema)
    with storage.built_file(target, aside_in=attempts) as path:
        pq.write_table(table, path, compression="zstd", write_page_checksum=True)
    return len(new)
