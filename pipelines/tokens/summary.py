"""The summary of the tokens stage: lengths, truncation and hard negatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from pipelines.errors import InputError
from pipelines.settings.preparing import SHORTEST_TEXT
from pipelines.tokens.examples import OPTIONAL, TaskSums

WHOLE_SHARE = 0.99
"""Share of untruncated examples in training, where no length is set."""


@dataclass(frozen=True)
class SourceTokens:
    """The summary of one source of several; see :class:`TokenSummary`."""

    name: str
    examples: int
    tokens: int
    negatives: int
    prompts: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.name} {self.examples} examples of {self.tokens} tokens{_shown(self.prompts)}"


@dataclass(frozen=True)
class TokenSummary:
    """The summary of the tokens stage.

    Attributes:
        max_length: Tokens after which texts are truncated.
        cut: Truncated texts.
        dropped: Tokens removed by truncation.
        vocabulary: Rows of a word embedding for these ids.
        negatives: Hard negatives of each example; with several sources, the most.
        columns: Optional columns of the examples.
        prompts: The prompt of each side, by name; with several sources, only the shared prompts.
        sources: Each of several; empty where there is one.
    """

    examples: int
    texts: int
    tokens: int
    max_length: int
    cut: int
    dropped: int
    vocabulary: int
    negatives: int
    columns: tuple[str, ...]
    prompts: Mapping[str, str]
    sources: tuple[SourceTokens, ...] = ()

    def __str__(self) -> str:
        of_sources = "".join(f"; {source}" for source in self.sources)
        return (
            f"{self.examples} examples of {self.tokens} tokens{_shown(self.prompts)},"
            f" {told_cuts(asdict(self))}, vocabulary of {self.vocabulary}{of_sources}"
        )


def _shown(prompts: Mapping[str, str]) -> str:
    return "".join(f", `{text}` before {side}" for side, text in prompts.items())


def summarise(
    sums: Sequence[TaskSums],
    names: Sequence[str],
    prompts: Sequence[Mapping[str, str]],
    max_length: int,
    vocabulary: int,
) -> TokenSummary:
    """Return the summary of the tasks' sums.

    `names` has one for each source, and is empty where there is one without a name; `prompts` holds
    the prompt of each side, for each source.

    Raises:
        InputError: A source has no example, or examples of one differ in their hard negatives.
    """
    named = zip(names, sums, prompts, strict=True) if names else ()
    sources = tuple(
        _source(name, source_sums, before, max_length) for name, source_sums, before in named
    )
    total = reduce(add, sums)
    negatives = [source.negatives for source in sources] or [_hard_negatives(total.negatives, "")]
    lengths, kept = np.arange(len(total.texts)), _kept_tokens(total, max_length)
    of_all = set.intersection(*({*before.items()} for before in prompts))
    return TokenSummary(
        examples=int(total.longest.sum()),
        texts=int(total.texts.sum()),
        tokens=kept,
        max_length=max_length,
        cut=int(total.texts[lengths > max_length].sum()),
        dropped=int(total.texts @ lengths) - kept,
        vocabulary=vocabulary,
        negatives=max(negatives),
        columns=tuple(name for name in OPTIONAL if name in total.columns),
        prompts={side: text for side, text in prompts[0].items() if (side, text) in of_all},
        sources=sources,
    )


def _source(name: str, sums: TaskSums, prompts: Mapping[str, str], max_length: int) -> SourceTokens:
    examples = int(sums.longest.sum())
    if not examples:
        problem = f"no example of source {name} is left"
        raise InputError("corpus.sources", problem, "Name other inputs for it, or leave it out")
    return SourceTokens(
        name=name,
        examples=examples,
        tokens=_kept_tokens(sums, max_length),
        negatives=_hard_negatives(sums.negatives, f" of source {name}"),
        prompts=prompts,
    )


def _kept_tokens(sums: TaskSums, max_length: int) -> int:
    return int(sums.texts @ np.minimum(np.arange(len(sums.texts)), max_length))


def _hard_negatives(counts: np.ndarray, of: str) -> int:
    """Return how many hard negatives each example has; refuse differing numbers.

    `counts` holds rows by their number of negatives. A granule of differing numbers could not be
    computed as one.
    """
    found = np.flatnonzero(counts)
    if len(found) > 1:
        rows = counts.sum()
        raise InputError(
            "corpus.triplet_columns",
            f"{rows - counts[-1]} of {rows} examples{of} have fewer than {found[-1]} hard"
            " negatives",
            "Give every example the same number, or leave the others out of the corpus",
        )
    return int(found[0])


def lengths_json(sums: Sequence[TaskSums], names: Sequence[str], max_length: int) -> dict[str, Any]:
    """Return the content of `lengths.json`: examples by length, after truncation.

    `names` has one for each source, and is empty where there is one without a name.
    """
    content: dict[str, Any] = {"lengths": _lengths(reduce(add, sums), max_length)}
    if names:
        content["sources"] = [_lengths(source_sums, max_length) for source_sums in sums]
    return content


def _lengths(sums: TaskSums, max_length: int) -> list[list[int]]:
    lengths = sums.longest[: max_length + 1].copy()
    # Truncation brings all longer rows to the greatest length.
    lengths[-1] += sums.longest[max_length + 1 :].sum()
    return [[length, int(lengths[length])] for length in np.flatnonzero(lengths).tolist()]


def training_length(longest: np.ndarray, most: int, bucket: int) -> int:
    """Return the smallest multiple of `bucket` at which :data:`WHOLE_SHARE` of examples stay whole.

    So a few long texts do not set the cost of all others. `longest`, int64 [lengths], holds
    examples by the length of their longest text, from 0 on; `most` is the upper limit.
    """
    up_to = np.cumsum(longest)
    enough = int(np.searchsorted(up_to, WHOLE_SHARE * up_to[-1]))
    return min(-(-max(enough, SHORTEST_TEXT) // bucket) * bucket, most)


def told_cuts(manifest: Mapping[str, Any]) -> str:
    """Return a phrase for users about the truncation in a tokens manifest."""
    most, texts = f"texts of up to {manifest['max_length']} tokens", manifest["texts"]
    if not manifest["cut"]:
        return f"{most}, none of {texts:,} truncated"
    tokens = manifest["tokens"] + manifest["dropped"]
    return (
        f"{most}, {manifest['cut']:,} of {texts:,} ({_share(manifest['cut'], texts)}) truncated,"
        f" {_share(manifest['dropped'], tokens)} of the tokens dropped"
    )


def _share(part: int, total: int) -> str:
    share = 100 * part / max(total, 1)
    return f"{share:.1f} %" if share >= 0.1 else "less than 0.1 %"
