"""The verdict on a training, in a sentence: for the top of the report, the model card, the console.

Judged queries decide. Without any, held-out pairs of the corpus are a proxy, and the sentence says
so: a model may find texts by held-out titles and still answer queries worse than its start. Losses
on other subjects follow, then untested figures and the next step. A sentence of praise also names
the sets among the training pairs, and the set that chose the checkpoint. Alarms come before
everything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pipelines.errors import printable
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
    CONFIDENCE,
    FEWEST_DIFFERING,
    FEWEST_ITEMS,
    NOT_SIGNIFICANT,
    WORSE,
)
from pipelines.evaluation.sets import Role
from pipelines.report.comparison import Comparison, compare, main_lines, shown
from pipelines.runs.model_choice import KEPT_START, WHOLE

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from pipelines.vectors.search import Hit


MIXED = "mixed"
_SUBJECTS = {Role.JUDGED: "judged sets", Role.HELD_OUT: "held-out pairs of the corpus"}
_COUNTED = {Role.JUDGED: "judged sets", Role.HELD_OUT: "held-out sets"}
_ON_TRAINED = "The verdict on the trained one:"
_KEEP = "Keep the start, or change the questions, the negatives or the training."
_LOOK = "Do not promote it before you know why."
_JUDGE_AGAIN = (
    "Before promoting it, judge it by queries unseen in training and by training.keep_best."
)
_PROXY = "Held-out pairs are a proxy for real queries: a gain on them may not carry over."


@dataclass(frozen=True)
class Verdict:
    """The verdict on a training.

    Attributes:
        word: `better`, `worse`, `mixed` or `not significant`, by the deciding sets.
        sentence: The word, its significance, losses elsewhere, and untested figures.
        is_proxy: Whether no set with judged queries was measured.
        tested: The tested figures and sets, and the test.
        alarms: Faults of the model or its training, a sentence each.
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
    """Return the verdict on the model of a run; None without any interval or alarm.

    ``figures`` are those of ``metrics.json``, see :func:`pipelines.report.comparison.compare`.
    `model`, if known, describes its state.
    """
    by_role: dict[Role | None, list[Comparison]] = {role: [] for role in Role}
    for line in main_lines(compare(figures)):
        by_role.setdefault(line.role, []).append(line)
    subject = Role.JUDGED if by_role[Role.JUDGED] else Role.HELD_OUT
    # The set that chose the checkpoint decides nothing where other sets do.
    choosing, guards = choosing_sets(figures), by_role[Role.GUARD]
    tested = [line for line in by_role[subject] if line.verdict]
    independent = [line for line in tested if line.evaluation not in choosing]
    # Beside judged queries, held-out pairs prove no gain, but their losses count.
    elsewhere = [*guards, *(by_role[Role.HELD_OUT] if subject == Role.JUDGED else ())]
    lost = [line for line in elsewhere if line.verdict == WORSE]
    unknown = [line for line in [*by_role[subject], *guards] if not line.verdict]
    raised = tuple(alarm.sentence for alarm in alarms(figures))
    is_doubted, is_proxy = bool(doubts(figures)), subject == Role.HELD_OUT
    if kept := figures.get("model", {}).get(KEPT_START):
        # The start differs in nothing from itself.
        told = f"The model keeps the start's weights (run.keep_start). {_ON_TRAINED} {kept}"
        return Verdict(NOT_SIGNIFICANT, told, _KEEP, is_proxy, "", raised, is_doubted)
    if not tested and not lost and not any(line.verdict for line in guards):
        doubted = " ".join(doubt.sentence for doubt in doubts(figures)[len(raised) :])
        look = _LOOK if raised else _JUDGE_AGAIN
        of_doubts = Verdict(NOT_SIGNIFICANT, doubted, look, is_proxy, "", raised, is_doubted)
        return of_doubts if is_doubted else None
    deciding = independent or tested
    word = _word(deciding or lost)
    but = _reasons_for_doubt(figures, deciding)
    sentences = _of_deciding(word, subject, deciding, but) if deciding else []
    if len(deciding) < len(tested):
        sentences.append(f"{_capitalised(told_choosing(figures))}, so its set does not count.")
    if unmatched := _unmatched(figures, word, deciding):
        sentences.append(unmatched)
    if lost:
        sentences.append(f"The model lost elsewhere: {_findings(lost)}.")
    if guards and not any(line in unknown or line in lost for line in guards):
        sentences.append("No guard shows a loss.")
    if unknown:
        sentences.append(
            f"No test was possible of {'; '.join(map(_of_unknown, unknown))}: it needs "
            f"{FEWEST_ITEMS} queries or pairs, two groups of them and finite figures."
        )
    overlaps = (told_overlap(figures, line.evaluation) for line in guards)
    sentences += [f"{overlap}." for overlap in overlaps if overlap]
    untrained = figures.get("model", {}).get("start_share") == WHOLE
    if untrained:
        sentences.insert(0, "Nothing was trained: the encoder has the weights of the start.")
    next_step = _next_step(
        word,
        deciding,
        is_proxy=is_proxy,
        lost=bool(lost),
        unknown=bool(unknown),
        untrained=untrained,
    )
    if raised:
        next_step = _LOOK
    elif is_doubted and word in (BETTER, MIXED):
        next_step = _JUDGE_AGAIN
    how = _what_was_tested(deciding, subject)
    return Verdict(word, " ".join(sentences), next_step, is_proxy, how, raised, is_doubted)


