"""Scored pairs of texts: similarity, and paraphrase classification.

Figures compare the cosines of pairs with the scores of a file, as in sentence-transformers.
`EmbeddingSimilarityEvaluator` correlates cosines with human scores; Reimers, Beyer and Gurevych,
"Task-oriented intrinsic evaluation of semantic textual similarity", COLING 2016, say why Spearman's
comes first. `BinaryClassificationEvaluator` separates the labels by one threshold on the cosine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pipelines.corpus.readers.formats import RFC_4180, Dialect
from pipelines.errors import InputError
from pipelines.evaluation.base import Evaluation, Figure, Forms, Measured
from pipelines.evaluation.embedder import EmbedderLoader
from pipelines.evaluation.intervals import Observations, pair_intervals
from pipelines.evaluation.rows import Batches, Rows, Tables, spread
from pipelines.libraries import check_installed
from pipelines.settings import Config, CorpusSettings
from pipelines.settings.spark import DEFAULT_STORES, StorageSettings
from pipelines.vectors.nearest import unit_length

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FORMATS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "csv"} | dict.fromkeys(
    (".jsonl", ".ndjson", ".json"), "jsonl"
)
_COMPRESSED = (".gz", ".bz2")


@dataclass(frozen=True)
class PairFiles:
    """The kind of pair files of the setting ``key``.

    ``columns`` are the names of the first text, the second text and the number, from the setting
    ``KEY_columns``.
    """

    key: str
    columns: tuple[str, str, str]
    stores: StorageSettings = DEFAULT_STORES
    dialect: Dialect = RFC_4180
    follow_links: bool = False

    @property
    def columns_key(self) -> str:
        """The setting of the columns."""
        return f"{self.key}_columns"


@dataclass(frozen=True, eq=False)
class Compared:
    """Hashes of pairs (int64, ascending), cosines and given scores (float64), each [pairs]."""

    pairs: np.ndarray
    cosines: np.ndarray
    scores: np.ndarray

    @property
    def observations(self) -> Observations:
        """Return the values `cosine` and `score` of each pair."""
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
    """Return an evaluation on files of pairs.

    Args:
        key: The setting of the files, such as `evaluation.similarity`; ``KEY_columns`` names the
            columns.
        read: Reads and checks a file into ``text_0``, ``text_1`` and ``score``.
        measure: Returns the figures of the cosines and the scores, both float64 [pairs].
        check: Looks for requirements before Spark starts; raises InputError.
        guards: Whether it also measures on the files of `evaluation.guards`.
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

    def measured(
        tables: Mapping[str, Rows], load: EmbedderLoader, forms: Forms
    ) -> Sequence[Measured]:
        found = cosines_of(tables["pairs"], load)
        return [Measured(measure(found.cosines, found.scores), found)]

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
        arrange=arranged,
        measure=measured,
        intervals=partial(pair_intervals, quality),
    )


def is_pair_file(given: str) -> bool:
    """Tell by its ending whether a path is a file of pairs, and not of judgements in `qrels`."""
    return _stem_and_suffix(given)[1] in _FORMATS and PurePath(given).parent.name != "qrels"


