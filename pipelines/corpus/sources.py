"""Every format as a Spark DataFrame of raw rows of one shape; runs on the driver.

Files of text are read by Python on the executors, a range of a file or several files a task
(:mod:`pipelines.corpus.splits`); Parquet and tables by Spark (:mod:`pipelines.corpus.tables`).
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.corpus import docstrings, tables
from pipelines.corpus.documents import Limits
from pipelines.corpus.inputs import DOCUMENT_FORMATS, INPUTS, SUFFIXES, find_files
from pipelines.corpus.planning import pack, split_file
from pipelines.corpus.records import Columns, parse_object
from pipelines.corpus.rows import ROW_DDL
from pipelines.corpus.splits import HEAD_BYTES, SPLIT_DDL, Probe, Wanted, probe, read_splits
from pipelines.corpus.streams import UnreadableError, last_line_end, plain_suffix
from pipelines.errors import InputError
from pipelines.settings import CorpusSettings

logger = logging.getLogger(__name__)

_NO_DOCUMENT_PAIRS = ("columns", "triplets", "group")
_DOCSTRING_PAIRS = ("summary", "adjacent", "single")

_COLUMN_FORMATS = ("parquet", "csv", "jsonl")
_SOURCES_PER_TASK = 250
_DELTA_LOG = re.compile(r"(\d{20})\.(?:json|checkpoint\..*)")


def read_rows(session: SparkSession, settings: CorpusSettings) -> DataFrame:
    """The raw rows of `corpus.inputs`; see :data:`~pipelines.corpus.rows.ROW_SCHEMA`.

    Only first bytes and footers are read yet. What cannot be read later is a row with its reason
    in `quarantined`.

    Raises:
        InputError: An input or a column is not there, no file can be read, or the settings do not
            fit the format.
    """
    _check_settings(settings)
    return _READERS[settings.format](session, settings)


def _check_settings(settings: CorpusSettings) -> None:
    if settings.score_column is not None and settings.pairs != "columns":
        raise InputError(
            "corpus.score_column", f"`{settings.pairs}` makes pairs without scores", "leave it out"
        )
    if settings.format == "docstrings" and settings.pairs not in _DOCSTRING_PAIRS:
        allowed = " or ".join(_DOCSTRING_PAIRS)
        raise InputError("corpus.pairs", f"docstrings cannot give `{settings.pairs}`", allowed)
    if settings.format in DOCUMENT_FORMATS and settings.pairs in _NO_DOCUMENT_PAIRS:
        raise InputError(
            "corpus.pairs",
            f"{settings.format} files cannot give `{settings.pairs}`",
            "summary, adjacent, title or single, or another corpus.format",
        )
    if settings.format == "text" and settings.pairs == "title":
        raise InputError("corpus.pairs", "text files have no titles", "summary, adjacent or single")
    if settings.format in (*DOCUMENT_FORMATS, "docstrings") and settings.group_column:
        raise InputError(
            "corpus.group_column", f"{settings.format} files have no columns", "leave it out"
        )


def _read_files(session: SparkSession, settings: CorpusSettings) -> DataFrame:
    files = find_files(settings.inputs, settings.format)
    limits = Limits(record=settings.max_record_megabytes << 20)
    if settings.format in DOCUMENT_FORMATS:
        wanted, names = Wanted(settings.format, Columns(("text",)), limits), []
    else:
        names = list(tables.named_columns(settings))
        wanted = Wanted(settings.format, tables.columns_of(settings), limits)
    _check_some_readable(files, wanted, names)
    return _read(session, files, wanted)


def _read(session: SparkSession, files: Sequence[Path], wanted: Wanted) -> DataFrame:
    splits = [split for file in files for split in split_file(file, wanted.format)]
    tasks = pack(splits, session.sparkContext.defaultParallelism)
    logger.info("reading %d files in %d tasks", len(files), len(tasks))
    planned = [[(split.file, split.start, split.stop) for split in task] for task in tasks]
    # Slices of a list of tasks, because a DataFrame has no say in what its partitions hold.
    listed = session.sparkContext.parallelize(planned, len(planned)).flatMap(list)
    return session.createDataFrame(listed, SPLIT_DDL).mapInArrow(
        partial(read_splits, wanted=wanted), ROW_DDL
    )


def _check_some_readable(
    files: Iterable[Path], wanted: Wanted, names: tables.Names, key: str = INPUTS
) -> None:
    """Looks at first bytes until one file can be read.

    Raises:
        InputError: None can.
    """
    first: tuple[Path, str] | None = None
    known: list[tuple[Path, Sequence[str]]] = []
    for file in files:
        try:
            columns = first_columns(probe(file, wanted))
        except UnreadableError as error:
            first = first or (file, error.reason)
            continue
        missing = [name for _, name in names if columns is not None and name not in columns]
        if not missing:
            return
        first = first or (file, f"no column `{missing[0]}`")
        known.append((file, columns or ()))
    if first is not None:
        raise tables.nothing_readable(first, known, names, key)


def first_columns(probed: Probe) -> Sequence[str] | None:
    """The columns that the first bytes of a file show; None where they cannot tell.

    Raises:
        UnreadableError: There should be some, and there are none.
    """
    if probed.form in ("csv", "tab"):
        if not probed.header:
            raise UnreadableError("no header line")
        return probed.header
    if probed.form != "jsonl":
        return None
    # Of a longer file the last line is cut off, and perhaps the only one.
    is_whole = len(probed.head) < HEAD_BYTES
    seen = probed.head if is_whole else probed.head[: max(last_line_end(probed.head), 0)]
    lines = [line for line in seen.splitlines() if line.strip()]
    found: dict[str, None] = {}
    for line in lines:
        try:
            found |= dict.fromkeys(parse_object(line.decode(probed.encoding.codec, "replace")))
        except ValueError:
            continue
    if lines and not found:
        raise UnreadableError("no JSON object in its first lines")
    return tuple(found) or None


def _read_docstrings(session: SparkSession, settings: CorpusSettings) -> DataFrame:
    files = docstrings.source_files(_source_roots(settings.inputs))
    if not files:
        raise InputError(INPUTS, "there is no Python file in it", "name source folders")
    logger.info("reading the docstrings of %d source files", len(files))
    tasks = max(1, len(files) // _SOURCES_PER_TASK)
    listed = session.createDataFrame(
        [(file.root, file.path) for file in files], "root string, path string"
    )
    found = listed.repartition(tasks, "path").mapInArrow(
        docstrings.docstring_batches,
        "level string, document string, unit string, text string, reason string",
    )
    own = {name: F.col(name) for name in ("level", "document", "unit", "reason")}
    file = F.substring_index("document", "::", 1)
    return tables.raw_rows(found, {**own, "file": file, "text_0": F.col("text")})


def _source_roots(inputs: Sequence[str]) -> list[Path]:
    """The folders that are given; those that packages lie in, not the packages themselves."""
    roots = []
    for given in inputs:
        path = Path(given).expanduser()
        if not path.is_dir():
            raise InputError(
                INPUTS, f"there is no folder `{given}`", "name folders of Python packages"
            )
        roots.append(path.resolve())
    return roots or docstrings.installed_roots()


def _read_parquet(session: SparkSession, settings: CorpusSettings) -> DataFrame:
    return tables.read_parquet(session, settings, tables.named_columns(settings))


def _read_tables(session: SparkSession, settings: CorpusSettings) -> DataFrame:
    names = tables.named_columns(settings)
    return tables.read_tables(session, settings, names, tables.LOADERS[settings.format])


_READERS: Mapping[str, Callable[[SparkSession, CorpusSettings], DataFrame]] = {
    "docstrings": _read_docstrings,
    **dict.fromkeys((*DOCUMENT_FORMATS, "jsonl", "csv"), _read_files),
    "parquet": _read_parquet,
    **dict.fromkeys(tables.LOADERS, _read_tables),
}


def texts_of(
    session: SparkSession, inputs: Sequence[str], columns: Sequence[str], key: str
) -> DataFrame:
    """The texts of Parquet, CSV and JSON lines files: one column `text`, nulls left out.

    Args:
        session: Reads the files that are not Parquet once, to be sure that all of them can be.
        inputs: Files, folders or globs.
        columns: Those that a file has are taken; it has one at least.
        key: The setting of the inputs; that of the columns is `<key>_columns`.

    Raises:
        InputError: Something of it cannot be read.
    """
    texts = [
        frame
        for file in find_files(inputs, "columns", key)
        for frame in _texts_of_file(session, file, columns, key)
    ]
    return reduce(DataFrame.unionByName, texts).where("text is not null")


def _texts_of_file(
    session: SparkSession, file: Path, columns: Sequence[str], key: str
) -> Iterator[DataFrame]:
    kind = next((kind for kind in _COLUMN_FORMATS if plain_suffix(file) in SUFFIXES[kind]), None)
    if kind is None:
        endings = ", ".join(SUFFIXES["columns"])
        raise InputError(key, f"{file} says no format", f"its name must end in {endings}")
    if kind == "parquet":
        (footer,) = tables.read_footers([file])
        problem, there = footer.problem, tuple(footer.types)
    else:
        problem, there = _first_columns_of(file, Wanted(kind, Columns(())))
    if problem is not None:
        raise InputError(key, f"{file} cannot be read ({problem})", "mend it")
    wanted = [name for name in columns if name in there]
    if not wanted:
        missing = " or ".join(f"`{name}`" for name in columns)
        remedy = f"it has {', '.join(there)}" if there else "name files that hold text"
        raise InputError(f"{key}_columns", f"{file} has no column {missing}", remedy)
    for name in wanted:
        if kind == "parquet":
            frame = tables.parquet_columns(session, [file], [name])
            yield frame.select(tables.text_of(name).alias("text"))
        else:
            rows = _read(session, [file], Wanted(kind, Columns((name,))))
            _check_all_read(rows, key)
            yield rows.select(F.col("text_0").alias("text"))


def _first_columns_of(file: Path, wanted: Wanted) -> tuple[str | None, tuple[str, ...]]:
    try:
        return None, tuple(first_columns(probe(file, wanted)) or ())
    except UnreadableError as error:
        return error.reason, ()


def _check_all_read(rows: DataFrame, key: str) -> None:
    first = rows.where("quarantined is not null").orderBy("offset").first()
    if first is not None:
        place = f"{first['file']} at byte {first['offset']}"
        raise InputError(key, f"{place} cannot be read ({first['quarantined']})", "mend it")


def input_fingerprint(settings: CorpusSettings) -> dict[str, Any] | None:
    """What changes when the inputs do, as JSON: sizes and times of files, versions of tables.

    Returns:
        None where no version can be known, of tables that have a name only.

    Raises:
        InputError: An input is not there.
    """
    told = _FINGERPRINTS.get(settings.format, _files_fingerprint)(settings)
    if told is None or not settings.exclude:
        return told
    excluded = find_files(settings.exclude, "columns", "corpus.exclude")
    return {**told, "exclude": _stamps(excluded)}


def _files_fingerprint(settings: CorpusSettings) -> dict[str, Any] | None:
    return {"files": _stamps(find_files(settings.inputs, settings.format))}


def _stamps(files: Iterable[Path]) -> list[list[str | int]]:
    """Path, size and time of the last change; only the path of a file that went away."""
    return [_stamp(file) for file in files]


def _stamp(file: Path) -> list[str | int]:
    try:
        status = file.stat()
    except OSError:
        return [str(file)]
    return [str(file), status.st_size, status.st_mtime_ns]


def _docstrings_fingerprint(settings: CorpusSettings) -> dict[str, Any] | None:
    # Some ten thousand files, of which the names alone would be megabytes.
    files = docstrings.source_files(_source_roots(settings.inputs))
    digest = hashlib.sha256()
    for file in files:
        digest.update(repr(_stamp(Path(file.root, file.path))).encode())
    return {"files": len(files), "sha256": digest.hexdigest()}


def _delta_fingerprint(settings: CorpusSettings) -> dict[str, Any] | None:
    """The newest version in the log of each table; its names are in the protocol of Delta Lake."""
    versions = []
    for given in settings.inputs:
        folder = tables.delta_folder(given)
        log = folder / "_delta_log" if folder is not None else None
        if log is None or not log.is_dir():
            return None
        found = [match for path in log.iterdir() if (match := _DELTA_LOG.fullmatch(path.name))]
        if not found:
            return None
        versions.append([str(folder), max(int(match[1]) for match in found)])
    return {"tables": versions}


def _no_fingerprint(settings: CorpusSettings) -> dict[str, Any] | None:
    return None


_FINGERPRINTS: Mapping[str, Callable[[CorpusSettings], dict[str, Any] | None]] = {
    "docstrings": _docstrings_fingerprint,
    "delta": _delta_fingerprint,
    "iceberg": _no_fingerprint,
    "table": _no_fingerprint,
}