def _capitalised(text: str) -> str:
    # Not `str.capitalize`, which would change the names of sets to lower case.
    return f"{text[:1].upper()}{text[1:]}"


def _reasons_for_doubt(figures: Mapping[str, Any], lines: Sequence[Comparison]) -> str:
    """Tell why figures may flatter the model; empty without a reason."""
    names = [line.evaluation for line in lines]
    reasons = [told_overlap(figures, name) for name in names]
    if choosing_sets(figures).intersection(names):
        reasons.append(told_choosing(figures))
    return ", and ".join(filter(None, reasons))


def _unmatched(figures: Mapping[str, Any], word: str, lines: Sequence[Comparison]) -> str:
    """Name the judged sets with a gain and no comparison with the training pairs."""
    unmatched = unmatched_sets(figures)
    names = [shown(line.evaluation) for line in lines if line.evaluation in unmatched]
    if not names or word not in (BETTER, MIXED):
        return ""
    return f"It is not known whether {', '.join(names)} is among the training pairs."


def _word(lines: Sequence[Comparison]) -> str:
    words = {line.verdict for line in lines} - {NOT_SIGNIFICANT}
    return MIXED if len(words) > 1 else next(iter(words), NOT_SIGNIFICANT)


def _of_deciding(word: str, subject: Role, lines: Sequence[Comparison], but: str) -> list[str]:
    """Tell the result of the deciding sets; significant differences come first."""
    by_word = {
        verdict_word: [line for line in lines if line.verdict == verdict_word]
        for verdict_word in (BETTER, WORSE, NOT_SIGNIFICANT)
    }
    gains, losses, unsure = by_word[BETTER], by_word[WORSE], by_word[NOT_SIGNIFICANT]
    sure = [*gains, *losses]
    of_all = f"of {len(lines)} {_COUNTED[subject]}"
    on = f"{len(sure)} {of_all}" if sure and unsure else _SUBJECTS[subject]
    starts = {
        BETTER: f"The model is better on {on}",
        WORSE: f"The model is worse on {on}",
        MIXED: f"The model is better on {len(gains)} and worse on {len(losses)} {of_all}",
        NOT_SIGNIFICANT: f"The model shows no significant difference on {on}",
    }
    sentences = [f"{starts[word]}: {_findings(sure or unsure)}."]
    if but and word in (BETTER, MIXED):
        sentences = [f"{sentences[0][:-1]}, but {but}."]
    elif but:
        sentences.append(f"{_capitalised(but)}.")
    if sure and unsure:
        sentences.append(f"The others show no significant difference: {_findings(unsure)}.")
    if losses and all((line.adjusted_p or 0.0) > 1 - CONFIDENCE for line in losses):
        # A two-sided interval errs to either side equally often, and one side is a loss.
        by_chance = 1 - (1 - (1 - CONFIDENCE) / 2) ** len(lines)
        sentences.append(
            f"A loss counts without correction: on {len(lines)} sets without a change, "
            f"{100 * by_chance:.0f} % of trainings show one by chance."
        )
    if subject == Role.HELD_OUT:
        sentences.append(_PROXY)
    return sentences


