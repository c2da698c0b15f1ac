"""The corpus stage: from `corpus.inputs` to pairs, an evaluation set and a funnel."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.corpus import pairs as pair_forms
from pipelines.corpus import prose, split
from pipelines.corpus.funnel import FILES, PAIRS, ROWS, FunnelLine, check_adds_up, level_lines
from pipelines.corpus.readers import parquet_texts, read_rows
from pipelines.errors import InputError
from pipelines.frames import Scratch, read_path, write_path
from pipelines.settings import Config, CorpusSettings
from pipelines.storage import new_folder, write_json

FOLDER = "corpus"
PAIRS_FOLDER = "pairs.parquet"
QUERIES_FILE = "evaluation/queries.parquet"
DOCUMENTS_FILE = "evaluation/documents.parquet"
FUNNEL_FILE = "funnel.json"

# What Java says of a file that is damaged beyond its first bytes.
_DAMAGED = ("EOFException", "ZipException", "incorrect data check", "is not a Parquet file")
_REMEDIES: Mapping[str, str] = {
    "too short": "lower corpus.min_characters",
    "too long": "raise corpus.max_characters",
    pair_forms.ALONE: "set corpus.group_column to a column whose values repeat",
    pair_forms.EXCLUDED: "see corpus.exclude",
    pair_forms.OUT_OF_RANGE: "set corpus.score_range",
    prose.NOTHING_AFTER: "set corpus.pairs to single, or name longer texts",
    split.LEAK: "set corpus.evaluation_share=0",
}


@dataclass(frozen=True)
class CorpusSummary:
    """What the corpus stage wrote.

    Attributes:
        folder: `<prepared.folder>/corpus`.
        pairs: Pairs for training.
        queries: Held-out pairs; 0 where there is no evaluation folder.
        documents: Distinct texts that the queries search.
        funnel: What became of every row.
        seconds: Wall clock of the whole stage.
    """

    folder: Path
    pairs: int
    queries: int
    documents: int
    funnel: tuple[FunnelLine, ...]
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.pairs} pairs for training, {self.queries} held out"
            f" with {self.documents} documents"
        )


def prepare_corpus(session: SparkSession, config: Config) -> CorpusSummary:
    """Reads, cleans, pairs, splits and writes the corpus; runs on the driver.

    In `<prepared.folder>/corpus`, which is replaced as a whole or left as it was:

    - `pairs.parquet/`: `id` and `group` (int64), `left`, `right` (null for single texts),
      `score` (float, 0 to 1, null without scores);
    - `evaluation/queries.parquet` (`query_id`, `text`, `document_id`) and
      `evaluation/documents.parquet` (`document_id`, `text`), unless nothing is held out;
    - `funnel.json`: see :mod:`pipelines.corpus.funnel`.

    The content depends on the inputs and the settings alone, not on the partitions.

    Raises:
        InputError: An input, a column or a setting is wrong, or no pair is left.
    """
    started = time.monotonic()
    settings = config.corpus
    pair_forms.check_settings(settings)
    with _damaged_inputs_named():
        raw = read_rows(session, settings)
        excluded = (
            parquet_texts(session, settings.exclude, settings.exclude_columns)
            if settings.exclude
            else None
        )
    folder = Path(config.prepared.folder).absolute() / FOLDER
    with new_folder(folder) as aside, Scratch(aside / "scratch") as scratch:
        rows, lines = _write_rows(scratch, raw, excluded, settings)
        pairs = scratch.keep(pair_forms.make_pairs(rows, settings))
        lines += _write_split(session, scratch, pairs, aside, settings)
        check_adds_up(lines)
        _check_some_left(lines)
        write_json(aside / FUNNEL_FILE, [line.as_json() for line in lines])
        documents = _count_file(session, aside / DOCUMENTS_FILE)
    kept = {line.name: line.rows for line in lines if line.level == PAIRS and line.kind == "kept"}
    return CorpusSummary(
        folder,
        kept["pairs for training"],
        kept["held out for evaluation"],
        documents,
        tuple(lines),
        time.monotonic() - started,
    )


def _write_rows(
    scratch: Scratch, raw: DataFrame, excluded: DataFrame | None, settings: CorpusSettings
) -> tuple[DataFrame, list[FunnelLine]]:
    with _damaged_inputs_named():
        rows = scratch.keep(pair_forms.clean_rows(raw, settings))
    read = _counts(rows, "level")
    if excluded is not None:
        rows = pair_forms.mark_excluded(rows, excluded)
    rows = pair_forms.choose_members(rows, settings)
    dropped: dict[str, dict[str, int]] = {FILES: {}, ROWS: {}}
    kept: dict[str, int] = {}
    for level, reason, count in rows.groupBy("level", "reason").count().collect():
        if reason is None:
            kept[level] = count
        else:
            dropped[level][reason] = count
    lines = []
    if FILES in read:
        lines = level_lines(
            FILES,
            ("source files found", read[FILES]),
            dropped[FILES],
            {"source files with docstrings": kept.get(FILES, 0)},
        )
    lines += level_lines(
        ROWS,
        ("rows read", read.get(ROWS, 0)),
        dropped[ROWS],
        {"rows that give pairs": kept.get(ROWS, 0)},
    )
    return rows, lines


def _write_split(
    session: SparkSession,
    scratch: Scratch,
    pairs: DataFrame,
    aside: Path,
    settings: CorpusSettings,
) -> list[FunnelLine]:
    entered = pairs.count()
    dropped = _reasons(pairs)
    pairs = split.mark_held_out(pairs, settings)
    judged = scratch.keep(split.judge_held_out(pairs, settings))
    dropped |= _reasons(judged)
    askable = judged.where("reason is null").count()
    held_out = 0
    training = pairs.where("reason is null and not held")
    if askable:
        chosen = scratch.keep(split.choose_held_out(judged, settings))
        _write_file(split.queries(chosen), aside / QUERIES_FILE)
        _write_file(split.documents(chosen), aside / DOCUMENTS_FILE)
        held_out = _count_file(session, aside / QUERIES_FILE)
        dropped |= {split.BEYOND: askable - held_out} if askable > held_out else {}
        training = split.mark_leaks(pairs, chosen)
        dropped |= _reasons(training)
    columns = ("id", "group", "left", "right", "score")
    final = training.where("reason is null").select(*columns).sortWithinPartitions("id")
    path = aside / PAIRS_FOLDER
    final.write.parquet(write_path(path), compression="zstd")
    written = session.read.schema(final.schema).parquet(read_path(path)).count()
    return level_lines(
        PAIRS,
        ("pairs made", entered),
        dropped,
        {"pairs for training": written, "held out for evaluation": held_out},
    )


def _check_some_left(lines: list[FunnelLine]) -> None:
    if any(line.name == "pairs for training" and line.rows for line in lines):
        return
    reasons = [line for line in lines if line.kind == "dropped" and line.level != FILES]
    read = next(line.rows for line in lines if line.level == ROWS and line.kind == "in")
    if not reasons:
        held = any(line.name == "held out for evaluation" and line.rows for line in lines)
        raise InputError(
            "corpus.inputs",
            f"no pair is left of {read} rows" + (": all are held out" if held else ""),
            "set corpus.evaluation_share=0" if held else "name inputs that hold text",
        )
    most = max(reasons, key=lambda line: line.rows)
    raise InputError(
        "corpus.inputs",
        f"no pair is left of {read} rows: most often `{most.name}` ({most.rows})",
        _REMEDIES.get(most.name, "name other inputs"),
    )


def _counts(frame: DataFrame, column: str) -> dict[str, int]:
    return {row[column]: row["count"] for row in frame.groupBy(column).count().collect()}


def _reasons(frame: DataFrame) -> dict[str, int]:
    return _counts(frame.where(F.col("reason").isNotNull()), "reason")


def _write_file(frame: DataFrame, path: Path) -> None:
    """Writes a small table as one file."""
    parts = path.with_suffix(".parts")
    frame.coalesce(1).write.parquet(write_path(parts), compression="zstd")
    next(parts.glob("part-*")).rename(path)
    shutil.rmtree(parts)


def _count_file(session: SparkSession, path: Path) -> int:
    return session.read.parquet(read_path(path)).count() if path.exists() else 0


@contextmanager
def _damaged_inputs_named() -> Iterator[None]:
    """Turns Spark's error about a damaged input file into the user's."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        text = str(error)
        sign = next((sign for sign in _DAMAGED if sign in text), None)
        if sign is None:
            raise
        raise InputError(
            "corpus.inputs", f"an input file is damaged ({sign})", "unpack it to see which"
        ) from error
