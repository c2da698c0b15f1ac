"""The pairs and the documents of a job, as frames of Spark; what changes when they do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

from pipelines.arrow_columns import is_plain, is_text
from pipelines.corpus.readers.formats import Dialect
from pipelines.corpus.readers.inputs import find_files, has_columns, stamp_of
from pipelines.corpus.readers.parquet import same_for_spark
from pipelines.corpus.readers.spark_reader import damage_named
from pipelines.errors import InputError
from pipelines.files.locations import Location
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.settings import Config, EmbeddingSettings
from pipelines.spark.frames import holds_text, read_columns_of_any, read_parquet
from pipelines.spark.java import valid_text
from pipelines.spark.parquet_parts import data_files
from pipelines.vectors.inputs import input_stamps, stage_table
from pipelines.vectors.parts import read_inputs

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


INPUTS = "mining.inputs"
MORE_DOCUMENTS = "mining.documents"

IsText: TypeAlias = Mapping[str, bool | None]
"""Of columns by name: whether a column holds strings; None of one that has no plain values."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A table that is read.

    Attributes:
        key: The setting that names it.
        format: How it is read.
        inputs: Files, folders, globs or names.
        texts: Its columns of texts, by the settings that name them.
        others: Its columns of plain values, the same.
        dialect: Of CSV files.
        follow_links: Out of folders.
    """

    key: str
    format: str
    inputs: tuple[str, ...]
    texts: Mapping[str, str]
    others: Mapping[str, str]
    dialect: Dialect
    follow_links: bool

    @property
    def columns(self) -> list[str]:
        """All that are wanted."""
        return [*self.texts.values(), *self.others.values()]

    @property
    def as_embedding(self) -> EmbeddingSettings:
        """As the readers of tables take it."""
        text = next(iter(self.texts.values()))
        return EmbeddingSettings(
            inputs=self.inputs,
            format=self.format,
            text_column=text,
            csv_separator=self.dialect.separator,
            csv_escape=self.dialect.escape,
            follow_links=self.follow_links,
        )


def pairs_source(config: Config) -> Source | None:
    """The table of pairs; None where those of the prepared folder are meant."""
    settings = config.mining
    if not settings.inputs:
        return None
    others = {
        "mining.group_column": settings.group_column,
        "mining.key_column": settings.key_column,
    }
    return Source(
        key=INPUTS,
        format=settings.format,
        inputs=settings.inputs,
        texts={
            "mining.anchor_column": settings.anchor_column,
            "mining.positive_column": settings.positive_column,
        },
        others={key: name for key, name in others.items() if name is not None},
        dialect=Dialect.of(settings),
        follow_links=settings.follow_links,
    )


def documents_source(config: Config) -> Source | None:
    """The table of further documents, if there is one."""
    settings = config.mining
    if not settings.documents:
        return None
    group = settings.documents_group_column
    return Source(
        key=MORE_DOCUMENTS,
        format=settings.documents_format,
        inputs=settings.documents,
        texts={"mining.documents_column": settings.documents_column},
        others={} if group is None else {"mining.documents_group_column": group},
        dialect=Dialect.of(settings),
        follow_links=settings.follow_links,
    )


def check_sources(config: Config) -> None:
    """Looks at the inputs as far as that can be done without Spark.

    Raises:
        InputError: One is not there, or lacks a column, or the prepared pairs have rows of keys
            that were deleted.
    """
    if not config.mining.inputs:
        _check_prepared(config)
    for source in (pairs_source(config), documents_source(config)):
        if source is None or source.format != "parquet":
            continue
        files = _parquet_files(source, config)
        try:
            footers = read_inputs(files)
        except InputError as error:
            raise InputError(source.key, error.problem, error.remedy) from None
        for file in footers:
            for name in source.columns:
                problem = same_for_spark(name, file.types)
                if problem is not None:
                    where = f"{file.path} has {problem}"
                    raise InputError(source.key, where, "rename one of them")
            kinds = file.types.items()
            check_columns(
                source, {name: is_text(kind) if is_plain(kind) else None for name, kind in kinds}
            )


@contextmanager
def damage_told(session: SparkSession, config: Config) -> Iterator[None]:
    """Name the input that is damaged, where Spark cannot read one in the block.

    Raises:
        InputError: With the setting of the input.
    """
    with ExitStack() as stack:
        for source in (pairs_source(config), documents_source(config)):
            if source is not None and source.format == "parquet":
                files = _parquet_files(source, config)
                stack.enter_context(damage_named(session, source.key, files, source.columns))
        yield


def _parquet_files(source: Source, config: Config) -> list[Location]:
    return find_files(
        source.inputs, "parquet", source.key, config.storage, follow_links=source.follow_links
    )


def _check_prepared(config: Config) -> None:
    prepared = PreparedFolder.of(config)
    if not prepared.corpus.pairs.is_dir():
        problem = f"it is empty, and there is no corpus in {prepared.path}"
        raise InputError(INPUTS, problem, "run `prepare` first, or name a table of pairs")
    prepared.check_deleted()


def check_columns(source: Source, is_text: IsText) -> None:
    """Makes sure that a table has the columns that are wanted.

    Raises:
        InputError: A column is missing, or holds something else.
    """
    where = ", ".join(source.inputs)
    for key, name in {**source.texts, **source.others}.items():
        if name not in is_text:
            lacking = f"{where} has no column `{name}`"
            raise InputError(key, lacking, has_columns(is_text, "mining"))
        if key in source.texts and not is_text[name]:
            raise InputError(key, f"`{name}` of {where} holds no text", "name a column of strings")
        if is_text[name] is None:
            problem = f"`{name}` of {where} holds no plain values"
            raise InputError(key, problem, "name a column of strings or numbers")


def stamps(config: Config) -> dict[str, Any]:
    """What changes when the inputs do, by setting; None of tables that have no version.

    Raises:
        InputError: An input is not there.
    """
    found: dict[str, Any] = {}
    sources = {INPUTS: pairs_source(config), MORE_DOCUMENTS: documents_source(config)}
    for key, source in sources.items():
        if source is not None:
            try:
                told = input_stamps(source.as_embedding, config.storage)
            except InputError as error:
                remedy = error.remedy.replace("embedding.", "mining.")
                raise InputError(key, error.problem, remedy) from None
            found[key] = [list(source.inputs), told]
    if INPUTS not in found:
        _check_prepared(config)
        pairs = PreparedFolder.of(config).corpus.pairs
        found[INPUTS] = [str(pairs), [stamp_of(file) for file in data_files(pairs)]]
    found.setdefault(MORE_DOCUMENTS, None)
    return found


def read_pairs(
    session: SparkSession, config: Config, staged: Location, output: Location
) -> DataFrame:
    """The pairs: `anchor`, `positive`, `group_id` (null without a group), `group` and `key`.

    The last two are there where the input has them.

    Args:
        session: Reads them.
        config: Names them.
        staged: Folder for the rows of inputs that are no Parquet files.
        output: Of the job, where no table of the inputs may lie.

    Raises:
        InputError: A column is missing, or the pairs have scores.
    """
    source = pairs_source(config)
    if source is None:
        return _prepared_pairs(session, config)
    frame = _read_table(session, config, source, staged / "pairs", output)
    settings = config.mining
    columns = [
        _text(settings.anchor_column).alias("anchor"),
        _text(settings.positive_column).alias("positive"),
        _group_id(settings.group_column),
    ]
    for name, column in (("group", settings.group_column), ("key", settings.key_column)):
        columns += [_column(column).alias(name)] if column is not None else []
    return frame.select(*columns)


def _prepared_pairs(session: SparkSession, config: Config) -> DataFrame:
    folder = PreparedFolder.of(config).corpus.pairs
    frame = read_parquet(session, folder)
    if "source" in frame.columns:
        several = f"the pairs in {folder} are of several sources"
        raise InputError(INPUTS, several, "name a table of pairs")
    if not frame.where("score is not null").isEmpty():
        problem = f"the pairs in {folder} have scores, so that not every text is a positive"
        raise InputError(INPUTS, problem, "name a table of pairs without scores")
    return frame.select("anchor", "positive", _group_id("group"), "group")


def read_documents(
    session: SparkSession, config: Config, staged: Location, output: Location
) -> DataFrame | None:
    """Further documents: `text` and `group_id`; None where there are none.

    The arguments and the errors are those of :func:`read_pairs`.
    """
    source = documents_source(config)
    if source is None:
        return None
    frame = _read_table(session, config, source, staged / "documents", output)
    settings = config.mining
    text = _text(settings.documents_column).alias("text")
    found = frame.select(text, _group_id(settings.documents_group_column))
    return found.where(has_text("text"))


def _read_table(
    session: SparkSession, config: Config, source: Source, staged: Location, output: Location
) -> DataFrame:
    if source.format == "parquet":
        files = _parquet_files(source, config)
        wanted = list(dict.fromkeys((*source.texts.values(), *source.others.values())))
        return read_columns_of_any(session, files, wanted)
    try:
        stage_table(session, source.as_embedding, config.storage, staged, output, "mining.output")
    except InputError as error:
        if error.key == "mining.output":
            raise
        remedy = error.remedy.replace("embedding.format", _format_key(source))
        remedy = remedy.replace("embedding.", "mining.")
        raise InputError(source.key, error.problem, remedy) from None
    frame = read_parquet(session, staged)
    types = {field.name: field.dataType for field in frame.schema.fields}
    plain = {name: _is_plain(kind) for name, kind in types.items()}
    texts = {name: holds_text(kind) if plain[name] else None for name, kind in types.items()}
    check_columns(source, texts)
    return frame


def _format_key(source: Source) -> str:
    return "mining.format" if source.key == INPUTS else "mining.documents_format"


def _is_plain(kind: Any) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType

    return not isinstance(kind, ArrayType | MapType | StructType)


def _group_id(column: str | None) -> Column:
    """64 bits that stand for a group; null without one."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    if column is None:
        return F.lit(None).cast("long").alias("group_id")
    value = _column(column).cast("string")
    return F.when(value.isNotNull(), F.xxhash64(value)).alias("group_id")


def _column(name: str) -> Column:
    """A column whose name may have dots and spaces in it."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    quoted = name.replace("`", "``")
    return F.col(f"`{quoted}`")


def _text(name: str) -> Column:
    """A column of texts as strings, whether the file says so or holds bytes."""
    return valid_text(_column(name).cast("string"))


def has_groups(config: Config) -> bool:
    """Whether documents can be of an anchor's group."""
    return not config.mining.inputs or config.mining.group_column is not None


def has_text(*columns: str) -> Column:
    """Whether columns all hold more than white space; null where one is null."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    present = [F.length(F.trim(F.col(name))) > 0 for name in columns]
    return reduce(lambda one, other: one & other, present)