def _what_was_tested(lines: Sequence[Comparison], subject: Role) -> str:
    """Tell the tested figures of the deciding sets, and the test."""
    if not lines:
        return ""
    metrics = " and ".join(dict.fromkeys(line.metric for line in lines))
    if len(lines) == 1:
        on = f"{shown(lines[0].evaluation)} ({lines[0].basis})"
    else:
        on = f"{len(lines)} {_COUNTED[subject]}"
    by = f"a {100 * CONFIDENCE:.0f} % interval"
    if all(line.interval is not None and line.interval.p is not None for line in lines):
        by += " and a sign-flip test"
    holm = f", gains with Holm's correction for {len(lines)} sets" if len(lines) > 1 else ""
    return f"Tested: {metrics} on {on} by {by}{holm}."


def _findings(lines: Sequence[Comparison]) -> str:
    return "; ".join(map(_finding, lines))


def _finding(line: Comparison) -> str:
    """Tell a figure, its difference and interval; and, if not significant, the reason."""
    interval, difference = line.interval, line.difference
    assert interval is not None, "a verdict needs an interval"
    assert difference is not None, "a verdict needs a difference"
    name = f"{line.metric} on {shown(line.evaluation)}"
    ends = f"({interval.low:+.2f} to {interval.high:+.2f})"
    if line.verdict != NOT_SIGNIFICANT:
        verb = "rose" if difference > 0 else "fell"
        return f"{name} {verb} by {abs(difference):.2f} {ends}"
    change = f"{name} changed by {difference:+.2f} {ends}"
    if interval.differing is not None and interval.differing < FEWEST_DIFFERING:
        what = "groups" if interval.groups else line.basis.partition(",")[0].rpartition(" ")[2]
        count = f"only {interval.differing}" if interval.differing else "no"
        return f"{change}, and {count} {what} differ"
    if not interval.low <= 0 <= interval.high and interval.p is not None:
        corrected = line.adjusted_p
        holm = "" if corrected == interval.p else f", {corrected:.2g} after Holm's correction"
        return f"{change}, with a p value of {interval.p:.2g}{holm}"
    if not interval.detectable:
        return change
    return f"{change}, and only {interval.detectable:.1f} or more would show"


def _of_unknown(line: Comparison) -> str:
    name = f"{line.metric} on {shown(line.evaluation)}"
    return f"{name} ({line.before:.2f} before, {line.after:.2f} after)"


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
            "Before promoting it, name a set of judged queries in evaluation.retrieval_sets"
            f"{_how_many(lines)}."
        )
    if word == BETTER and unknown:
        return "Before promoting it, look at the untested figures."
    train, change = "train longer", "try fewer steps, a lower learning rate or another objective"
    if untrained:
        train = change = "set training.start_share below 1 to train it"
    return {
        BETTER: "You may promote it.",
        MIXED: "Decide which of these sets are like your users' queries.",
        WORSE: f"Keep the start; {change}.",
        NOT_SIGNIFICANT: f"Judge more queries, or {train}{_how_many(lines)}.",
    }[word]


def _how_many(lines: Sequence[Comparison]) -> str:
    """Tell how many items would show a difference of one point; empty if there are as many.

    The smallest detectable difference falls with the root of the number of items or groups.
    """
    line = max(lines, key=_wanted, default=None)
    interval = None if line is None else line.interval
    if line is None or interval is None or _wanted(line) <= max(known.items for known in lines):
        return ""
    most = _wanted(line)
    groups = round((interval.groups or 0) * interval.detectable**2)
    digits = max(len(str(round(most))) - 2, 0)
    in_groups = f" in {groups:,} groups" if groups else ""
    return f"; about {round(round(most), -digits):,}{in_groups} show a difference of one point"


def _wanted(line: Comparison) -> float:
    return 0.0 if line.interval is None else line.items * line.interval.detectable**2


NOT_MEASURED = "–"  # noqa: RUF001 - a dash, as tables have it
VERDICT_STYLES = {BETTER: "bold green", WORSE: "bold red", MIXED: "bold", NOT_SIGNIFICANT: "bold"}
_ANY_WIDTH = 1000
_COLOURS = {BETTER: "green", WORSE: "red", NOT_SIGNIFICANT: "", "": ""}