def read_pairs(session: SparkSession, file: str, kind: PairFiles) -> DataFrame:
    """Read the pairs of a file: ``text_0``, ``text_1`` (strings) and ``score`` (double).

    The ending says Parquet, CSV (or TSV) or JSON lines. Spark reads the file once, before a model
    loads.

    Raises:
        InputError: The file or a column is missing or malformed, there are fewer than two pairs, or
            a row lacks a text or a finite number.
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
                kind.key,
                f"{file} has an unreadable row ({unread['quarantined']})",
                "Correct the file",
            )
        pairs = rows.select("text_0", "text_1", F.expr(number_in("score")).alias("score"))
        _check(file, pairs, kind)
    return pairs


def check_file(file: str, kind: PairFiles) -> None:
    """Check a file of pairs without Spark.

    Raises:
        InputError: It is missing, cannot be read, or lacks a column.
    """
    from pipelines.corpus.readers.inputs import find_files, has_columns
    from pipelines.corpus.readers.spark_reader import columns_in

    follow = kind.follow_links
    for path in find_files([file], "columns", kind.key, kind.stores, follow_links=follow):
        _, columns = columns_in(path, kind.key, kind.dialect)
        missing = next((name for name in kind.columns if name not in columns), None)
        if missing is not None:
            problem = f"{path} has no column `{missing}`"
            raise InputError(kind.columns_key, problem, has_columns(columns, "evaluation"))


def _read(session: SparkSession, file: str, kind: PairFiles) -> DataFrame:
    """Read the raw rows as the corpus does; errors name these settings."""
    from pipelines.corpus.readers.spark_reader import read_rows

    form = _FORMATS.get(_stem_and_suffix(file)[1])
    if form is None:
        endings = ", ".join(_FORMATS)
        raise InputError(
            kind.key,
            f"the name of `{file}` shows no format",
            f"Give it one of the endings {endings}",
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
        remedy = "Give the file the ending of its format" if by_name else error.remedy
        for name in ("csv_", "follow_links"):
            remedy = remedy.replace(f"corpus.{name}", f"evaluation.{name}")
        raise InputError(keys.get(error.key, kind.key), error.problem, remedy) from None


def _check(file: str, pairs: DataFrame, kind: PairFiles) -> None:
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    is_text = F.col("text_0").isNotNull() & F.col("text_1").isNotNull()
    # Infinities and NaN fall out of the range too.
    is_number = F.col("score").isNotNull() & (F.abs("score") < float("inf"))
    rows, textless, scoreless = pairs.agg(
        F.count("*"), F.count(F.when(~is_text, 1)), F.count(F.when(~is_number, 1))
    ).collect()[0]
    first, second, number = kind.columns
    if rows < 2:
        raise InputError(kind.key, f"{file} holds {rows} pairs", "Name a file of at least 2")
    faults = {
        f"{textless} rows of {file} have no `{first}` or `{second}`": textless,
        f"`{number}` of {scoreless} rows of {file} is no number": scoreless,
    }
    for fault, count in faults.items():
        if count:
            raise InputError(kind.columns_key, fault, "Fill or remove them")


def _stem_and_suffix(file: str) -> tuple[str, str]:
    path = PurePath(file)
    if path.suffix.lower() in _COMPRESSED:
        path = path.with_suffix("")
    return path.stem, path.suffix.lower()


def arranged(tables: Tables) -> Tables:
    """Return the pairs dealt to all cores, each with the hash of its texts as ``pair``."""
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    return {"pairs": spread(tables["pairs"].withColumn("pair", F.xxhash64("text_0", "text_1")))}


def cosines_of(pairs: Rows, load: EmbedderLoader) -> Compared:
    """Return the model's cosines of pairs, and their scores, in the order of their hashes."""
    found = pairs.map(_cosine_batches(load), "pair long, score double, cosine double")
    # By score before cosine: the cosines of equal pairs may differ in their last bits.
    rows = sorted((row["pair"], row["score"], row["cosine"]) for row in found)
    hashes, scores, cosines = zip(*rows, strict=True)
    return Compared(np.array(hashes, np.int64), np.array(cosines), np.array(scores))


