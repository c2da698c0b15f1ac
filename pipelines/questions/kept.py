"""Replies of unfinished parts, kept in small files until the part has its own. On executors.

A reply may cost money or minutes, and a part has many. So a thread of each task writes new replies
into files of the folder `_kept` every few seconds. Names have the part, and an id that no other
attempt has: attempts add files, and a part takes over all of them. Files of one attempt double in
rows, so they are few.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.errors import PipelineError
from pipelines.files import storage
from pipelines.files.locations import Location, arrow_source, listed
from pipelines.questions.generator import Reply

logger = logging.getLogger(__name__)

KEPT = "_kept"
"""Folder of the replies of unfinished parts, beside the files of whole ones."""
KEPT_SECONDS = 5.0
"""Longest time for which a reply is in memory alone, besides the time of writing."""
KEPT_REPLIES = 500
"""Most replies in memory alone, likewise."""
_END_SECONDS = 600.0
"""Time limit of the last files: stores give up earlier."""
_LISTINGS = 10
"""Attempts to read files that another attempt at the task joins meanwhile."""
_FAILURES = (OSError, PipelineError, pa.ArrowException)

Place = tuple[str, str]
"""A document's text and the name of a prompt."""


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
            ("max_tokens", pa.int32()),
        ]
    )


def answer_row(document: Mapping[str, Any], prompt: str, reply: Reply) -> dict[str, Any]:
    """Return a row of answers; ``document`` has the text, the title and the key."""
    return {
        **document,
        "prompt": prompt,
        "reply": reply.text,
        "problem": reply.problem,
        "prompt_tokens": reply.prompt_tokens,
        "reply_tokens": reply.reply_tokens,
        "max_tokens": reply.limit,
    }


def write_rows(
    rows: list[dict[str, Any]], schema: pa.Schema, target: Location, attempts: Location
) -> None:
    """Write a file of answers, atomically."""
    table = pa.Table.from_pylist(rows, schema=schema)
    with storage.built_file(target, aside_in=attempts) as path:
        pq.write_table(table, path, compression="zstd", write_page_checksum=True)


def replies_in(file: Location) -> dict[Place, Reply]:
    """Return the best replies in a file; none in the remains of an upload.

    Raises:
        FileNotFoundError: There is no such file.
    """
    found: dict[Place, Reply] = {}
    try:
        answers = pq.ParquetFile(arrow_source(file))
    except pa.ArrowInvalid:
        return found
    with answers:
        for batch in answers.iter_batches(use_threads=False):
            for row in batch.to_pylist():
                reply = Reply(
                    text=row["reply"],
                    prompt_tokens=row["prompt_tokens"],
                    reply_tokens=row["reply_tokens"],
                    problem=row["problem"],
                    limit=row["max_tokens"],
                )
                _add_better(found, (row["text"], row["prompt"]), reply)
    return found


def _add_better(found: dict[Place, Reply], place: Place, reply: Reply) -> None:
    known = found.get(place)
    if known is None or reply.is_better(known):
        found[place] = reply


def kept_replies(folder: Location, part: str) -> tuple[dict[Place, Reply], list[Location]]:
    """Return the kept replies of a part, and their files; ``folder`` is that of the answers.

    Raises:
        PipelineError: The files change faster than they can be read.
    """
    for _ in range(_LISTINGS):
        found: dict[Place, Reply] = {}
        files = listed(folder / KEPT, f"{part}-*.parquet")
        try:
            for file in files:
                # A failed request may have a reply in another attempt's file.
                for place, reply in replies_in(file).items():
                    _add_better(found, place, reply)
        except FileNotFoundError:
            # Its replies are in a newer file.
            continue
        return found, files
    problem = f"files of {part} in {folder / KEPT} vanish while they are read"
    raise PipelineError(f"{problem}. Wait until no other job works there")


