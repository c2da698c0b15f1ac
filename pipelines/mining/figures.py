"""What a part, and a whole job, came to."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class PartFigures:
    """What became of the pairs of a part; stands in the footer of its file.

    Attributes:
        pairs: That were read.
        repeated: Of those, the same two texts once more.
        short: Pairs that have been left out, with fewer negatives than were wanted.
        written: Rows of the output.
        filled: Of those, rows with negatives that were drawn at random.
        dropped: Documents that filters have dropped, by reason; see
            :meth:`~pipelines.mining.selection.Selection.dropped`.
        negatives: That were written.
        of_own_group: Of those, negatives of their anchor's group.
        positive_scores: Sum of the scores of the positives that were written.
        negative_scores: The same of the negatives.
    """

    pairs: int = 0
    repeated: int = 0
    short: int = 0
    written: int = 0
    filled: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    negatives: int = 0
    of_own_group: int = 0
    positive_scores: float = 0.0
    negative_scores: float = 0.0

    def as_json(self) -> bytes:
        """For a footer."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, told: bytes) -> PartFigures:
        """As a footer has them."""
        return cls(**json.loads(told))


@dataclass(frozen=True)
class MiningSummary:
    """What a job did.

    Attributes:
        folder: The table; in a store the version of it that is the current one.
        read: Rows of the input.
        without_text: Of those, rows without an anchor or a positive.
        repeated: Pairs that are there once more.
        short: Pairs that were left out, with fewer negatives than were wanted.
        rows: Of the table.
        filled: Of those, rows with negatives that were drawn at random.
        documents: Texts that were searched.
        dropped: Documents that filters have dropped, by reason.
        of_own_group: Share of the negatives that are of their anchor's group; None where there are
            no groups.
        positive_score: Mean cosine of the anchors and the positives that were written.
        negative_score: The same of the negatives.
        searched: Pairs that this run searched.
        embedded: Texts that this run embedded.
        seconds: That the search of these pairs took.
    """

    folder: str
    read: int
    without_text: int
    repeated: int
    short: int
    rows: int
    filled: int
    documents: int
    dropped: Mapping[str, int]
    of_own_group: float | None
    positive_score: float | None
    negative_score: float | None
    searched: int
    embedded: int
    seconds: float

    @property
    def rate(self) -> float:
        """Pairs searched a second."""
        return self.searched / max(self.seconds, 1e-9)

    def lines(self) -> list[str]:
        """What is told at the end."""
        if not self.searched and not self.embedded:
            return [f"nothing to mine, all {self.rows:,} rows are there"]
        lines = [
            f"{self.searched:,} pairs searched in {self.documents:,} documents, "
            f"{self.rate:,.0f} anchors/s ({self.seconds:.0f} s)",
            f"{self.rows:,} rows of {self.read:,}; left out: {self.without_text:,} without text, "
            f"{self.repeated:,} repeated, {self.short:,} with too few negatives",
        ]
        if any(self.dropped.values()):
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.dropped.items())
            lines.append(f"documents nearer than the negatives, and dropped: {reasons}")
        if self.filled:
            lines.append(f"{self.filled:,} rows have negatives that were drawn at random")
        if self.positive_score is not None and self.negative_score is not None:
            lines.append(
                f"mean cosine of positives {self.positive_score:.3f}, "
                f"of negatives {self.negative_score:.3f}"
            )
        if self.of_own_group:
            lines.append(f"{self.of_own_group:.1%} of the negatives are of the anchor's group")
        return lines

    def __str__(self) -> str:
        return self.lines()[0]


def added_up(parts: Iterable[PartFigures]) -> PartFigures:
    """The figures of several parts as those of the whole, in the order of the parts."""
    sums: dict[str, Any] = dict.fromkeys(PartFigures.__dataclass_fields__, 0)
    dropped: Counter[str] = Counter()
    for part in parts:
        told = asdict(part)
        dropped.update(told.pop("dropped"))
        for name, value in told.items():
            sums[name] += value
    return PartFigures(**{**sums, "dropped": dict(dropped)})
