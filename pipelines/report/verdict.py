"""What came of a training, in a sentence: for the top of the report, the model card, the console.

Questions that people judged decide. Pairs that were held out of the corpus stand in for them only
where there are none, and the sentence says so: a model that finds the text of a held-out title may
still answer questions worse than its start. What was lost on other subjects follows, what could not
be judged, and what to do next. What the model was trained on, or its checkpoint chosen by, is said
in the sentence that calls it better; alarms come before everything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.evaluation.alarms import (
    alarms,
    choosing_sets,
    doubts,
    told_choosing,
    told_overlap,
    unmatched_sets,
)
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
from pipelines.runs.choice import WHOLE

MIXED = "mixed"
_SUBJECTS = {Role.JUDGED: "judged sets", Role.HELD_OUT: "held-out pairs of the corpus"}
_LOOK = "Do not promote it before you know why."
_JUDGE_AGAIN = (
    "Before promoting it, judge it by questions that neither training nor training.keep_best has "
    "seen."
)
_STAND_IN = "These stand in for questions of people, and what they gain need not be gained there."


@dataclass(frozen=True)
class Verdict:
    """What came of a training.

    Attributes:
        word: `better`, `worse`, `mixed` or `cannot be told`, by the sets that decide.
        sentence: That, how sure it is, what was lost elsewhere and what could not be judged.
        next_step: What to do now.
        is_proxy: No set with judged questions was measured.
        tested: Which figures of which sets were tested, and how.
        alarms: What is wrong with the model or its training, a sentence each.
        is_doubted: Whether people have to look at it, see :mod:`pipelines.evaluation.alarms`.
    """

    word: str
    sentence: str
    next_step: str
    is_proxy: bool
    tested: str = ""
    alarms: tuple[str, ...] = ()
    is_doubted: bool = False

    def __str__(self) -> str:
        alarms = [f"ALARM: {alarm}" for alarm in self.alarms]
        return " ".join(filter(None, [*alarms, self.sentence, self.next_step, self.tested]))


def verdict(figures: Mapping[str, Any]) -> Verdict | None:
    """The verdict on the model of a run.

    Args:
        figures: As ``metrics.json`` has them; see :func:`pipelines.report.comparison.compare`.
            Under `model` which state it is, where that is known.

    Returns:
        None where nothing was measured whose interval is known, and there is no alarm.
    """
    by_role: dict[Role | None, list[Comparison]] = {role: [] for role in Role}
    for line in main_lines(compare(figures)):
        by_role.setdefault(line.role, []).append(line)
    subject = Role.JUDGED if by_role[Role.JUDGED] else Role.HELD_OUT
    # What has chosen the checkpoint decides nothing where other sets do.
    choosing, guards = choosing_sets(figures), by_role[Role.GUARD]
    tested = [line for line in by_role[subject] if line.verdict]
    independent = [line for line in tested if line.evaluation not in choosing]
    # Held-out pairs prove no gain where questions are judged, but what they lose is lost.
    elsewhere = [*guards, *(by_role[Role.HELD_OUT] if subject == Role.JUDGED else ())]
    lost = [line for line in elsewhere if line.verdict == WORSE]
    unknown = [line for line in [*by_role[subject], *guards] if not line.verdict]
    raised = tuple(alarm.sentence for alarm in alarms(figures))
    is_doubted, is_proxy = bool(doubts(figures)), subject == Role.HELD_OUT
    if not tested and not lost and not any(line.verdict for line in guards):
        doubted = " ".join(one.sentence for one in doubts(figures)[len(raised) :])
        look = _LOOK if raised else _JUDGE_AGAIN
        told_doubts = Verdict(CANNOT_BE_TOLD, doubted, look, is_proxy, "", raised, is_doubted)
        return told_doubts if is_doubted else None
    told = independent or tested
    word = _word(told or lost)
    but = _told_doubts(figures, told)
    sentences = _of_deciding(word, subject, told, but) if told else []
    if len(told) < len(tested):
        sentences.append(f"Not counted: {told_choosing(figures)}.")
    if unmatched := _unmatched(figures, word, told):
        sentences.append(unmatched)
    if lost:
        sentences.append(f"Lost elsewhere: {_all_told(lost)}.")
    if guards and not any(line in unknown or line in lost for line in guards):
        sentences.append("No guard shows a loss.")
    if unknown:
        sentences.append(
            f"Not judged, for fewer than {FEWEST_ITEMS} queries, a single group of them or figures "
            f"that are no numbers: {'; '.join(map(_of_unknown, unknown))}."
        )
    sentences += [f"{one}." for line in guards if (one := told_overlap(figures, line.evaluation))]
    untrained = figures.get("model", {}).get("start_share") == WHOLE
    if untrained:
        sentences.insert(0, "Nothing was trained: the encoder has the weights of the start.")
    next_step = _next_step(
        word, told, is_proxy=is_proxy, lost=bool(lost), unknown=bool(unknown), untrained=untrained
    )
    if raised:
        next_step = _LOOK
    elif is_doubted and word in (BETTER, MIXED):
        next_step = _JUDGE_AGAIN
    how = _what_was_tested(told, subject)
    return Verdict(word, " ".join(sentences), next_step, is_proxy, how, raised, is_doubted)


def _told_doubts(figures: Mapping[str, Any], lines: Sequence[Comparison]) -> str:
    """What makes the figures of some sets better than the model is; empty where nothing does."""
    names = [line.evaluation for line in lines]
    told = [told_overlap(figures, name) for name in names]
    if choosing_sets(figures).intersection(names):
        told.append(told_choosing(figures))
    return ", and ".join(filter(None, told))


def _unmatched(figures: Mapping[str, Any], word: str, lines: Sequence[Comparison]) -> str:
    """Which judged sets nobody has compared with the training pairs, where they gained."""
    unmatched = unmatched_sets(figures)
    names = [shown(line.evaluation) for line in lines if line.evaluation in unmatched]
    if not names or word not in (BETTER, MIXED):
        return ""
    return f"Whether {', '.join(names)} is among the training pairs is not known."


def _word(lines: Sequence[Comparison]) -> str:
    words = {line.verdict for line in lines} - {CANNOT_BE_TOLD}
    return MIXED if len(words) > 1 else next(iter(words), CANNOT_BE_TOLD)


def _of_deciding(word: str, subject: Role, lines: Sequence[Comparison], but: str) -> list[str]:
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
    if but and word in (BETTER, MIXED):
        sentences = [f"{sentences[0][:-1]}, but {but}."]
    elif but:
        sentences.append(f"{but[:1].upper()}{but[1:]}.")
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
    word: str,
    lines: Sequence[Comparison],
    *,
    is_proxy: bool,
    lost: bool,
    unknown: bool,
    untrained: bool,
) -> str:
    if lost and word != WORSE:
        less = "" if untrained else ": fewer steps or a lower learning rate lose less"
        return f"Weigh the loss before promoting it{less}."
    if is_proxy and word != WORSE:
        return (
            "Before promoting it, name a set of judged questions in evaluation.retrieval_sets"
            f"{_how_many(lines)}."
        )
    if word == BETTER and unknown:
        return "Before promoting it, look at what was not judged."
    train, other = "train longer", "try fewer steps, a lower learning rate or another objective"
    if untrained:
        train = other = "set training.start_share below 1 to train it"
    return {
        BETTER: "It may be promoted.",
        MIXED: "Decide which of these sets your users' questions are like.",
        WORSE: f"Keep the start; {other}.",
        CANNOT_BE_TOLD: f"Judge more questions, or {train}{_how_many(lines)}.",
    }[word]


def _how_many(lines: Sequence[Comparison]) -> str:
    """How many items of the same spread show a difference of one point, where that are more.

    The smallest difference to be shown falls with the root of their number, or of their groups'.
    """
    line = max(lines, key=_wanted, default=None)
    interval = None if line is None else line.interval
    if line is None or interval is None or _wanted(line) <= max(one.items for one in lines):
        return ""
    most = _wanted(line)
    groups = round((interval.groups or 0) * interval.detectable**2)
    digits = max(len(str(round(most))) - 2, 0)
    of = f" in {groups:,} groups" if groups else ""
    return f"; about {round(round(most), -digits):,}{of} show a difference of one point"


def _wanted(line: Comparison) -> float:
    return 0.0 if line.interval is None else line.items * line.interval.detectable**2