def remove_remains(folder: Location) -> None:
    """Remove torn files from a folder of answers: Spark would fail at them.

    An interrupted upload leaves one, and so does a loss of power.
    """
    for file in listed(folder, "part-*.parquet"):
        try:
            pq.read_metadata(arrow_source(file))
        except pa.ArrowInvalid:
            file.unlink(missing_ok=True)


@dataclass
class _Part:
    """The new rows of an unfinished part.

    ``files`` have the first ``written`` rows, each those from its number on. ``earlier`` files are
    of other attempts.
    """

    name: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    written: int = 0
    files: list[tuple[int, Location]] = field(default_factory=list)
    earlier: list[Location] = field(default_factory=list)
    is_whole: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Keeper:
    """Keeps the replies of a task's unfinished parts; a context manager.

    ``folder`` is that of the answers, ``attempts`` that of the job's files on their way.
    """

    def __init__(self, folder: Location, schema: pa.Schema, attempts: Location) -> None:
        self._folder = folder
        self._schema = schema
        self._attempts = attempts
        self._parts: dict[str, _Part] = {}
        self._lock = threading.Lock()
        self._unwritten = 0
        self._is_ended = False
        self._is_due = threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="kept-replies")
        self._writing: Future[None] | None = None
        self._failure: Exception | None = None

    def __enter__(self) -> Keeper:
        self._writing = self._pool.submit(self._work)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_ended = True
        self._is_due.set()
        self._pool.shutdown(wait=False)
        assert self._writing is not None, "it was entered"
        try:
            self._writing.result(_END_SECONDS)
            if self._failure is not None:
                raise self._failure
        except _FAILURES as failure:
            # The block's own error says more, and perhaps whether another attempt is of use.
            if error is None:
                raise
            logger.warning("questions: the last replies are lost (%s)", failure)

    def begin(self, part: str) -> dict[Place, Reply]:
        """Begin a part; return its replies kept by earlier attempts."""
        replies, files = kept_replies(self._folder, part)
        with self._lock:
            self._parts[part] = _Part(part, earlier=files)
        return replies

    def add(self, part: str, row: dict[str, Any]) -> None:
        """Keep a row of a part soon.

        Raises:
            OSError: An earlier row could not be written; the end of the block tries it again.
            PipelineError: Another job has taken this one for dead.
        """
        self._parts[part].rows.append(row)
        self._unwritten += 1
        if self._unwritten >= KEPT_REPLIES:
            self._is_due.set()
        assert self._writing is not None, "it was entered"
        if self._writing.done():
            self._writing.result()
        if (failure := self._failure) is not None:
            raise failure

    def end(self, part: str) -> None:
        """Remove the files of a part: it has its own, with all their replies."""
        with self._lock:
            ended = self._parts.pop(part)
        with ended.lock:
            ended.is_whole = True
        # Not those that another attempt has added since: its part may have more documents.
        for file in (*ended.earlier, *(file for _, file in ended.files)):
            file.unlink(missing_ok=True)

    def _work(self) -> None:
        is_last = False
        while not is_last:
            self._is_due.wait(KEPT_SECONDS)
            self._is_due.clear()
            is_last = self._is_ended
            self._unwritten = 0
            with self._lock:
                parts = [*self._parts.values()]
            failure = None
            for part in parts:
                try:
                    self._write(part)
                except _FAILURES as error:
                    failure = error
            self._failure = failure

    def _write(self, part: _Part) -> None:
        with part.lock:
            start, stop = part.written, len(part.rows)
            if part.is_whole or start == stop:
                return
            first = len(part.files)
            # Files at least double, so they are few, and a row is written few times.
            while first and start - part.files[first - 1][0] <= stop - start:
                first -= 1
                start = part.files[first][0]
            target = self._folder / KEPT / f"{part.name}-{uuid.uuid4().hex}.parquet"
            write_rows(part.rows[start:stop], self._schema, target, self._attempts)
            joined, part.files[first:] = part.files[first:], [(start, target)]
            part.written = stop
            for _, file in joined:
                file.unlink(missing_ok=True)
