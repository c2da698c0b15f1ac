"""The result of the job `ask`, as it is printed and kept in the manifest of the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipelines.files import records
from pipelines.files.locations import Location
from pipelines.questions.filters import REASONS
from pipelines.questions.generator import CUT, FAILED
from pipelines.vectors.table_job import MANIFEST_FILE


@dataclass(frozen=True)
class AskingSummary:
    """The result of a job.

    Attributes:
        folder: The table; in a store, its current version.
        read: Rows of the input.
        without_text: Rows of the input without a text.
        documents: Distinct texts.
        asked_documents: Documents with an answer to each prompt, or a failed request.
        requests: Requests of this table's update; ``known`` replies are those of an earlier one.
        problems: Requests without a reply, or with half of one, by their problem.
        without_question: Replies with a whole text, but without any question.
        questions: Questions in the replies.
        dropped: Questions dropped by filters, by reason.
        rows: Questions kept.
        prompt_tokens: Tokens of the update's prompts; ``reply_tokens`` likewise.
        cost: Their price; None without prices.
        seconds: Time of asking, in this run.
    """

    folder: str
    read: int
    without_text: int
    documents: int
    asked_documents: int
    requests: int
    known: int
    problems: Mapping[str, int]
    questions: int
    dropped: Mapping[str, int]
    rows: int
    prompt_tokens: int
    reply_tokens: int
    cost: float | None
    seconds: float
    without_question: int = 0

    @classmethod
    def read_again(cls, folder: Location) -> AskingSummary:
        """Return the result of a finished table, for a run without any work."""
        nothing = dict.fromkeys(("requests", "prompt_tokens", "reply_tokens", "seconds"), 0)
        again = {"folder": str(folder), **nothing, "cost": None}
        return records.built(
            folder / MANIFEST_FILE, lambda known: cls(**{**known["figures"], **again})
        )

    @property
    def kept_share(self) -> float:
        """The portion of questions that passed the filters: the first figure of their quality."""
        return self.rows / self.questions if self.questions else 0.0

    def lines(self) -> list[str]:
        """Return the lines to print at the end."""
        lines = [
            f"{self.documents:,} documents ({self.read:,} rows, {self.without_text:,} without text)"
        ]
        asked = f"{self.requests:,} requests, {self.known:,} replies known before"
        if unanswered := _counted(self.problems, {*self.problems} - {CUT}):
            asked += f", without a reply: {unanswered}"
        lines.append(asked)
        if cut := self.problems.get(CUT):
            lines.append(f"{cut:,} replies are cut off at questions.max_tokens")
        if self.without_question:
            lines.append(f"{self.without_question:,} replies hold no question")
        if failed := self.problems.get(FAILED):
            lines.append(f"{failed:,} requests failed. The same command repeats them")
        if self.requests:
            tokens = self.prompt_tokens + self.reply_tokens
            spent = f"{tokens:,} tokens ({self.reply_tokens:,} of replies)"
            if self.cost is not None:
                spent += f", cost {self.cost:,.4g}"
            lines.append(f"{spent}; {self._per_thousand()}")
        if self.asked_documents < self.documents:
            left = self.documents - self.asked_documents
            lines.append(
                f"{left:,} documents were not asked about: questions.token_budget is used up. "
                "The same command goes on"
            )
        lines.append(f"{self.rows:,} of {self.questions:,} questions kept ({self.kept_share:.1%})")
        if dropped := _counted(self.dropped, REASONS):
            lines.append(f"dropped: {dropped}")
        return lines

    def _per_thousand(self) -> str:
        """Return the tokens and the cost of 1,000 requests."""
        tokens = (self.prompt_tokens + self.reply_tokens) / self.requests
        cost = "" if self.cost is None else f" and {1000 * self.cost / self.requests:,.4g}"
        return f"1,000 requests cost {1000 * tokens:,.0f} tokens{cost}"

    def __str__(self) -> str:
        return f"{self.rows:,} of {self.questions:,} questions kept"


def _counted(counts: Mapping[str, int], order: Iterable[str]) -> str:
    return ", ".join(f"{counts[name]:,} {name}" for name in order if counts.get(name))
