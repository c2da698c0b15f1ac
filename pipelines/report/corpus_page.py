"""The page of a prepared corpus: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from pipelines.corpus.cleaning.rules import UNKNOWN
from pipelines.corpus.funnel import FILES, PAIRS, ROWS
from pipelines.evaluation.alarms import told_overlaps
from pipelines.files import storage
from pipelines.files.locations import Location
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.lanes.files import LaneManifest
from pipelines.report.comparison import shown
from pipelines.report.page_parts import (
    LOST,
    Bar,
    Chart,
    byte_size,
    funnel_levels,
    per_cent,
    read_if_there,
    read_record,
    render,
    short_duration,
    whole,
)
from pipelines.report.svg_charts import histogram
from pipelines.tokens.summary import told_cuts

_MAX_REASONS = 10
_MAX_LANGUAGES = 20

FunnelLines = Sequence[Mapping[str, Any]]


class Reason(NamedTuple):
    """A reason for lost texts: count, share of the level, and a few of them; for people."""

    name: str
    rows: str
    share: str
    examples: tuple[str, ...]


class StageTime(NamedTuple):
    """The time of a stage, for people; an unknown rate is empty."""

    name: str
    kept: bool
    seconds: str
    megabyte_rate: str
    text_rate: str


def write_corpus_report(prepared_folder: Location) -> Location:
    """Write ``report.html`` of a prepared folder, and return its path.

    It reads ``corpus/funnel.json``, ``corpus/statistics.json``, ``tokens/lengths.json``,
    ``tokens/manifest.json``, ``lanes/manifest.json`` and ``stages.json``; sections without data are
    left out.
    """
    folder = PreparedFolder(prepared_folder.absolute())

    funnel: FunnelLines = read_record(folder.corpus.funnel)
    statistics: Mapping[str, Any] = read_record(folder.corpus.statistics)
    lengths = dict(map(tuple, read_record(folder.tokens.lengths).get("lengths", [])))
    tokens: Mapping[str, Any] = read_record(folder.tokens.manifest)
    manifest = read_if_there(folder.lanes.manifest, lambda path: LaneManifest.load(path.parent))
    page = render(
        "corpus.html",
        {
            "name": folder.path.name,
            "kind": "corpus report",
            "sentence": "Corpus report",
            "scores": [],
            "tiles": _tiles(funnel, statistics, manifest),
            "funnel": funnel_levels(funnel),
            "reasons": _reasons(funnel, statistics.get("examples", {})),
            "quarantine": [
                dict(place, file=shown(place["file"]), reason=shown(place["reason"]))
                for place in statistics.get("quarantine", [])
            ],
            "languages": _languages(statistics.get("languages", {})),
            "lengths": _length_chart(lengths, manifest),
            "lanes": _lanes(manifest)
            | ({"Read": told_cuts(tokens)} if "max_length" in tokens else {}),
            "times": _times(read_record(folder.stages), funnel, statistics.get("bytes", 0)),
            "texts": text_level(funnel),
            "overlaps": told_overlaps(read_record(folder.corpus.overlap)),
        },
    )
    storage.write_text(folder.report, page)
    return folder.report


def text_level(funnel: FunnelLines) -> str:
    """Return the level before pairs, or `rows`: the preparation makes pairs of its units."""
    levels = [line["level"] for line in funnel if line["level"] not in (FILES, PAIRS)]
    return str(levels[-1]) if levels else ROWS


def _rows(funnel: FunnelLines, level: str, kind: str) -> int | None:
    found = [line["rows"] for line in funnel if (line["level"], line["kind"]) == (level, kind)]
    return sum(found) if found else None


def _tiles(
    funnel: FunnelLines, statistics: Mapping[str, Any], manifest: LaneManifest | None
) -> dict[str, str]:
    """Return the figures at the top of the page."""
    texts = text_level(funnel)
    counts = {
        "rows read": _rows(funnel, ROWS, "in"),
        f"{texts} kept": _rows(funnel, texts, "kept"),
        "pairs kept": _rows(funnel, PAIRS, "kept"),
        "examples in granules": manifest.placed if manifest else None,
        "tokens in granules": manifest.tokens if manifest else None,
    }
    read = {"text read": byte_size(statistics["bytes"])} if "bytes" in statistics else {}
    return read | {title: f"{n:,}" for title, n in counts.items() if n is not None}


def _reasons(
    funnel: FunnelLines, examples: Mapping[str, Mapping[str, Sequence[str]]]
) -> dict[str, list[Reason]]:
    """Return the most frequent reasons with examples, by level."""
    levels: dict[str, list[Reason]] = {}
    for level in dict.fromkeys(line["level"] for line in funnel):
        entered = _rows(funnel, level, "in") or 1
        lost = [line for line in funnel if line["level"] == level and line["kind"] in LOST]
        texts = examples.get(level, {})
        known = [line for line in lost if texts.get(line["reason"])]
        most = sorted(known, key=lambda line: -line["rows"])[:_MAX_REASONS]
        if most:
            levels[level] = [
                Reason(
                    line["reason"],
                    f"{line['rows']:,}",
                    per_cent(line["rows"] / entered),
                    tuple(map(shown, texts[line["reason"]])),
                )
                for line in most
            ]
    return levels


def _languages(counts: Mapping[str, int]) -> list[Bar]:
    """Return a bar for each of the most frequent languages, and one for the others."""
    total = sum(counts.values())
    ordered = iter(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    bars = dict(islice(ordered, _MAX_LANGUAGES))
    # `islice` has left the rest in the iterator.
    rarer = list(ordered)
    if rarer:
        bars[f"{len(rarer)} others"] = sum(count for _, count in rarer)
    names = {UNKNOWN: "not determined"}
    return [
        Bar(names.get(name, name), f"{count:,}", 0.0, count / total, "share")
        for name, count in bars.items()
        if count
    ]


def _length_chart(lengths: Mapping[int, int], manifest: LaneManifest | None) -> Chart | None:
    if not lengths:
        return None
    title = "Lengths"
    edges = [segment.length for segment in manifest.segments] if manifest else []
    svg = histogram(
        title,
        lengths,
        edges,
        labels=("tokens of an example's longest text", "examples"),
        edge_label="longest text of a bucket's granules",
    )
    return Chart(title, svg, wide=True)


def _lanes(manifest: LaneManifest | None) -> dict[str, str]:
    """Describe the arrangement of the lengths in lanes."""
    if manifest is None:
        return {}
    padding = 1 - manifest.tokens / manifest.slots
    sources = [f"{source.name} {source.rows:,}" for source in manifest.sources]
    left_over = [f"{rows:,} ({reason})" for reason, rows in manifest.left_over.items() if rows]
    return {
        "Lanes": f"{manifest.lanes:,} of {manifest.rows:,} granules of {manifest.granule}",
        **({"Granules of a lane by source": ", ".join(sources)} if sources else {}),
        "Padding": f"{per_cent(padding)} of the slots",
        "Left over": ", ".join(left_over) or "no example",
        "Same group within a step": f"{manifest.same_group_in_step:,} examples",
    }


def _times(
    stages: Sequence[Mapping[str, Any]], funnel: FunnelLines, read_bytes: int
) -> list[StageTime]:
    """Return a line for each stage, and one for all; rates are of the input text."""
    texts = _rows(funnel, text_level(funnel), "in") or 0
    named = [(stage["stage"], stage["seconds"], stage["kept"]) for stage in stages]
    if len(named) > 1:
        named.append(("all", sum(seconds for _, seconds, _ in named), False))
    return [
        StageTime(
            name,
            kept,
            short_duration(seconds),
            whole(read_bytes / 1e6 / seconds) if read_bytes and seconds else "",
            whole(texts / seconds) if texts and seconds else "",
        )
        for name, seconds, kept in named
    ]
