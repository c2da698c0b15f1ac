"""The lines of the funnel: what was read, what pairs were made of it, and what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pipelines.corpus import held_out
from pipelines.corpus import pairs as pair_forms
from pipelines.corpus.cleaning import prose
from pipelines.corpus.dedup import marks as overlaps
from pipelines.corpus.deleted_keys import DELETED
from pipelines.corpus.funnel import (
    FILES,
    LINES,
    PAIRS,
    PARAGRAPHS,
    ROWS,
    SENTENCES,
    FunnelLine,
    level_lines,
)
from pipelines.corpus.row_units import NO_TITLE
from pipelines.corpus.statistics import Counts, dropped
from pipelines.corpus.units import text_level
from pipelines.errors import InputError, PipelineError
from pipelines.settings import CorpusSettings

TRAINING = "pairs for training"
HELD_OUT = "held out for evaluation"
_GIVES_PAIRS = "that give pairs"
_LEVELS: Mapping[str, tuple[str, str]] = {
    FILES: ("source files found", "source files with docstrings"),
    ROWS: ("rows read", "rows that hold texts"),
    PARAGRAPHS: ("paragraphs found", "paragraphs of prose"),
    LINES: ("lines found", ""),
    SENTENCES: ("sentences found", ""),
}
"""Levels before the pairs, in their order: what came in, and what is kept."""
_REMEDIES: Mapping[str, str] = {
    "no text": "name columns and inputs that hold text",
    "empty text": "name columns and inputs that hold text",
    "not UTF-8": "save the inputs as UTF-8",
    "no letter in it": "name columns that hold text in words",
    pair_forms.NO_SCORE: "let corpus.score_column or corpus.score_columns name columns of numbers",
    pair_forms.NO_GROUP: "name a corpus.group_column that has values",
    pair_forms.SAME_SIDES: "name two different columns as corpus.pair_columns",
    pair_forms.NO_NEIGHBOUR: "set corpus.pairs to single, or name longer texts",
    NO_TITLE: "name a corpus.title_column that has values, or another corpus.pairs",
    DELETED: "name inputs with rows of other keys",
    "too short": "lower corpus.min_characters",
    "too long": "raise corpus.max_characters",
    "too many symbols": "raise corpus.max_symbols",
    "repeats itself": "raise corpus.max_repeated",
    "other language": "see corpus.languages",
    pair_forms.ALONE: "set corpus.group_column to a column whose values repeat",
    overlaps.EXCLUDED: "see corpus.exclude",
    overlaps.NEARLY_EXCLUDED: "see corpus.exclude and corpus.near_duplicates",
    overlaps.NEAR_DUPLICATE: "see corpus.near_duplicates",
    pair_forms.OUT_OF_RANGE: "set corpus.score_range",
    prose.NO_PROSE: "name inputs of whole sentences, or set corpus.pairs to columns or single",
    prose.NOTHING_AFTER: "set corpus.pairs to single, or name longer texts",
    **dict.fromkeys(
        (held_out.LEAK, held_out.SAME_GROUP, held_out.SAME_QUERY, held_out.BEYOND),
        "set corpus.evaluation_share=0",
    ),
}


def lines_before_pairs(
    counts: Counts, quarantined: Mapping[str, int], settings: CorpusSettings
) -> list[FunnelLine]:
    """The levels before the pairs.

    Args:
        counts: Of what was read.
        quarantined: Rows that could not be read, by reason.
        settings: Of the corpus.
    """
    lines: list[FunnelLine] = []
    for level, (found, remaining) in _LEVELS.items():
        unread = quarantined if level == ROWS else {}
        reasons = counts.rows.get(level, {})
        total = sum(reasons.values()) + sum(unread.values())
        last = level == text_level(settings)
        if total or level in (ROWS, text_level(settings)):
            name = f"{level} {_GIVES_PAIRS}" if last else remaining
            kept = {name: reasons.get(None, 0)}
            lines += level_lines(level, (found, total), dropped(reasons), kept, unread)
    return lines


def lines_of_pairs(
    counts: Counts, asked: int, written: int, *, some_asked: bool
) -> list[FunnelLine]:
    """The level of pairs.

    Args:
        counts: Of the pairs.
        asked: Pairs of the evaluation.
        written: Pairs for training.
        some_asked: Whether any source has pairs of the evaluation, whose texts may be in this one.

    Raises:
        PipelineError: Fewer or more pairs lie in the files than were to be written.
    """
    reasons = dropped(counts.pairs) | dropped(counts.held_out)
    others = {
        held_out.BEYOND: counts.held_out.get(None, 0) - asked,
        held_out.LEAK: counts.trainable - written,
    }
    if min(others.values()) < 0 or (others[held_out.LEAK] and not some_asked):
        raise PipelineError(
            f"{written} of {counts.trainable} pairs for training are in their files, and"
            f" {asked} of {counts.held_out.get(None, 0)} that may be held out"
        )
    reasons |= {reason: rows for reason, rows in others.items() if rows}
    kept = {TRAINING: written, HELD_OUT: asked}
    return level_lines(PAIRS, ("pairs made", sum(counts.pairs.values())), reasons, kept)


def added_up(of_sources: Sequence[Sequence[FunnelLine]]) -> list[FunnelLine]:
    """The lines of several sources as those of one corpus: equal ones are summed up."""
    if len(of_sources) == 1:
        return [*of_sources[0]]
    rows: Counter[tuple[str, str, str]] = Counter()
    for line in (line for lines in of_sources for line in lines):
        rows[line.level, line.kind, line.name] += line.rows
    lines: list[FunnelLine] = []
    for level in (*_LEVELS, PAIRS):

        def of(kind: str, level: str = level) -> dict[str, int]:
            found = (key for key in rows if key[:2] == (level, kind))
            return {key[2]: rows[key] for key in found}

        for entered in of("in").items():
            lines += level_lines(level, entered, of("dropped"), of("kept"), of("quarantined"))
    return lines


def is_dropped(line: FunnelLine) -> bool:
    """Whether a line says what was not kept, though it could be read."""
    return line.kind == "dropped"


def check_some_left(lines: Iterable[FunnelLine], of: str = "") -> None:
    """Refuses a corpus of which nothing is left to train on.

    Args:
        lines: Of its funnel.
        of: Which source of the corpus it is, in words.

    Raises:
        InputError: With the reason for which most was dropped.
    """
    lines = list(lines)
    if any(line.name == TRAINING and line.rows for line in lines):
        return
    reasons = [line for line in lines if line.kind == "dropped" and line.level != FILES]
    read = next(line.rows for line in lines if line.level == ROWS and line.kind == "in")
    if not reasons:
        held = any(line.name == HELD_OUT and line.rows for line in lines)
        raise InputError(
            "corpus.inputs",
            f"no pair is left of {read} rows{of}" + (": all are held out" if held else ""),
            "set corpus.evaluation_share=0" if held else "name inputs that hold text",
        )
    most = max(reasons, key=lambda line: line.rows)
    raise InputError(
        "corpus.inputs",
        f"no pair is left of {read} rows{of}: most often `{most.name}` ({most.rows})",
        _REMEDIES.get(most.name, "name other inputs"),
    )
