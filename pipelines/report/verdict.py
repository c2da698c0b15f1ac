"""What came of a training, in a sentence: for the top of the report, the model card, the console.

Questions that people judged decide. Pairs that were held out of the corpus stand in for them only
where there are none, and the sentence says so: a model that finds the text of a held-out title may
still answer questions worse than its start. What was lost on other subjects follows, and what to do
next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.evaluation.intervals import BETTER, CANNOT_BE_TOLD, WORSE
from pipelines.evaluation.sets import Role
from pipelines.report.comparison import Comparison, compare
from pipelines.report.text import shown

MIXED = "mixed"


@dataclass(frozen=True)
class Verdict:
    """What came of a training.

    Attributes:
        word: `better`, `worse`, `mixed` or `cannot be told`, by the sets that decide.
        sentence: That, how sure it is and what was lost elsewhere.
        next_step: What to do now.
        is_proxy: No set with judged questions was measured.
    """

    word: str
    sentence: str
    next_step: str
    is_proxy: bool

    def __str__(self) -> str:
        return f"{self.sentence} {self.next_step}"


def verdict(figures: Mapping[str, Any]) -> Verdict | None:
    """The verdict on the model of a run.

    Args:
        figures: As ``metrics.json`` has them; see :func:`pipelines.report.comparison.compare`.

    Returns:
        None where nothing was measured whose interval is known.
    """
    lines = [line for line in main_lines(compare(figures)) if line.verdict]
    by_role = {role: [line for line in lines if line.role == role] for role in Role}
    judged, held_out = by_role[Role.JUDGED], by_role[Role.HELD_OUT]
    lost = [line for line in by_role[Role.GUARD] if line.verdict == WORSE]
    deciding = judged or held_out
    if not deciding:
        return None
    word = _word(deciding)
    sentences = [_of_judged(word, judged) if judged else _of_held_out(held_out[0])]
    if lost:
        sentences.append(f"Lost elsewhere: {'; '.join(map(_told, lost))}.")
    elif by_role[Role.GUARD]:
        sentences.append("No guard shows a loss.")
    next_step = _next_step(word, is_proxy=not judged, has_lost=bool(lost), lines=deciding)
    return Verdict(word, " ".join(sentences), next_step, not judged)


def main_lines(lines: Sequence[Comparison]) -> list[Comparison]:
    """The first figure of each set of those that are better the higher they are."""
    first: dict[str, Comparison] = {}
    for line in lines:
        if line.difference is not None and line.better == "higher":
            first.setdefault(line.evaluation, line)
    return list(first.values())


def _word(lines: Sequence[Comparison]) -> str:
    words = {line.verdict for line in lines} - {CANNOT_BE_TOLD}
    return MIXED if len(words) > 1 else next(iter(words), CANNOT_BE_TOLD)


def _of_judged(word: str, lines: Sequence[Comparison]) -> str:
    starts = {
        BETTER: "Better on judged sets",
        WORSE: "Worse on judged sets",
        MIXED: "Better on some judged sets and worse on others",
        CANNOT_BE_TOLD: "Whether it is better on judged sets cannot be told",
    }
    if word == CANNOT_BE_TOLD:
        return f"{starts[word]}: {'; '.join(map(_told, lines))}."
    told = {
        verdict: "; ".join(_told(line) for line in lines if line.verdict == verdict)
        for verdict in (BETTER, WORSE, CANNOT_BE_TOLD)
    }
    sure = "; ".join(filter(None, (told[BETTER], told[WORSE])))
    unsure = f" Cannot be told: {told[CANNOT_BE_TOLD]}." if told[CANNOT_BE_TOLD] else ""
    return f"{starts[word]}: {sure}.{unsure}"


def _of_held_out(line: Comparison) -> str:
    starts = {
        BETTER: "Better on held-out pairs of the corpus",
        WORSE: "Worse on held-out pairs of the corpus",
        CANNOT_BE_TOLD: "Whether it is better on held-out pairs of the corpus cannot be told",
    }
    return (
        f"{starts[line.verdict]}: {_told(line)}. These stand in for questions of people, "
        "and what they gain need not be gained there."
    )


def _told(line: Comparison) -> str:
    """A figure, its difference and the interval of that."""
    interval = line.interval
    assert interval is not None
    told = (
        f"{line.metric} on {shown(line.evaluation)} {line.difference:+.2f} "
        f"({interval.low:+.2f} to {interval.high:+.2f})"
    )
    if line.verdict != CANNOT_BE_TOLD:
        return told
    return f"{told}, where differences show from {interval.detectable:.1f} on"


def _next_step(word: str, *, is_proxy: bool, has_lost: bool, lines: Sequence[Comparison]) -> str:
    if has_lost and word != WORSE:
        return "Weigh the loss before promoting it: fewer steps or a lower learning rate lose less."
    if is_proxy and word != WORSE:
        return (
            "Before promoting it, name a set of judged questions in evaluation.retrieval_sets; "
            f"about {_enough(lines):,} show a difference of one point."
        )
    return {
        BETTER: "It may be promoted.",
        MIXED: "Decide which of these sets your users' questions are like.",
        WORSE: "Keep the start; try fewer steps, a lower learning rate or another objective.",
        CANNOT_BE_TOLD: (
            "Judge more questions, or train longer; "
            f"about {_enough(lines):,} show a difference of one point."
        ),
    }[word]


def _enough(lines: Sequence[Comparison]) -> int:
    """How many items of the same spread show a difference of one point; to two digits.

    The smallest difference to be shown falls with the root of their number.
    """
    wanted = max(line.items * line.interval.detectable**2 for line in lines if line.interval)
    digits = max(len(str(round(wanted))) - 2, 0)
    return round(round(wanted), -digits)
