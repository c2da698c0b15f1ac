"""Files of pairs of texts with a number each, and the cosines that a model gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pipelines.corpus.readers.formats import RFC_4180, Dialect
from pipelines.errors import InputError
from pipelines.evaluation.base import Evaluation, Figure, OnObserved, SnapshotTables, Tables
from pipelines.evaluation.embedder import Batches, EmbedderLoader, spread, unit_length
from pipelines.evaluation.intervals import Observations, pair_intervals
from pipelines.settings import Config, CorpusSettings
from pipelines.settings.spark import DEFAULT_STORES, StorageSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FORMATS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "csv"} | dict.fromkeys(
    (".jsonl", ".ndjson", ".json"), "jsonl"
)
_COMPRESSED = (".gz", ".bz2")


@dataclass(frozen=True)
class PairFiles:
    """What the files of an evaluation hold.

    Attributes:
        key: The setting that names the files; that of the columns is ``KEY_columns``.
        columns: Names of the first text, the second text and the number.
        stores: How object stores are reached.
        dialect: Of CSV files.
        follow_links: Out of folders.
    """

    key: str
    columns: tuple[str, str, str]
    stores: StorageSettings = DEFAULT_STORES
    dialect: Dialect = RFC_4180
    follow_links: bool = False

    @property
    def columns_key(self) -> str:
        """The setting that names the columns."""
        return f"{self.key}_columns"


@dataclass(frozen=True, eq=False)
class Compared:
    """Pairs as a model sees them; float64 [pairs] but for the hashes.

    Attributes:
        pairs: Hashes of the texts, int64, ascending.
        cosines: Of the embeddings.
        scores: The numbers that the file has.
    """

    pairs: np.ndarray
    cosines: np.ndarray
    scores: np.ndarray

    @property
    def observations(self) -> Observations:
        """The values `cosine` and `score` of each pair."""
        return Observations(self.pairs, {"cosine": self.cosines, "score": self.scores})


def pair_evaluation(
    key: str,
    *,
    figures: Sequence[Figure],
    read: Callable[[SparkSession, str, PairFiles], DataFrame],
    measure: Callable[[np.ndarray, np.ndarray], dict[str, float]],
    check: Callable[[], None] = lambda: None,
    guards: bool = False,
) -> Evaluation:
    """An evaluation on files of pairs, whose figures follow from cosines and numbers alone.

    Args:
        key: The setting that names the files, such as `evaluation.similarity`; that of the columns
            is ``KEY_columns``.
        figures: What it gives.
        read: Reads and checks a file of such: ``text_0``, ``text_1`` and ``score``.
        measure: The figures of the cosines and the numbers, both float64 [pairs].
        check: Looks for what it needs, before Spark starts; raises InputError.
        guards: It measures on the files of `evaluation.guards`, too.
    """
    name = key.rpartition(".")[2]

    def kind_of(config: Config) -> PairFiles:
        names: tuple[str, str, str] = getattr(config.evaluation, f"{name}_columns")
        dialect, follow = Dialect.of(config.evaluation), config.evaluation.follow_links
        return PairFiles(key, names, config.storage, dialect, follow)

    def check_before(config: Config, file: str) -> None:
        check()
        check_file(file, kind_of(config))

    def quality(cosines: np.ndarray, scores: np.ndarray) -> dict[str, float]:
        found = measure(cosines, scores)
        return {figure.name: found[figure.name] for figure in figures if figure.better is not None}

    def measure_all(
        tables: Tables, load: EmbedderLoader, on_observed: OnObserved
    ) -> dict[str, float]:
        found = cosines_of(tables["pairs"], load)
        on_observed(found)
        return measure(found.cosines, found.scores)

    def measure_snapshot(tables: SnapshotTables, load: EmbedderLoader) -> dict[str, float]:
        found = pa.Table.from_batches(cosine_batches(load)(tables("pairs")))
        return measure(found["cosine"].to_numpy(), found["score"].to_numpy())

    return Evaluation(
        name=name,
        part="files of pairs",
        figures=figures,
        sets=lambda config: [
            *getattr(config.evaluation, name),
            *(guard for guard in config.evaluation.guards if guards and is_pair_file(guard)),
        ],
        short_name=lambda file: _stem_and_suffix(file)[0],
        check=check_before,
        read=lambda session, config, file: {"pairs": read(session, file, kind_of(config))},
        measure=measure_all,
        measure_snapshot=measure_snapshot,
        intervals=partial(pair_intervals, quality),
    )


def is_pair_file(given: str) -> bool:
    """Whether a path is that of a file of pairs by its ending, such as `.csv` or `.parquet`.

    The judgements of a retrieval set, in its folder `qrels`, are not.
    """
    return _stem_and_suffix(given)[1] in _FORMATS and PurePath(given).parent.name != "qrels"


def read_pairs(session: SparkSession, file: str, kind: PairFiles) -> DataFrame:
    """The pairs of a file: ``text_0``, ``text_1`` (strings) and ``score`` (double).

    Parquet, CSV (or TSV) and JSON lines, recognised by their endings; read once here, before any
    model is loaded.

    Raises:
        InputError: File or columns are missing or not what they are said to be, there are fewer
            than two pairs, or a row lacks a text or a finite number.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    from pipelines.corpus.readers.inputs import COLUMNS, find_files, number_in
    from pipelines.corpus.readers.spark_reader import damage_named

    rows = _read(session, file, kind)
    follow = kind.follow_links
    files = find_files([file], COLUMNS, kind.key, kind.stores, follow_links=follow)
    with damage_named(session, kind.key, files, kind.columns):
        unread = rows.where("quarantined is not null").orderBy("offset").first()
        if unread is not None:
            raise InputError(
                kind.key, f"{file} has an unreadable row ({unread['quarantined']})", "mend the file"
            )
        pairs = rows.select("text_0", "text_1", F.expr(number_in("score")).alias("score"))
        _check(file, pairs, kind)
    return pairs


