"""Retrieval sets in the layout of BEIR: ``corpus.jsonl``, ``queries.jsonl``, ``qrels/*.tsv``.

Source: Thakur et al., "BEIR: a heterogeneous benchmark for zero-shot evaluation of information
retrieval models", NeurIPS 2021, and the loader of its package.
"""

from __future__ import annotations

import gzip
import io
import json
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from pipelines.corpus.readers.streams import Links
from pipelines.errors import InputError
from pipelines.evaluation.base import Evaluation
from pipelines.evaluation.intervals import GROUP
from pipelines.evaluation.pairs import is_pair_file
from pipelines.evaluation.retrieval import FIGURES, arranged, measure
from pipelines.evaluation.rows import Tables
from pipelines.files.locations import Location, as_local, is_compressed, listed, location
from pipelines.settings import Config
from pipelines.settings.evaluation import EvaluationSettings, Missing
from pipelines.settings.spark import DEFAULT_STORES, StorageSettings
from pipelines.spark.frames import frame_from_json, read_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

SETS = "evaluation.retrieval_sets"
SPLITS = ("test", "dev", "train")
"""The first of these splits in a set is the one to measure on."""

NOT_FOUND = "not_found"
_METADATA = "metadata"
_DEFAULT = EvaluationSettings()
_JUDGED = ("query-id", "corpus-id", "score")
_COMPRESSED = ("", ".gz")
# Spark puts a line that it cannot parse into this column, and leaves the others null.
_BROKEN = "_broken"
_TAB = "\t"


def set_name(given: str) -> str:
    """Return the name of a set: its folder, with the split if the settings name one."""
    path = PurePath(given)
    if path.suffix == ".tsv":
        return f"{path.parent.parent.name}-{path.stem}"
    return path.name