def metrics_table(figures: Mapping[str, Any], width: int | None = None) -> Table:
    """Return a line for each figure, before and after training, with difference and interval.

    Green and red stand for better and worse: only the first figure of each set is tested. ``width``
    is that of the screen in characters. On a narrow one, the lines of an evaluation stand below its
    name; None is wide enough.
    """
    from rich.measure import Measurement

    from pipelines.progress.screen import Screen

    lines = compare(figures)
    table = _table(lines, below_names=False)
    # rich would fold the columns of a wide table, so its full width is measured first.
    screen = Screen(width=_ANY_WIDTH)
    if width is not None and Measurement.get(screen, screen.options, table).maximum > width:
        table = _table(lines, below_names=True)
    table.caption = None if lines else "Nothing was measured."
    if any(line.interval for line in lines):
        table.caption = (
            "In brackets: the 95 % interval, by paired bootstrap. The first figure of each set is "
            "tested: green is better, red is worse."
        )
    return table


def _table(lines: Sequence[Comparison], *, below_names: bool) -> Table:
    from rich.table import Table

    table = Table()
    if not below_names:
        table.add_column("evaluation", overflow="fold")
        table.add_column("measured on")
    title = "evaluation and metric" if below_names else "metric"
    table.add_column(title, no_wrap=not below_names, overflow="fold")
    for name in ("before", "after", "difference"):
        table.add_column(name, justify="right", no_wrap=True)
    for evaluation, group in groupby(lines, lambda line: line.evaluation):
        for place, line in enumerate(group):
            figures = (points(line.before), points(line.after), _coloured(line))
            if not below_names:
                names = ("", "") if place else (_cell(evaluation), _cell(line.basis))
                table.add_row(*names, _cell(line.metric), *figures)
                continue
            if not place:
                table.add_row(_cell(evaluation, "bold"))
                # A line for each count, which the narrow column would break anywhere.
                table.add_row(_cell(line.basis.replace(", ", ",\n"), "dim"))
            table.add_row(_cell(f"  {line.metric}"), *figures)
        table.add_section()
    return table


def _cell(text: str, style: str = "") -> Text:
    """Return any text literally: no markup by brackets, no control of the terminal."""
    from rich.text import Text

    return Text(printable(text), style)


def hits_table(queries: Sequence[str], hits: Sequence[Hit]) -> Table:
    """Return a line for each hit, the query before its first one."""
    from rich.table import Table

    table = Table()
    several = len(queries) > 1
    if several:
        table.add_column("query")
    has_scores = any(hit.score is not None for hit in hits)
    if has_scores:
        table.add_column("score", justify="right")
    table.add_column("cosine", justify="right")
    is_hybrid = any(hit.by_vectors or hit.by_words for hit in hits)
    if is_hybrid:
        table.add_column("by vectors", justify="right")
        table.add_column("by words", justify="right")
    has_keys = any(hit.key is not None for hit in hits)
    table.add_column("key" if has_keys else "row", justify="left" if has_keys else "right")
    table.add_column("text", overflow="fold")
    for hit, following in zip(hits, [*hits[1:], None], strict=True):
        asked = [_cell(queries[hit.query] if hit.rank == 1 else "")] if several else []
        text = _cell("" if hit.text is None else hit.text)
        is_last = following is None or following.query != hit.query
        row = _cell(f"{hit.position:,}" if hit.key is None else hit.key)
        ranks = [str(rank or "") for rank in (hit.by_vectors, hit.by_words)] if is_hybrid else []
        figures = [f"{hit.cosine:.4f}"]
        if has_scores:
            figures.insert(0, "" if hit.score is None else f"{hit.score:.4f}")
        table.add_row(*asked, *figures, *ranks, row, text, end_section=several and is_last)
    return table


def points(value: float | None) -> str:
    """Format a figure to two decimals; a dash where it was not measured."""
    return NOT_MEASURED if value is None else f"{value:.2f}"


def signed_points(value: float | None) -> str:
    """Format a difference to two decimals, with its sign."""
    return NOT_MEASURED if value is None else f"{value:+.2f}"


def told_interval(line: Comparison) -> str:
    """Return an interval and its verdict in words; empty if unknown."""
    if line.interval is None or line.difference is None:
        return ""
    ends = f"{signed_points(line.interval.low)} to {signed_points(line.interval.high)}"
    doubt = f", but {line.doubt}" if line.doubt else ""
    return f"{ends}, {line.verdict}{doubt}" if line.verdict else ends


def _coloured(line: Comparison) -> Text:
    """Return a difference with its interval, short enough for a narrow terminal."""
    from rich.text import Text

    difference = signed_points(line.difference)
    if line.interval is not None:
        difference += f" ({points(line.interval.low)} to {points(line.interval.high)})"
    return Text(difference, "" if line.doubt and line.verdict == BETTER else _COLOURS[line.verdict])
