"""Every format as a Spark DataFrame of raw rows of one shape.

The columns: `level` (:data:`~pipelines.corpus.funnel.ROWS`, or another level of the funnel for
rows that only count), `text_0` and, for pairs of columns, `text_1`; `score` (as it was read),
`group` and `unit` (what is held out as a whole; null where the group or the text itself is),
`reason` (null unless the row is dropped).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from pipelines.corpus import docstrings
from pipelines.corpus.funnel import ROWS
from pipelines.corpus.inputs import (
    check_files,
    csv_header,
    find_files,
    is_tab_separated,
)
from pipelines.errors import InputError
from pipelines.frames import read_path
from pipelines.settings import CorpusSettings

logger = logging.getLogger(__name__)

Reader = Callable[[SparkSession, CorpusSettings], DataFrame]

WRONG_FIELDS = "not as many fields as the header"
_BROKEN = "_broken_record"
_FILES_PER_TASK = 250


def read_rows(session: SparkSession, settings: CorpusSettings) -> DataFrame:
    """The raw rows of `corpus.inputs`; nothing but first lines and footers is read yet.

    Raises:
        InputError: An input or a column is not there, or a file is not what it is said to be.
    """
    if settings.score_column is not None and settings.pairs != "columns":
        raise InputError(
            "corpus.score_column", f"`{settings.pairs}` makes pairs without scores", "leave it out"
        )
    return READERS[settings.format](session, settings)


def text_columns(settings: CorpusSettings) -> list[str]:
    """The raw columns that hold texts: one, or two for pairs of columns."""
    return ["text_0", "text_1"] if settings.pairs == "columns" else ["text_0"]


def parquet_texts(
    session: SparkSession, inputs: Sequence[str], columns: Sequence[str]
) -> DataFrame:
    """The texts of the `exclude` files: one column `text`, nulls left out.

    Raises:
        InputError: A file is not Parquet, or it has none of the columns.
    """
    files = find_files(inputs, "parquet", "corpus.exclude")
    check_files(files, "parquet", "corpus.exclude")
    texts = []
    for file in files:
        names = _parquet_schema(file, "corpus.exclude").names
        known = [name for name in columns if name in names]
        if not known:
            raise _no_column("corpus.exclude_columns", " and ".join(columns), file, names)
        frame = session.read.parquet(read_path(file))
        texts += [frame.select(_text(name).alias("text")) for name in known]
    return _union(texts).where("text is not null")


def _read_docstrings(session: SparkSession, settings: CorpusSettings) -> DataFrame:
    if settings.pairs not in ("summary", "single"):
        raise InputError(
            "corpus.pairs", f"docstrings cannot give `{settings.pairs}`", "summary or single"
        )
    if settings.group_column:
        raise InputError("corpus.group_column", "docstrings have no columns", "leave it out")
    roots = _source_roots(settings.inputs) or docstrings.installed_roots()
    files = docstrings.source_files(roots)
    if not files:
        raise InputError("corpus.inputs", "there is no Python file in it", "name source folders")
    logger.info("reading the docstrings of %d source files", len(files))
    tasks = max(1, len(files) // _FILES_PER_TASK)
    listed = session.createDataFrame(
        [(file.root, file.path) for file in files], "root string, path string"
    )
    found = listed.repartition(tasks, "path").mapInArrow(
        docstrings.docstring_batches,
        "level string, document string, unit string, text string, reason string",
    )
    return found.select(
        "level",
        F.col("text").alias("text_0"),
        _nothing("score"),
        _nothing("group"),
        "unit",
        "reason",
    )


def _source_roots(inputs: Sequence[str]) -> list[Path]:
    """The folders that are given; those that packages lie in, not the packages themselves."""
    roots = []
    for given in inputs:
        path = Path(given).expanduser()
        if not path.is_dir():
            raise InputError(
                "corpus.inputs", f"there is no folder `{given}`", "name folders of Python packages"
            )
        roots.append(path.resolve())
    return roots


def _read_text(session: SparkSession, settings: CorpusSettings) -> DataFrame:
    """One text a file for summaries, whose paragraphs count, and one text a line otherwise."""
    if settings.pairs in ("columns", "group"):
        raise InputError(
            "corpus.pairs",
            f"text files cannot give `{settings.pairs}`",
            "summary or single, or another corpus.format",
        )
    if settings.group_column:
        raise InputError("corpus.group_column", "text files have no columns", "leave it out")
    files = _checked_files(settings)
    frame = session.read.text(
        [read_path(file) for file in files], wholetext=settings.pairs == "summary"
    )
    return _shaped(frame, settings, {"text_0": F.col("value")})


def _read_jsonl(session: SparkSession, settings: CorpusSettings) -> DataFrame:
    """JSON objects, one a line; the first pass over all of them finds columns and broken lines."""
    files = _checked_files(settings)
    for file in files:
        _check_first_object(file)
    frame = session.read.json(
        [read_path(file) for file in files],
        mode="PERMISSIVE",
        columnNameOfCorruptRecord=_BROKEN,
    )
    if _BROKEN in frame.columns:
        raise _broken_line(frame)
    types = {field.name: field.dataType for field in frame.schema.fields}
    for key, name in _wanted(settings):
        if name not in types:
            raise _no_column(key, name, files[0], list(types))
        _check_scalar(key, name, types[name])
    return _columns_of(frame, settings)


def _read_csv(session: SparkSession, settings: CorpusSettings) -> DataFrame:
    """Text with a header line. Tab separated files are read without quoting, as they are written.

    Files are read together only where their headers are equal: Spark would otherwise take the
    header of one for all.
    """
    alike: dict[tuple[bool, tuple[str, ...]], list[Path]] = {}
    for file in _checked_files(settings):
        header = csv_header(file)
        for key, name in _wanted(settings):
            if name not in header:
                raise _no_column(key, name, file, header)
        alike.setdefault((is_tab_separated(file), header), []).append(file)
    return _union(
        _columns_of(_csv_frame(session, files, header, tabs, settings), settings)
        for (tabs, header), files in alike.items()
    )


def _csv_frame(
    session: SparkSession,
    files: Sequence[Path],
    header: Sequence[str],
    tabs: bool,
    settings: CorpusSettings,
) -> DataFrame:
    # Column i is called c<i>: a header may repeat a name that nobody asks for.
    schema = ", ".join([*(f"c{index} string" for index in range(len(header))), f"{_BROKEN} string"])
    frame = session.read.csv(
        [read_path(file) for file in files],
        schema=schema,
        header=True,
        sep="\t" if tabs else ",",
        quote="" if tabs else '"',
        escape='"',
        # A quoted field may hold line ends; then a file cannot be split between tasks.
        multiLine=not tabs,
        mode="PERMISSIVE",
        columnNameOfCorruptRecord=_BROKEN,
        maxCharsPerColumn=-1,
    )
    places = {name: index for index, name in reversed(list(enumerate(header)))}
    wrong = F.when(F.col(_BROKEN).isNotNull(), F.lit(WRONG_FIELDS)).alias(_BROKEN)
    return frame.select(*(F.col(f"c{index}").alias(name) for name, index in places.items()), wrong)


def _read_parquet(session: SparkSession, settings: CorpusSettings) -> DataFrame:
    """Parquet files, read together only where the types of the columns that count are equal."""
    alike: dict[tuple[str, ...], list[Path]] = {}
    for file in _checked_files(settings):
        schema = _parquet_schema(file, "corpus.inputs")
        types = []
        for key, name in _wanted(settings):
            if name not in schema.names:
                raise _no_column(key, name, file, schema.names)
            kind = schema.field(name).type
            if pa.types.is_nested(kind):
                raise _not_scalar(key, name, str(kind))
            types.append(str(kind))
        alike.setdefault(tuple(types), []).append(file)
    return _union(
        _columns_of(session.read.parquet(*map(read_path, files)), settings)
        for files in alike.values()
    )


READERS: Mapping[str, Reader] = {
    "docstrings": _read_docstrings,
    "text": _read_text,
    "jsonl": _read_jsonl,
    "csv": _read_csv,
    "parquet": _read_parquet,
}


def _checked_files(settings: CorpusSettings) -> list[Path]:
    files = find_files(settings.inputs, settings.format)
    check_files(files, settings.format)
    return files


def _wanted(settings: CorpusSettings) -> list[tuple[str, str]]:
    """The settings that name a column, and the columns they name."""
    wanted = (
        [("corpus.pair_columns", name) for name in settings.pair_columns]
        if settings.pairs == "columns"
        else [("corpus.text_column", settings.text_column)]
    )
    if settings.group_column is not None:
        wanted.append(("corpus.group_column", settings.group_column))
    if settings.score_column is not None:
        wanted.append(("corpus.score_column", settings.score_column))
    return wanted


def _columns_of(frame: DataFrame, settings: CorpusSettings) -> DataFrame:
    names = settings.pair_columns if settings.pairs == "columns" else (settings.text_column,)
    texts = {f"text_{index}": _column(name) for index, name in enumerate(names)}
    return _shaped(frame, settings, texts)


def _shaped(frame: DataFrame, settings: CorpusSettings, texts: Mapping[str, Column]) -> DataFrame:
    reason = F.col(_BROKEN) if _BROKEN in frame.columns else F.lit(None)
    return frame.select(
        F.lit(ROWS).alias("level"),
        *(_valid(text).alias(name) for name, text in texts.items()),
        _column(settings.score_column).cast("string").alias("score")
        if settings.score_column
        else _nothing("score"),
        _column(settings.group_column).cast("string").alias("group")
        if settings.group_column
        else _nothing("group"),
        _nothing("unit"),
        reason.cast("string").alias("reason"),
    )


def _column(name: str) -> Column:
    # Quoted, because a dot in a name would mean a field of a struct.
    return F.col("`" + name.replace("`", "``") + "`")


def _text(name: str) -> Column:
    return _valid(_column(name))


def _valid(text: Column) -> Column:
    """As text, and with U+FFFD for what is no UTF-8: Spark passes such bytes on as they are."""
    return F.decode(text.cast("string").cast("binary"), "UTF-8")


def _nothing(name: str) -> Column:
    return F.lit(None).cast("string").alias(name)


def _union(frames: Iterable[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)


def _parquet_schema(file: Path, key: str) -> pa.Schema:
    try:
        return pq.read_schema(file)
    except (pa.ArrowInvalid, OSError) as error:
        summary = str(error).splitlines()[0]
        raise InputError(key, f"{file} is not readable Parquet ({summary})", "mend it") from None


def _check_first_object(file: Path) -> None:
    """Finds a file that is no JSON at all before Spark reads the whole input."""
    if file.suffix.lower() in (".gz", ".bz2"):
        return
    with file.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                fits = isinstance(json.loads(line), dict)
            except ValueError:
                fits = False
            if not fits:
                raise InputError(
                    "corpus.inputs",
                    f"line {number} of {file} is no JSON object",
                    "one object a line",
                )
            return


def _broken_line(frame: DataFrame) -> InputError:
    # Spark wants a further column beside the broken record.
    broken = frame.withColumn("_file", F.input_file_name()).where(F.col(_BROKEN).isNotNull())
    first = broken.select("*").orderBy("_file", _BROKEN).limit(1).collect()
    where, line = (first[0]["_file"], first[0][_BROKEN]) if first else ("an input", "")
    excerpt = " ".join(line.split())[:60]
    return InputError(
        "corpus.inputs",
        f"{where} has a line that is no JSON object (`{excerpt}`)",
        "mend or remove that line",
    )


def _check_scalar(key: str, name: str, kind: DataType) -> None:
    if isinstance(kind, (ArrayType, MapType, StructType)):
        raise _not_scalar(key, name, kind.simpleString())


def _not_scalar(key: str, name: str, kind: str) -> InputError:
    return InputError(key, f"column `{name}` holds {kind}", "name a column of plain values")


def _no_column(key: str, name: str, file: Path, names: Sequence[str]) -> InputError:
    if not names:
        return InputError("corpus.inputs", f"{file} is empty", "name files that hold text")
    there = ", ".join(names)
    return InputError(key, f"{file} has no column `{name}`", f"it has {there}")
