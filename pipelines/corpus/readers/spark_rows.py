"""Raw rows out of what Spark reads, and the columns that the settings want. On the driver."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.corpus.funnel import ROWS
from pipelines.corpus.readers.formats import Columns
from pipelines.corpus.readers.inputs import INPUTS
from pipelines.corpus.readers.rows import ROW_TYPES
from pipelines.errors import InputError
from pipelines.files.locations import Location
from pipelines.settings import CorpusSettings
from pipelines.settings.corpus import column_of, element_of
from pipelines.spark.releases import valid_text

Names = Sequence[tuple[str, str]]
"""Settings that name a column, each with the name."""


_TITLES = "corpus.title_column"


def columns_of(settings: CorpusSettings) -> Columns:
    """The columns that the settings want of formats that have some."""
    texts: Mapping[str, tuple[str, ...]] = {
        "columns": settings.pair_columns,
        "triplets": settings.triplet_columns,
    }
    return Columns(
        texts.get(settings.pairs, (settings.text_column,)),
        settings.title_column if settings.pairs in ("title", "document") else None,
        settings.score_column,
        settings.group_column,
        settings.key_column,
        settings.score_columns,
    )


def named_columns(settings: CorpusSettings) -> Names:
    """The settings that name a wanted column, and the names."""
    keys = {"columns": "corpus.pair_columns", "triplets": "corpus.triplet_columns"}
    columns = columns_of(settings)
    texts = keys.get(settings.pairs, "corpus.text_column")
    others = (
        (_TITLES, columns.title),
        ("corpus.group_column", columns.group),
        ("corpus.score_column", columns.score),
        ("corpus.key_column", columns.key),
    )
    return [
        *((texts, name) for name in columns.texts),
        *(("corpus.score_columns", name) for name in columns.scores),
        *((key, name) for key, name in others if name is not None),
    ]


def nothing_readable(
    first: tuple[Location, str],
    known: Sequence[tuple[Location, Sequence[str]]],
    names: Names,
    key: str = INPUTS,
) -> InputError:
    """The error for inputs of which no file can be read.

    Args:
        first: The first file, and why it cannot be read.
        known: The files whose columns are known, with these.
        names: What is wanted.
        key: The setting of the inputs.
    """
    for setting, name in names:
        if known and not any(column_of(name, columns) in columns for _, columns in known):
            file, columns = known[0]
            missing = column_of(name, columns)
            return InputError(
                setting, f"{file} has no column `{missing}`", column_remedy(setting, columns)
            )
    return InputError(key, f"{first[0]} cannot be read ({first[1]})", "mend it, or name others")


def column_remedy(setting: str, columns: Iterable[str]) -> str:
    """What to do about a setting that names a column that is not among those that there are."""
    there = has_columns(columns, setting.partition(".")[0])
    return f"{there}, or null where documents have none" if setting == _TITLES else there


def has_columns(columns: Iterable[str], section: str) -> str:
    """Name the columns that there are, and the setting where a header was not cut, for a remedy.

    Args:
        columns: Their names.
        section: Of the settings that name the file.
    """
    names = list(columns)
    told = f"it has {listed(names)}"
    shown = (shown for sign, shown in _SEPARATORS.items() if len(names) == 1 and sign in names[0])
    sign = next(shown, None)
    return told if sign is None else f"{told}: set {section}.csv_separator to `{sign}`"


_SEPARATORS = {";": ";", "\t": "\\t", "|": "|"}


def listed(columns: Iterable[str]) -> str:
    """Names of columns, for a remedy; one with signs that mislead the eye stands in quotes."""
    return ", ".join(
        name if name.isprintable() and name.strip() == name and name else f"`{name}`"
        for name in columns
    )


def raw_rows(frame: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
    """Raw rows of :data:`.rows.ROW_SCHEMA`; columns that are not given are null.

    Unless given, `bytes` are those of the texts.
    """
    texts = [columns[name] for name in ("text_0", "text_1") if name in columns]
    if "negatives" in columns:
        texts.append(F.array_join(columns["negatives"], ""))
    sizes = (F.coalesce(F.octet_length(text), F.lit(0)) for text in texts)
    defaults = {"rows": F.lit(1), "level": F.lit(ROWS), "bytes": reduce(Column.__add__, sizes)}
    given = {**defaults, **columns}
    return frame.select(
        *(given.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in ROW_TYPES.items())
    )


def text_of(name: str, columns: Collection[str]) -> Column:
    """A column, or an element of a column of lists, as text, with U+FFFD for what is no UTF-8.

    The name is quoted, because a dot in it would mean a field of a struct.

    Args:
        name: Of the column or the element.
        columns: Those that there are.
    """
    element = element_of(name, columns)
    base = name if element is None else element[0]
    column = F.col("`" + base.replace("`", "``") + "`")
    found = column if element is None else F.get(column, F.lit(element[1]))
    return valid_text(found.cast("string"))


def number_in(text: str, kind: str = "double") -> str:
    """Return the SQL that reads a column of texts as numbers; null for what is none.

    `true` and `false` are 1 and 0, in any case: Parquet and JSON have booleans, and programs write
    them to CSV in their own way.

    Args:
        text: Name of the column, or of what SQL calls it.
        kind: Of the numbers.
    """
    number = f"case lower(trim({text})) when 'true' then '1' when 'false' then '0' else {text} end"
    return f"try_cast({number} as {kind})"


def rows_of(
    frame: DataFrame, columns: Columns, more: Mapping[str, Column] | None = None
) -> DataFrame:
    """Raw rows of the wanted columns, and of more columns of a raw row."""
    wanted = {f"text_{side}": name for side, name in enumerate(columns.texts[:2])}
    others = {
        "title": columns.title,
        "score": columns.score,
        "group": columns.group,
        "key": columns.key,
    }
    wanted |= {name: column for name, column in others.items() if column is not None}
    there = frame.columns
    texts = {name: text_of(column, there) for name, column in wanted.items()}
    lists = {"negatives": columns.texts[2:], "candidate_scores": columns.scores}
    texts |= {
        name: F.array(*(text_of(column, there) for column in of))
        for name, of in lists.items()
        if of
    }
    return raw_rows(frame, {**texts, **(more or {})})
