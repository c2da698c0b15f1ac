"""What came of a training, in a sentence: for the top of the report, the model card, the console.

Questions that people judged decide. Pairs that were held out of the corpus stand in for them only
where there are none, and the sentence says so: a model that finds the text of a held-out title may
still answer questions worse than its start. What was lost on other subjects follows, what could not
be judged, and what to do next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.evaluation.intervals import (
    BETTER,
    CANNOT_BE_TOLD,
    CONFIDENCE,
    FEWEST_DIFFERING,
    FEWEST_ITEMS,
    WORSE,
)
from pipelines.evaluation.sets import Role
from pipelines.report.comparison import Comparison, compare, main_lines
from pipelines.report.text import shown

MIXED = "mixed"
_SUBJECTS = {Role.JUDGED: "judged sets", Role.HELD_OUT: "held-out pairs of the corpus"}
_STAND_IN = "These stand in for questions of people, and what they gain need not be gained there."
_UNTRAINED = 1.0
"""A share of the start's weights, of which nothing is trained."""


@dataclass(frozen=True)
class Verdict:
    """What came of a training.

    Attributes:
        word: `better`, `worse`, `mixed` or `cannot be told`, by the sets that decide.
        sentence: That, how sure it is, what was lost elsewhere and what could not be judged.
        next_step: What to do now.
        is_proxy: No set with judged questions was measured.
        tested: Which figures of which sets were tested, and how.
    """

    word: str
    sentence: str
    next_step: str
    is_proxy: bool
    tested: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.sentence, self.next_step, self.tested)))


def verdict(figures: Mapping[str, Any]) -> Verdict | None:
    """The verdict on the model of a run.

    Args:
        figures: As ``metrics.json`` has them; see :func:`pipelines.report.comparison.compare`.
            Under `model` which state it is, where that is known.

    Returns:
        None where nothing was measured whose interval is known.
    """
    by_role: dict[Role | None, list[Comparison]] = {role: [] for role in Role}
    for line in main_lines(compare(figures)):
        by_role.setdefault(line.role, []).append(line)
    subject = Role.JUDGED if by_role[Role.JUDGED] else Role.HELD_OUT
    deciding, guards = by_role[subject], by_role[Role.GUARD]
    # Held-out pairs prove no gain where questions are judged, but what they lose is lost.
    elsewhere = [*guards, *(by_role[Role.HELD_OUT] if subject == Role.JUDGED else ())]
    lost = [line for line in elsewhere if line.verdict == WORSE]
    known = [line for line in [*deciding, *guards] if line.verdict]
    unknown = [line for line in [*deciding, *guards] if not line.verdict]
    if not known and not lost:
        return None
    told = [line for line in deciding if line.verdict]
    word = _word(told or lost)
    sentences = _of_deciding(word, subject, told) if told else []
    if lost:
        sentences.append(f"Lost elsewhere: {_all_told(lost)}.")
    if guards and not any(line in unknown or line in lost for line in guards):
        sentences.append("No guard shows a loss.")
    if unknown:
        sentences.append(
            f"Not judged, for fewer than {FEWEST_ITEMS} queries, a single group of them or figures "
            f"that are no numbers: {'; '.join(map(_of_unknown, unknown))}."
        )
    is_proxy = subject == Role.HELD_OUT
    next_step = _next_step(word, told, is_proxy=is_proxy, lost=bool(lost), unknown=bool(unknown))
    if figures.get("model", {}).get("start_share") == _UNTRAINED:
        sentences.insert(0, "The model has the weights of the start: nothing was trained.")
        next_step = "Set training.start_share below 1 to train it, or use the start as it is."
    return Verdict(word, " ".join(sentences), next_step, is_proxy, _what_was_tested(told, subject))


def _word(lines: Sequence[Comparison]) -> str:
    words = {line.verdict for line in lines} - {CANNOT_BE_TOLD}
    return MIXED if len(words) > 1 else next(iter(words), CANNOT_BE_TOLD)