def _cosine_batches(load: EmbedderLoader) -> Batches:
    """Return a function that maps texts to ``cosine``, and keeps ``pair`` and ``score``."""

    def compare(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        embedder = None
        for batch in batches:
            embedder = embedder or load()
            first, second = (
                unit_length(embedder(batch.column(name).to_pylist())).astype(np.float64)
                for name in ("text_0", "text_1")
            )
            columns = {name: batch.column(name) for name in ("pair", "score")}
            cosines = pa.array(np.einsum("ij,ij->i", first, second))
            yield pa.RecordBatch.from_pydict({**columns, "cosine": cosines})

    return compare


SIMILARITY_FILES = "evaluation.similarity"


def scored_pairs(session: SparkSession, file: str, kind: PairFiles) -> DataFrame:
    """Read pairs with at least two distinct scores.

    Raises:
        InputError: See :func:`read_pairs`; or all scores are equal.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    pairs = read_pairs(session, file, kind)
    lowest, highest = pairs.agg(F.min("score"), F.max("score")).collect()[0]
    if lowest == highest:
        raise InputError(
            kind.columns_key,
            f"every `{kind.columns[2]}` of {file} is {lowest:g}",
            "Name a column of different scores",
        )
    return pairs


def similarity_figures(cosines: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """Return ``pairs``, and ``spearman`` and ``pearson`` (times 100) of two vectors [pairs]."""
    return {
        "pairs": len(cosines),
        "spearman": 100 * spearman(cosines, scores),
        "pearson": 100 * pearson(cosines, scores),
    }


def pearson(left: np.ndarray, right: np.ndarray) -> float:
    """Return Pearson's correlation; 0 for a constant vector."""
    from scipy.stats import pearsonr

    return 0.0 if _is_constant(left, right) else float(pearsonr(left, right).statistic)


def spearman(left: np.ndarray, right: np.ndarray) -> float:
    """Return Spearman's rank correlation, ties at their mean rank; 0 for a constant vector."""
    from scipy.stats import spearmanr

    return 0.0 if _is_constant(left, right) else float(spearmanr(left, right).statistic)


def _is_constant(left: np.ndarray, right: np.ndarray) -> bool:
    return bool(np.ptp(left) == 0 or np.ptp(right) == 0)


SIMILARITY = pair_evaluation(
    SIMILARITY_FILES,
    figures=(
        Figure.count("pairs"),
        Figure("spearman", "Spearman"),
        Figure("pearson", "Pearson"),
    ),
    read=scored_pairs,
    measure=similarity_figures,
    guards=True,
)

CLASSIFICATION_FILES = "evaluation.classification"
CLASSIFICATION_FIGURES = (
    Figure("average_precision", "Average precision"),
    Figure("f1", "F1"),
    Figure("f1_threshold", "F1 threshold", better=None),
    Figure("accuracy", "Accuracy"),
    Figure("accuracy_threshold", "Accuracy threshold", better=None),
)


def labelled_pairs(session: SparkSession, file: str, kind: PairFiles) -> DataFrame:
    """Read pairs with ``score`` 0 or 1.

    Raises:
        InputError: See :func:`read_pairs`; or a label is neither 0 nor 1, or all are alike.
    """
    pairs = read_pairs(session, file, kind)
    labels = sorted(row["score"] for row in pairs.select("score").distinct().limit(20).collect())
    strange = [label for label in labels if label not in (0.0, 1.0)]
    if strange:
        raise InputError(
            kind.columns_key,
            f"`{kind.columns[2]}` of {file} holds {strange[0]:g}",
            "Use only the labels 0 and 1",
        )
    if len(labels) == 1:
        raise InputError(
            kind.columns_key,
            f"every `{kind.columns[2]}` of {file} is {labels[0]:g}",
            "Add pairs with the other label",
        )
    return pairs


def classification_figures(cosines: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return how well a threshold on the cosines gives the labels (0 and 1, both present).

    Figures are ``pairs`` (a count), ``average_precision``, ``f1`` and ``accuracy`` (times 100, the
    latter two at their best thresholds), ``f1_threshold`` and ``accuracy_threshold`` (cosines). A
    NaN among the cosines has no order, and makes all but the count NaN.
    """
    from sklearn.metrics import average_precision_score

    if not np.isfinite(cosines).all():
        nothing = dict.fromkeys((figure.name for figure in CLASSIFICATION_FIGURES), math.nan)
        return {"pairs": len(cosines), **nothing}
    # Cosines of equal pairs may differ in their last bits, and must still be ties.
    rounded = np.round(cosines, 6)
    f1, f1_threshold = best_f1(rounded, labels)
    accuracy, accuracy_threshold = best_accuracy(rounded, labels)
    return {
        "pairs": len(cosines),
        "average_precision": 100 * float(average_precision_score(labels, rounded)),
        "f1": 100 * f1,
        "f1_threshold": f1_threshold,
        "accuracy": 100 * accuracy,
        "accuracy_threshold": accuracy_threshold,
    }


def best_f1(scores: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Return the highest F1 of any threshold on the scores, and its threshold.

    Labels are 0 or 1, at least one of them 1. The highest of equally good thresholds counts; it
    lies half way to the next score below.
    """
    found, extracted, distinct = _cumulated(scores, labels)
    return _best(2 * found / (extracted + found[-1]), distinct)


def best_accuracy(scores: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Return the highest accuracy of any threshold on the scores, and its threshold.

    As :func:`best_f1`. If no threshold beats "all pairs are unlike", it lies above the highest
    score.
    """
    found, extracted, distinct = _cumulated(scores, labels)
    negatives = len(labels) - found[-1]
    accuracy = (found + negatives - (extracted - found)) / len(labels)
    if negatives / len(labels) >= accuracy.max():
        return float(negatives / len(labels)), float(np.nextafter(distinct[0], np.inf))
    return _best(accuracy, distinct)


def _cumulated(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return positives and pairs down to each distinct score, and the scores, the highest first."""
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    last_of_score = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    found = np.cumsum(labels[order])[last_of_score]
    return found, last_of_score + 1, ordered[last_of_score]


def _best(values: np.ndarray, distinct: np.ndarray) -> tuple[float, float]:
    place = int(np.argmax(values))
    following = distinct[min(place + 1, len(distinct) - 1)]
    return float(values[place]), float((distinct[place] + following) / 2)


CLASSIFICATION = pair_evaluation(
    CLASSIFICATION_FILES,
    figures=(Figure.count("pairs"), *CLASSIFICATION_FIGURES),
    read=labelled_pairs,
    measure=classification_figures,
    check=partial(check_installed, CLASSIFICATION_FILES, "sklearn"),
)
