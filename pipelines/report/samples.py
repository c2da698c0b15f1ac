"""The held-out pairs of ``samples.json`` as the page shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelines.report.page_parts import Chart, per_cent
from pipelines.report.style import BLUE, ORANGE
from pipelines.report.text import shown

MODELS = {"before": "Before", "after": "After"}
KINDS = {
    "better": "Found better than before",
    "worse": "Found worse than before",
    "random": "Taken at random",
}
MAP_SIZE = 400
_MARGIN = 14
_BINS = 32


@dataclass(frozen=True)
class MapPair:
    """A pair on a map, in the map's units.

    Attributes:
        number: The same on all maps.
        kind: `first`, `near` or `far`: where its document stands among those of its query.
        texts: Its two texts, as they can be shown.
        rank: Of its document, for people.
        query: Place of its query.
        document: Place of its document.
    """

    number: int
    kind: str
    texts: tuple[str, str]
    rank: str
    query: tuple[float, float]
    document: tuple[float, float]


@dataclass(frozen=True)
class Map:
    """The pairs as one model sees them.

    Attributes:
        title: For people.
        pairs: What is on it.
        counts: How many pairs there are of each kind.
    """

    title: str
    pairs: tuple[MapPair, ...]
    counts: Mapping[str, int]


@dataclass(frozen=True)
class Found:
    """What a model has found for a query: texts, whether they are right, and a rank in words."""

    documents: tuple[tuple[str, bool], ...]
    rank: str


@dataclass(frozen=True)
class Query:
    """A query with what each model has found."""

    text: str
    right: str
    before: Found
    after: Found


def maps(samples: Mapping[str, Any]) -> list[Map]:
    """The map of each model, with the same pairs; none where there are no pairs, or no places."""
    pairs, depth = samples.get("pairs", []), samples.get("depth", 0)
    if not any(
        place != [0, 0] for pair in pairs for name in MODELS for place in pair[name]["places"]
    ):
        return []
    return [
        _map(title, [_map_pair(number, pair, name, depth) for number, pair in enumerate(pairs)])
        for name, title in MODELS.items()
    ]


def queries(samples: Mapping[str, Any]) -> dict[str, list[Query]]:
    """The queries of each kind that there are, by its title."""
    depth = samples.get("depth", 0)
    kinds: dict[str, list[Query]] = {}
    for one in samples.get("neighbours", []):
        query = Query(
            shown(one["text"]),
            shown(one["right"]),
            _found(one["before"], depth),
            _found(one["after"], depth),
        )
        kinds.setdefault(KINDS[one["kind"]], []).append(query)
    return kinds


def changes(samples: Mapping[str, Any]) -> str:
    """How many queries got better and worse, in a sentence."""
    counted = samples.get("changes", {})
    if not counted.get("queries"):
        return ""
    same = counted["queries"] - counted["better"] - counted["worse"]
    return (
        f"Of {counted['queries']:,} queries, {counted['better']:,} have their document at a better "
        f"rank than before, {counted['worse']:,} at a worse one, and {same:,} at the same or still "
        f"not among the first {samples['depth']}."
    )


def similarity_charts(samples: Mapping[str, Any]) -> list[Chart]:
    """How alike the two texts of a pair are, and two texts of different pairs; by model."""
    pairs = samples.get("pairs", [])
    values = {
        (name, key): [pair[name][key] for pair in pairs if pair[name][key] is not None]
        for name in MODELS
        for key in ("cosine", "strange_cosine")
    }
    everything = [one for some in values.values() for one in some]
    if not everything:
        return []
    from pipelines.report.svg_charts import Distribution, distributions

    low, high = min(everything), max(everything)
    edges = np.linspace(np.floor(10 * low) / 10, max(1.0, high), _BINS + 1).tolist()
    charts = []
    for name, title in MODELS.items():
        own, strange = values[name, "cosine"], values[name, "strange_cosine"]
        svg = distributions(
            f"Cosines {title.lower()}",
            [
                Distribution(own, BLUE, "of a pair"),
                Distribution(strange, ORANGE, "of different pairs", fill=False),
            ],
            edges,
            label="cosine of two texts",
        )
        won = per_cent(closer(own, strange))
        note = (
            f"A text is closer to its partner than to a stranger in {won} of all comparisons; "
            "50 % would be chance."
        )
        charts.append(Chart(f"{title}: how alike two texts are", svg, note=note))
    return charts


def closer(own: Sequence[float], strange: Sequence[float]) -> float:
    """The share of comparisons that the first values win; a tie is half won.

    Source: Mann and Whitney, "On a test of whether one of two random variables is stochastically
    larger than the other", Annals of Mathematical Statistics 18(1), 1947.
    """
    if not own or not strange:
        return 0.5
    difference = np.subtract.outer(np.asarray(own, float), np.asarray(strange, float))
    return float((difference > 0).mean() + (difference == 0).mean() / 2)


def _map(title: str, pairs: Sequence[MapPair]) -> Map:
    kinds = ("first", "near", "far")
    counts = {kind: sum(pair.kind == kind for pair in pairs) for kind in kinds}
    # Found ones are drawn last, so that they stay visible where they are few.
    ordered = sorted(pairs, key=lambda pair: -counts[pair.kind])
    return Map(title, tuple(ordered), counts)


def _map_pair(number: int, pair: Mapping[str, Any], name: str, depth: int) -> MapPair:
    rank = pair[name]["rank"]
    query, document = (_place(place) for place in pair[name]["places"])
    left, right = map(shown, pair["texts"])
    kind = "far" if rank is None else "first" if rank == 1 else "near"
    return MapPair(number, kind, (left, right), rank_in_words(rank, depth), query, document)


def rank_in_words(rank: int | None, depth: int) -> str:
    """A rank for people; all below the ranks kept are the same."""
    return f"behind rank {depth}" if rank is None else f"rank {rank}"


def _place(place: Sequence[float | None]) -> tuple[float, float]:
    """Map units, downwards, of a place from -1 to 1, upwards; the centre where it is unknown."""
    reach = MAP_SIZE / 2 - _MARGIN
    across, up = (0.0 if one is None else one for one in place)
    return round(MAP_SIZE / 2 + reach * across, 1), round(MAP_SIZE / 2 - reach * up, 1)


def _found(found: Mapping[str, Any], depth: int) -> Found:
    documents = tuple((shown(one["text"]), bool(one["right"])) for one in found["documents"])
    return Found(documents, rank_in_words(found["rank"], depth))