def _of_deciding(word: str, subject: Role, lines: Sequence[Comparison]) -> list[str]:
    """What the sets that decide say; those that say something come first."""
    by_word = {
        told: [line for line in lines if line.verdict == told]
        for told in (BETTER, WORSE, CANNOT_BE_TOLD)
    }
    sure, unsure = [*by_word[BETTER], *by_word[WORSE]], by_word[CANNOT_BE_TOLD]
    share = f"{len(sure)} of {len(lines)} " if sure and unsure else ""
    on = f"{share}{_SUBJECTS[subject]}"
    starts = {
        BETTER: f"Better on {on}",
        WORSE: f"Worse on {on}",
        MIXED: f"Better on some and worse on others of {on}",
        CANNOT_BE_TOLD: f"Whether it is better on {on} cannot be told",
    }
    sentences = [f"{starts[word]}: {_all_told(sure or unsure)}."]
    if sure and unsure:
        sentences.append(f"Cannot be told: {_all_told(unsure)}.")
    lost = by_word[WORSE]
    if lost and all((line.adjusted_p or 0.0) > 1 - CONFIDENCE for line in lost):
        by_chance = 1 - (1 - (1 - CONFIDENCE) / 2) ** len(lines)
        sentences.append(
            f"A loss counts by itself; of {len(lines)} sets without a change, one or more shows it "
            f"in {100 * by_chance:.0f} % of trainings."
        )
    if subject == Role.HELD_OUT:
        sentences.append(_STAND_IN)
    return sentences


def _what_was_tested(lines: Sequence[Comparison], subject: Role) -> str:
    """Which figures of the sets that decide, and how."""
    if not lines:
        return ""
    metrics = " and ".join(dict.fromkeys(line.metric for line in lines))
    if len(lines) == 1:
        on = f"{shown(lines[0].evaluation)} ({lines[0].basis})"
    else:
        on = f"{len(lines)} {_SUBJECTS[subject].replace('pairs', 'sets of pairs')}"
    by = f"a {100 * CONFIDENCE:.0f} % interval"
    if all(line.interval is not None and line.interval.p is not None for line in lines):
        by += " and a sign-flip test"
    holm = f", gains with Holm's correction for {len(lines)} sets" if len(lines) > 1 else ""
    return f"Tested: {metrics} on {on} by {by}{holm}."


def _all_told(lines: Sequence[Comparison]) -> str:
    return "; ".join(map(_told, lines))


def _told(line: Comparison) -> str:
    """A figure, its difference and the interval of that; why it is no evidence, where it is not."""
    interval = line.interval
    assert interval is not None, "only figures with one are told"
    told = (
        f"{line.metric} on {shown(line.evaluation)} {line.difference:+.2f} "
        f"({interval.low:+.2f} to {interval.high:+.2f})"
    )
    if line.verdict != CANNOT_BE_TOLD:
        return told
    if interval.differing is not None and interval.differing < FEWEST_DIFFERING:
        what = "groups" if interval.groups else line.basis.partition(",")[0].rpartition(" ")[2]
        count = f"only {interval.differing}" if interval.differing else "no"
        return f"{told}, where {count} {what} differ"
    if not interval.low <= 0 <= interval.high and interval.p is not None:
        among = "" if line.adjusted_p == interval.p else f", {line.adjusted_p:.2g} among the sets"
        return f"{told}, p {interval.p:.2g}{among}"
    if not interval.detectable:
        return told
    return f"{told}, where differences show from {interval.detectable:.1f} on"


def _of_unknown(line: Comparison) -> str:
    name = f"{line.metric} on {shown(line.evaluation)}"
    return f"{name} {line.before:.2f} before and {line.after:.2f} after"


def _next_step(
    word: str, lines: Sequence[Comparison], *, is_proxy: bool, lost: bool, unknown: bool
) -> str:
    if lost and word != WORSE:
        return "Weigh the loss before promoting it: fewer steps or a lower learning rate lose less."
    if is_proxy and word != WORSE:
        return (
            "Before promoting it, name a set of judged questions in evaluation.retrieval_sets"
            f"{_how_many(lines)}."
        )
    if word == BETTER and unknown:
        return "Before promoting it, look at what was not judged."
    return {
        BETTER: "It may be promoted.",
        MIXED: "Decide which of these sets your users' questions are like.",
        WORSE: "Keep the start; try fewer steps, a lower learning rate or another objective.",
        CANNOT_BE_TOLD: f"Judge more questions, or train longer{_how_many(lines)}.",
    }[word]


def _how_many(lines: Sequence[Comparison]) -> str:
    """How many items of the same spread show a difference of one point, where that are more.

    The smallest difference to be shown falls with the root of their number.
    """
    wanted = max(
        (line.items * line.interval.detectable**2 for line in lines if line.interval), default=0.0
    )
    if wanted <= max((line.items for line in lines), default=0):
        return ""
    digits = max(len(str(round(wanted))) - 2, 0)
    return f"; about {round(round(wanted), -digits):,} show a difference of one point"
