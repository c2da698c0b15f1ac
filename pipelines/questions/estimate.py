"""The price of a job of `ask`, from real requests about a few documents."""

from __future__ import annotations

import math
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.corpus.cleaning.rules import is_installed as knows_languages
from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.files.begun import begun_folders
from pipelines.files.locations import Location
from pipelines.questions.answers import Failure, failures_kept
from pipelines.questions.ask import AskingJob
from pipelines.questions.documents import INPUTS, PAID, documents_source, read_documents
from pipelines.questions.filters import Asked, Filters
from pipelines.questions.generator import CUT, EMPTY, GeneratorOptions, Reply, Request, opened
from pipelines.questions.kept import KEPT
from pipelines.questions.parsing import questions_of
from pipelines.questions.prompts import Asking
from pipelines.spark.frames import read_parquet
from pipelines.spark.tasks import collect_from_tasks
from pipelines.vectors.sources import damage_told, has_text
from pipelines.vectors.table_job import run_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

SAMPLE = 20
"""Documents of a sample."""
_SHOWN = 3
_NORMAL_95 = 1.96
_CHARACTERS_SHOWN = 70
_WHOLE = 100
"""From here on, sums have no decimal places."""


@dataclass(frozen=True)
class Sampled:
    """A request of the sample: its document, prompt and reply."""

    document: Mapping[str, Any]
    prompt: str
    reply: Reply


@dataclass(frozen=True)
class Estimate:
    """The price of a job.

    ``documents`` are all distinct texts, ``known`` those with answers, by the present table and
    the whole parts of an unfinished one;
    ``without_text`` are further rows.
    ``prices`` are those of a million tokens of prompts and of replies, None if unknown.
    """

    documents: int
    without_text: int
    known: int
    prompts: int
    sampled: tuple[Sampled, ...]
    prices: tuple[float | None, float | None]
    count: int
    filters: Filters

    def lines(self) -> list[str]:
        """Return the lines to print."""
        requests = max(0, self.documents - self.known) * self.prompts
        if not any(one.reply.is_paid for one in self.sampled):
            return [f"no reply to {len(self.sampled)} requests: {self._problems()}"]
        # Empty replies cost the most tokens, and refused requests none; failed ones are repeated.
        replies = [one.reply for one in self.sampled if not one.reply.has_failed]
        read, written = (
            np.array([getattr(reply, name) for reply in replies], float)
            for name in ("prompt_tokens", "reply_tokens")
        )
        of_them = f", {self.known:,} of them with answers" if self.known else ""
        empty = f" ({self.without_text:,} rows without text)" if self.without_text else ""
        lines = [
            f"{self.documents:,} documents{empty}{of_them}, {requests:,} requests; "
            f"sample of {len(replies)}:"
        ]
        lines += self._price(read, written, requests) or ["  the server does not count tokens"]
        found = [(one, question) for one in self.sampled for question in self._questions(one)]
        kept = [
            question
            for one, question in found
            if self.filters.reason(
                Asked(question, one.prompt, one.document["text"], one.document["title"])
            )
            is None
        ]
        lines.append(
            f"  {len(kept)} of {len(found)} questions pass the filters (without the round trip)"
        )
        if problems := self._problems():
            lines.append(f"  problems: {problems}")
        return [*lines, *self._shown()]

    def _price(self, read: np.ndarray, written: np.ndarray, requests: int) -> list[str]:
        """Return the tokens and the costs of all requests; nothing without tokens."""
        if not read.any() and not written.any():
            return []
        lines = [
            f"  {_total(read, requests)} tokens of prompts ({read.mean():,.0f} a request)",
            f"  {_total(written, requests)} tokens of replies ({written.mean():,.0f} a request)",
        ]
        if any(price is not None for price in self.prices):
            costs = read * (self.prices[0] or 0.0) + written * (self.prices[1] or 0.0)
            lines.append(f"  cost {_total(costs / 1e6, requests)}")
        return lines

    def _questions(self, one: Sampled) -> list[str]:
        reply = one.reply
        return questions_of(reply.text or "", self.count, is_cut=reply.problem == CUT)

    def _problems(self) -> str:
        """Return the problems of the sample with their counts, the most frequent first."""
        found = Counter(one.reply.problem for one in self.sampled if one.reply.problem)
        return "; ".join(f"{count} {problem}" for problem, count in found.most_common())

    def _shown(self) -> Iterator[str]:
        for one in self.sampled[:_SHOWN]:
            beginning = " ".join(one.document["text"].split())[:_CHARACTERS_SHOWN]
            yield f"{one.prompt} for: {beginning}"
            for question in self._questions(one):
                yield f"  {question}"