def read_retrieval_set(
    session: SparkSession,
    given: str,
    stores: StorageSettings = DEFAULT_STORES,
    settings: EvaluationSettings = _DEFAULT,
) -> Tables:
    """Read and check a set.

    A document's text is its title, a space and its text. Its id becomes a hash of 64 bits, so that
    the driver need not know them all; equal texts have equal ids. ``given`` is a folder, or one of
    several files in its ``qrels``. Of the settings it takes ``query_group``, ``missing_documents``,
    ``missing_queries`` and ``follow_links``.

    Returns:
        `asked`: ``query_id``, ``text`` (null of a missing query), ``document_id`` and ``gain``
        (greater than 0) of a relevant document, and ``group`` of the query; queries without a
        relevant document are left out. `documents`: ``document_id`` and ``text``.

    Raises:
        InputError: A file or column is missing, a line is broken, an id occurs twice, a judgement
            names a missing id, or nothing is relevant.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    qrels, corpus_file, queries_file = files_of_set(
        given, stores, follow_links=settings.follow_links
    )
    corpus = _read_lines(session, corpus_file, "title")
    queries = _with_groups(
        _read_lines(session, queries_file, settings.query_group, _METADATA), settings.query_group
    )
    title = F.coalesce("title", F.lit(""))
    documents = corpus.select("id", F.trim(F.concat(title, F.lit(" "), "text")).alias("text"))
    judged = _read_judgements(session, qrels)
    _check_named(judged, queries, "query", queries_file, qrels, settings.missing_queries)
    _check_named(judged, documents, "document", corpus_file, qrels, settings.missing_documents)
    relevant = judged.where("gain > 0")
    asked = relevant.join(queries, queries["id"] == relevant["query"], "left").select(
        F.xxhash64("query").alias("query_id"),
        "text",
        F.xxhash64("document").alias("document_id"),
        "gain",
        F.coalesce(GROUP, F.xxhash64("query")).alias(GROUP),
    )
    if settings.missing_queries == NOT_FOUND and asked.where("text is not null").isEmpty():
        remedy = f"Put the queries that {qrels} names into it"
        raise InputError(SETS, f"{queries_file} has no judged query", remedy)
    hashed = documents.select(F.xxhash64("id").alias("document_id"), "text")
    return {"asked": asked, "documents": hashed}


def _with_groups(queries: DataFrame, field: str) -> DataFrame:
    """Return queries with the hash of their group: a field, else one of ``metadata``, else null."""
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    in_metadata = F.from_json(_METADATA, "map<string,string>")[field]
    named = F.trim(F.coalesce(queries[_quoted(field)], in_metadata))
    group = F.when(named != "", F.xxhash64(F.lit(GROUP), named))
    return queries.select("id", "text", group.alias(GROUP))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def files_of_set(
    given: str, stores: StorageSettings = DEFAULT_STORES, *, follow_links: bool = False
) -> tuple[Location, Location, Location]:
    """Return judgements, documents and queries of a set, without reading them.

    Raises:
        InputError: One is missing, or is a link out of the folder, and following is off.
    """
    qrels = _qrels_file(given, stores)
    folder = qrels.parent.parent
    files = (qrels, _file(folder, "corpus.jsonl"), _file(folder, "queries.jsonl"))
    links, named = Links(folder, SETS, follow_links), location(given, stores).expanduser()
    for file in files:
        if file != named.absolute():
            links.check(file)
    return files


def _qrels_file(given: str, stores: StorageSettings) -> Location:
    path = location(given, stores).expanduser().absolute()
    if path.suffix == ".tsv" and path.is_file():
        return path
    if not path.is_dir():
        raise InputError(SETS, f"there is no {path}", "Name a folder that holds corpus.jsonl")
    found = listed(path / "qrels", "*.tsv")
    for split in SPLITS:
        for file in found:
            if file.stem == split:
                return file
    if len(found) == 1:
        return found[0]
    names = ", ".join(file.name for file in found) or "no *.tsv"
    remedy = "Name the file of judgements itself, or call it test.tsv"
    raise InputError(SETS, f"{path / 'qrels'} holds {names}", remedy)


def _file(folder: Location, name: str) -> Location:
    for ending in _COMPRESSED:
        if (folder / f"{name}{ending}").is_file():
            return folder / f"{name}{ending}"
    raise InputError(SETS, f"there is no {folder / name}", "Put it beside the folder qrels")


def _read_lines(session: SparkSession, file: Location, *fields: str) -> DataFrame:
    """Read the lines of a file: ``id``, ``text`` and further fields, all strings."""
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    schema = _strings(["_id", "text", *fields, _BROKEN])
    local = as_local(file)
    if local is not None:
        reader = session.read.schema(schema).option("encoding", "UTF-8")
        lines = reader.json(read_path(local), columnNameOfCorruptRecord=_BROKEN)
    else:
        lines = frame_from_json(session, [file], _lines_of, schema, _BROKEN)
    rows, broken, nameless, textless, distinct = lines.agg(
        F.count("*"),
        F.count(_BROKEN),
        F.count(F.when(F.col("_id").isNull(), 1)),
        F.count(F.when(F.col("text").isNull(), 1)),
        F.countDistinct(F.xxhash64("_id")),
    ).collect()[0]
    faults = {
        f"{broken} lines that are no JSON objects": broken,
        "no lines": rows == 0,
        f"{nameless} lines without `_id`": nameless,
        f"{textless} lines without `text`": textless,
        f"{rows - distinct} lines whose `_id` is there already": rows - distinct,
    }
    for fault, has_fault in faults.items():
        if has_fault:
            raise InputError(SETS, f"{file} has {fault}", "Correct the file")
    further = (F.col(_quoted(field)) for field in fields)
    return lines.select(F.col("_id").alias("id"), "text", *further)


def _strings(names: Sequence[str]) -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([StructField(name, StringType()) for name in names])


def _lines_of(files: Iterable[Location]) -> Iterator[str]:
    """Read the non-blank lines of text files of a store. Runs on an executor."""
    for file in files:
        with file.open("rb") as packed:
            plain: Any = gzip.GzipFile(fileobj=packed) if is_compressed(file) else packed
            with io.TextIOWrapper(plain, "utf-8", errors="replace", newline="\n") as lines:
                yield from (line.rstrip("\r\n") for line in lines if line.strip())


def _rows_of(files: Iterable[Location]) -> Iterator[str]:
    """Read the rows of tab-separated files with a header, as JSON. Runs on an executor."""
    for file in files:
        lines = _lines_of([file])
        names = next(lines).split(_TAB)
        for line in lines:
            # A short line lacks its last columns, as where Spark reads the file itself.
            values = zip(names, line.split(_TAB), strict=False)
            yield json.dumps({name: value or None for name, value in values})


def _read_rows(session: SparkSession, file: Location) -> DataFrame:
    """Read the rows of a tab-separated file with a header, all columns strings."""
    local = as_local(file)
    if local is not None:
        reader = session.read.option("encoding", "UTF-8")
        return reader.csv(read_path(local), sep=_TAB, header=True, quote="")
    header = next(_lines_of([file]), "")
    return frame_from_json(session, [file], _rows_of, _strings(header.split(_TAB)))


def _read_judgements(session: SparkSession, file: Location) -> DataFrame:
    """Read the judgements of a file: ``query``, ``document`` (strings), ``gain`` (double)."""
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    rows = _read_rows(session, file)
    for name in _JUDGED:
        if name not in rows.columns:
            columns = ", ".join(rows.columns) or "none"
            remedy = f"Add it to the first line, which names {columns}"
            raise InputError(SETS, f"{file} has no column `{name}`", remedy)
    judged = rows.select(
        F.col("`query-id`").alias("query"),
        F.col("`corpus-id`").alias("document"),
        F.expr("try_cast(score as double)").alias("gain"),
    )
    # Spark orders NaN above all numbers, so it would count as relevant. A null compares to null.
    is_finite = F.coalesce(F.abs("gain") < F.lit(math.inf), F.lit(False))
    is_broken = F.col("query").isNull() | F.col("document").isNull() | ~is_finite
    found = judged.agg(F.count("*"), F.count_if(is_broken), F.count_if(F.col("gain") > 0))
    count, broken, relevant = found.collect()[0]
    if not count:
        raise InputError(SETS, f"{file} is empty", "Name a file with judgements")
    if broken:
        problem = f"{file} has {broken} lines without both ids and a finite score"
        raise InputError(SETS, problem, "Correct the file")
    if not relevant:
        raise InputError(SETS, f"{file} has no score above 0", "Name another file of qrels")
    return judged.groupBy("query", "document").agg(F.max("gain").alias("gain"))


def _check_named(
    judged: DataFrame,
    table: DataFrame,
    what: str,
    file: Location,
    qrels: Location,
    missing_ones: Missing,
) -> None:
    """Refuse judgements of missing ids, or tell how many count as not found."""
    missing = judged.join(table, judged[what] == table["id"], "left_anti").select(what).distinct()
    first = missing.orderBy(what).first()
    if first is None:
        return
    count = missing.count()
    if missing_ones == NOT_FOUND:
        logger.warning(
            "%s names %d %s ids that %s does not have, such as `%s`: they count as not found",
            qrels,
            count,
            what,
            file.name,
            first[what],
        )
        return
    setting = f"evaluation.missing_{'queries' if what == 'query' else 'documents'}"
    raise InputError(
        SETS,
        f"{qrels} names {count} {what} ids that {file.name} does not have, such as `{first[what]}`",
        f"Correct one of the files, or set {setting} to not_found to count them as not found",
    )


def _check(config: Config, given: str) -> None:
    files_of_set(given, config.storage, follow_links=config.evaluation.follow_links)


# As in BEIR a query does not find a document of its own id.
EVALUATION = Evaluation(
    name="retrieval_sets",
    part="retrieval sets",
    figures=FIGURES,
    sets=lambda config: [
        *config.evaluation.retrieval_sets,
        *(guard for guard in config.evaluation.guards if not is_pair_file(guard)),
    ],
    short_name=set_name,
    check=_check,
    read=lambda session, config, given: read_retrieval_set(
        session, given, config.storage, config.evaluation
    ),
    arrange=arranged,
    measure=partial(measure, skip_themselves=True),
    has_forms=True,
)