def check_file(file: str, kind: PairFiles) -> None:
    """Looks at what can be known of a file of pairs without Spark.

    Raises:
        InputError: It is not there, cannot be read, or lacks a column.
    """
    from pipelines.corpus.readers.inputs import find_files, has_columns
    from pipelines.corpus.readers.spark_reader import columns_in

    follow = kind.follow_links
    for path in find_files([file], "columns", kind.key, kind.stores, follow_links=follow):
        _, there = columns_in(path, kind.key, kind.dialect)
        missing = next((name for name in kind.columns if name not in there), None)
        if missing is not None:
            problem = f"{path} has no column `{missing}`"
            remedy = has_columns(there, "evaluation")
            raise InputError(kind.columns_key, problem, remedy)


def cosines_of(pairs: DataFrame, load: EmbedderLoader) -> Compared:
    """The model's cosines of the pairs, and their numbers, in the order of the pairs' hashes."""
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    compared = spread(pairs.withColumn("pair", F.xxhash64("text_0", "text_1"))).mapInArrow(
        cosine_batches(load, "pair"), "pair long, cosine double, score double"
    )
    # Equal pairs have equal cosines but for their last bits, and perhaps different numbers.
    rows = sorted((row["pair"], row["score"], row["cosine"]) for row in compared.collect())
    return Compared(
        pairs=np.array([pair for pair, _, _ in rows], np.int64),
        cosines=np.array([cosine for _, _, cosine in rows]),
        scores=np.array([score for _, score, _ in rows]),
    )


def cosine_batches(load: EmbedderLoader, *kept: str) -> Batches:
    """Of ``text_0``, ``text_1``, ``score`` the ``cosine`` and the ``score``.

    Args:
        load: Loads the model on an executor.
        kept: Columns that stand before them, as they came.
    """

    def compare(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs on an executor."""
        embedder = None
        for batch in batches:
            embedder = embedder or load()
            first, second = (
                unit_length(embedder(batch.column(name).to_pylist())).astype(np.float64)
                for name in ("text_0", "text_1")
            )
            cosines = pa.array(np.einsum("ij,ij->i", first, second))
            yield pa.RecordBatch.from_arrays(
                [*map(batch.column, kept), cosines, batch.column("score")],
                names=[*kept, "cosine", "score"],
            )

    return compare


def _read(session: SparkSession, file: str, kind: PairFiles) -> DataFrame:
    """The raw rows, as the corpus reads them; its errors under the names of these settings."""
    from pipelines.corpus.readers.spark_reader import read_rows

    form = _FORMATS.get(_stem_and_suffix(file)[1])
    if form is None:
        endings = ", ".join(_FORMATS)
        raise InputError(
            kind.key, f"`{file}` says no format", f"its name must end in one of {endings}"
        )
    settings = CorpusSettings.model_validate(
        {
            "inputs": (file,),
            "format": form,
            "pairs": "columns",
            "pair_columns": kind.columns[:2],
            "score_column": kind.columns[2],
            "csv_separator": kind.dialect.separator,
            "csv_escape": kind.dialect.escape,
            "follow_links": kind.follow_links,
        }
    )
    keys = dict.fromkeys(("corpus.pair_columns", "corpus.score_column"), kind.columns_key)
    try:
        return read_rows(session, settings, kind.stores)
    except InputError as error:
        by_name = "corpus.format" in error.remedy
        remedy = "give it the ending of its format" if by_name else error.remedy
        for name in ("csv_", "follow_links"):
            remedy = remedy.replace(f"corpus.{name}", f"evaluation.{name}")
        raise InputError(keys.get(error.key, kind.key), error.problem, remedy) from None


def _check(file: str, pairs: DataFrame, kind: PairFiles) -> None:
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    is_text = F.col("text_0").isNotNull() & F.col("text_1").isNotNull()
    # Infinities and NaN fall out of the range too.
    is_number = F.col("score").isNotNull() & (F.abs("score") < float("inf"))
    found = pairs.agg(
        F.count("*").alias("rows"),
        F.count(F.when(~is_text, 1)).alias("textless"),
        F.count(F.when(~is_number, 1)).alias("scoreless"),
    ).collect()[0]
    first, second, number = kind.columns
    if found["rows"] < 2:
        raise InputError(kind.key, f"{file} holds {found['rows']} pairs", "at least 2")
    if found["textless"]:
        raise InputError(
            kind.columns_key,
            f"{found['textless']} rows of {file} have no `{first}` or `{second}`",
            "fill or remove them",
        )
    if found["scoreless"]:
        raise InputError(
            kind.columns_key,
            f"`{number}` of {found['scoreless']} rows of {file} is no number",
            "fill or remove them",
        )


def _stem_and_suffix(file: str) -> tuple[str, str]:
    path = PurePath(file)
    if path.suffix.lower() in _COMPRESSED:
        path = path.with_suffix("")
    return path.stem, path.suffix.lower()