def _total(values: np.ndarray, requests: int) -> str:
    """Return the sum over all requests by a sample, with its 95 % interval."""
    mean, half = float(values.mean()) * requests, 0.0
    if len(values) > 1:
        half = _NORMAL_95 * float(values.std(ddof=1)) / math.sqrt(len(values)) * requests
    digits = 0 if mean >= _WHOLE else 4
    return f"{mean:,.{digits}f} (±{half:,.{digits}f})"


def estimate(session: SparkSession, job: AskingJob) -> Estimate:
    """Ask about a few documents, drawn by their hash; write nothing to the table.

    Raises:
        InputError: The model or the documents cannot be used.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    config, settings = job.config, job.settings
    # Beside the table, where executors write too.
    staged = job.folder.parent / f".{job.folder.name}.sample-{uuid.uuid4().hex[:8]}"

    def draw() -> tuple[int, int, int, list[Row]]:
        with damage_told(session, config, [documents_source(config)]), _discarded(staged):
            frame = read_documents(session, config, staged, job.folder)
            readable = frame.where(has_text("text"))
            texts = readable.groupBy("text").agg(F.min("title").alias("title"))
            documents, without_text = texts.count(), frame.count() - readable.count()
            if not documents:
                raise InputError(INPUTS, "no row has a text", "Name a table of documents")
            new = _new_documents(session, job, texts)
            known = documents - new.count()
            asked = texts if known == documents else new
            drawn = asked.orderBy(F.xxhash64("text")).limit(SAMPLE).collect()
        return documents, without_text, known, drawn

    documents, without_text, known, drawn = run_job(session, "questions: drawing a sample", draw)
    rows = [{"text": row["text"], "title": row["title"]} for row in drawn]
    options = replace(job.options(session, 1), requests=min(settings.requests, SAMPLE))
    ask = partial(_ask_sample, generator=settings.generator, options=options, asking=job.asking)
    act = partial(collect_from_tasks, session, [rows], ask)
    found = run_job(session, "questions: asking about a sample", act)
    if failed := [one for one in found if isinstance(one, Failure)]:
        raise failed[0].error()
    return Estimate(
        documents=documents,
        without_text=without_text,
        known=known,
        prompts=len(job.asking.prompts),
        sampled=tuple(one for one in found if isinstance(one, Sampled)),
        prices=(settings.price_input, settings.price_output),
        count=settings.per_prompt,
        filters=Filters(settings, knows_languages()),
    )


@contextmanager
def _discarded(folder: Location) -> Iterator[None]:
    """Remove a folder at the end of the block."""
    try:
        yield
    finally:
        storage.discard_folder(folder)


def _new_documents(session: SparkSession, job: AskingJob, texts: DataFrame) -> DataFrame:
    """Return the texts without an answer to each prompt."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    begun = next(iter(begun_folders(job.folder)), None)
    # A job that is asking now joins its kept files while Spark would read them.
    folders = [folder for folder in job.known_answers(begun) if folder.name != KEPT]
    if not folders:
        return texts
    limit = job.settings.max_tokens
    short = f"coalesce(problem in ('{CUT}', '{EMPTY}'), false) and max_tokens < {limit}"
    answers = [
        read_parquet(session, folder).where(f"({PAID}) and not ({short})").select("text", "prompt")
        for folder in folders
    ]
    known = reduce(lambda left, right: left.union(right), answers)
    prompts = known.groupBy("text").agg(F.countDistinct("prompt").alias("prompts"))
    whole = prompts.where(f"prompts >= {len(job.asking.prompts)}")
    return texts.join(whole, "text", "left_anti")


def _ask_sample(
    tasks: Iterable[list[dict[str, Any]]],
    *,
    generator: str,
    options: GeneratorOptions,
    asking: Asking,
) -> Iterator[Sampled | Failure]:
    """Yield the replies about documents. Runs on an executor."""
    for rows in tasks:
        asked = [
            (document, name, Request(prompt, seed))
            for document in rows
            for name, prompt, seed in asking.requests(document["text"], document["title"])
        ]
        with failures_kept() as failures, opened(generator, options) as model:
            replies = dict(model.replies(request for _, _, request in asked))
            for document, name, request in asked:
                yield Sampled(document, name, replies[request])
        yield from failures
