"""The files and columns named in settings such as `corpus.inputs`."""

from __future__ import annotations

import glob
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.catalog import FORMATS
from pipelines.corpus.funnel import ROWS
from pipelines.corpus.readers.formats import Columns, FileNames
from pipelines.corpus.readers.rows import ROW_TYPES
from pipelines.corpus.readers.streams import (
    Links,
    check_regular,
    exists,
    files_below,
    sort_key,
)
from pipelines.errors import InputError
from pipelines.files.locations import (
    Location,
    as_local,
    fixed_folder,
    is_compressed,
    location,
    matching,
    plain_suffix,
)
from pipelines.files.versions import current, is_version
from pipelines.settings import CorpusSettings, StorageSettings
from pipelines.settings import base as paths
from pipelines.settings.corpus import column_of, element_of
from pipelines.settings.spark import DEFAULT_STORES
from pipelines.spark.java import valid_text

INPUTS = "corpus.inputs"
COLUMNS = "columns"
"""The kind of file of all formats with columns."""


def names_of(kind: str) -> dict[str, FileNames]:
    """Return the names of files of a format, or of all formats of :data:`COLUMNS`, by format."""
    loaded = {name: FORMATS.load(name) for name in (FORMATS if kind == COLUMNS else (kind,))}
    return {
        name: known.files
        for name, known in loaded.items()
        if known.files is not None and (known.columns or kind != COLUMNS)
    }


def suffixes_of(kind: str) -> str:
    """Return the suffixes of a format, or of all formats of :data:`COLUMNS`, for a remedy."""
    return ", ".join(suffix for files in names_of(kind).values() for suffix in files.suffixes)


def format_of(file: Location) -> str | None:
    """Return the format with columns that a file's name shows."""
    return next((name for name, files in names_of(COLUMNS).items() if _is_of(file, files)), None)


def stamp_of(file: Location) -> list[str | int]:
    """Return path, size and time of the last change; only the path of a removed file."""
    try:
        status = file.stat()
    except OSError:
        return [str(file)]
    return [str(file), status.st_size, status.st_mtime_ns]


def find_files(
    inputs: Sequence[str],
    kind: str,
    key: str = INPUTS,
    stores: StorageSettings = DEFAULT_STORES,
    *,
    follow_links: bool = False,
) -> list[Location]:
    """Return the files that files, folders and globs stand for, absolute, sorted, each once.

    A folder stands for its files of `kind`, at any depth and not hidden: a format of files, or
    :data:`COLUMNS`. WikiExtractor's `wiki_00` counts if it is of the kind. `follow_links` allows
    links out of a folder; an input that is itself a link is always followed.

    Raises:
        InputError: Something is missing, matches nothing, cannot be reached, is neither file nor
            folder, or is a forbidden link.
    """
    found: set[Location] = set()
    for given in inputs:
        path = place_of(given, stores, key)
        found.update(_files_of(path, given, kind, key, follow=follow_links))
    if not found:
        raise InputError(key, "it is empty", "Name files, folders or globs")
    return sorted(found, key=sort_key)


def local_files(inputs: Sequence[str], kind: str, key: str = INPUTS) -> list[Path]:
    """Return the files of :func:`find_files` on a file system."""
    return [path for path in map(as_local, find_files(inputs, kind, key)) if path is not None]


def place_of(given: str, stores: StorageSettings, key: str = INPUTS) -> Location:
    """Return the absolute place of a path or an address; refuse one without a place."""
    try:
        place = location(paths.stored_path(given), stores)
    except paths.NotLocalError as error:
        raise InputError(key, error.problem, error.remedy) from None
    # Spark takes `..` out of a path before it reads a file, and names the file without it.
    absolute = place.absolute()
    local = as_local(absolute)
    return absolute if local is None else Path(os.path.normpath(local))


def local_path(given: str, key: str = INPUTS) -> str:
    """Return the path on a file system of a name or a `file:` address; refuse others."""
    try:
        return paths.local_path(given)
    except paths.NotLocalError as error:
        raise InputError(key, error.problem, error.remedy) from None


def _files_of(
    path: Location, given: str, kind: str, key: str, *, follow: bool
) -> Iterator[Location]:
    # A name that exists is taken literally, even if it holds a bracket or a star.
    if exists(path, key):
        links = Links(path, key, follow)
        matches = [path]
    elif glob.has_magic(str(path)):
        links = Links(fixed_folder(path), key, follow)
        matches = [match for match in matching(path) if not is_hidden(match.name)]
        if not matches:
            raise InputError(key, f"nothing matches `{given}`", "Name existing files")
        for match in matches:
            links.check(match)
    else:
        raise InputError(key, f"there is no file or folder `{given}`", "Name existing files")
    for match in sorted(matches, key=sort_key):
        check_regular(match, key)
        if match.is_dir():
            yield from _files_in(current(match), kind, links)
        else:
            yield match


def _files_in(folder: Location, kind: str, links: Links) -> Iterator[Location]:
    empty, kinds, pointed = True, names_of(kind).values(), dict[Location, str]()
    for file in files_below(folder, is_hidden, links):
        if is_outdated(file, folder, pointed):
            continue
        if any(_is_of(file, files) for files in kinds):
            empty = False
            if file.is_symlink():
                links.check(file)
            check_regular(file, links.key)
            yield file
    if empty:
        wanted = suffixes_of(kind)
        problem = f"{folder} holds no {kind} file"
        raise InputError(links.key, problem, f"Name a folder whose files end in {wanted}")


def is_outdated(file: Location, folder: Location, pointed: dict[Location, str]) -> bool:
    """Return whether a file below a folder of a store is of an old or unfinished version.

    ``pointed`` keeps the names of current versions, since each costs a request.
    """
    if as_local(file) is not None:
        return False
    parts, depth = file.parts, len(folder.parts)
    place = next((at for at in range(depth, len(parts) - 1) if is_version(parts[at])), None)
    if place is None:
        return False
    home = folder.joinpath(*parts[depth:place])
    if home not in pointed:
        pointed[home] = current(home).name
    return pointed[home] != parts[place]


def is_hidden(name: str) -> bool:
    """Return whether Spark, and a search of a folder, skip a file for its name."""
    return name.startswith(("_", "."))


def _is_of(file: Location, files: FileNames) -> bool:
    if is_compressed(file) and not files.may_be_packed:
        return False
    if plain_suffix(file) in files.suffixes:
        return True
    stem = file.stem if is_compressed(file) else file.name
    return files.stem is not None and files.stem(stem)


Names = Sequence[tuple[str, str]]
"""Settings of columns, each with the column's name."""


_TITLES = "corpus.title_column"


def _text_columns(settings: CorpusSettings) -> tuple[str, tuple[str, ...]]:
    if settings.pairs == "columns":
        return "corpus.pair_columns", settings.pair_columns
    if settings.pairs == "triplets":
        return "corpus.triplet_columns", settings.triplet_columns
    return "corpus.text_column", (settings.text_column,)


def columns_of(settings: CorpusSettings) -> Columns:
    """Return the wanted columns, for formats with columns."""
    return Columns(
        _text_columns(settings)[1],
        settings.title_column if settings.pairs in ("title", "document") else None,
        settings.score_column,
        settings.group_column,
        settings.key_column,
        settings.score_columns,
    )


def named_columns(settings: CorpusSettings) -> Names:
    """Return the settings of wanted columns, and the names."""
    columns = columns_of(settings)
    return [
        *((_text_columns(settings)[0], name) for name in columns.texts),
        *(("corpus.score_columns", name) for name in columns.scores),
        *((f"corpus.{key}_column", name) for key, name in columns.single.items()),
    ]


def nothing_readable(
    first: tuple[Location, str],
    known: Sequence[tuple[Location, Sequence[str]]],
    names: Names,
) -> InputError:
    """Return the error for inputs without a readable file.

    `first` is the first file and its problem; `known` are the files with known columns.
    """
    for setting, name in names:
        if known and not any(column_of(name, columns) in columns for _, columns in known):
            readable, columns = known[0]
            missing = column_of(name, columns)
            return InputError(
                setting, f"{readable} has no column `{missing}`", column_remedy(setting, columns)
            )
    return InputError(
        INPUTS, f"{first[0]} cannot be read ({first[1]})", "Repair it, or name other files"
    )


def column_remedy(setting: str, columns: Iterable[str]) -> str:
    """Return the remedy for a setting that names a missing column."""
    remedy = has_columns(columns, setting.partition(".")[0])
    return f"{remedy}, or set it to null if there are no titles" if setting == _TITLES else remedy


def has_columns(columns: Iterable[str], section: str) -> str:
    """Return the remedy with the existing columns, or with the separator for an uncut header."""
    names = list(columns)
    # A name with misleading signs stands in quotes.
    listed = ", ".join(
        name if name.isprintable() and name.strip() == name and name else f"`{name}`"
        for name in names
    )
    for sign, shown in {";": ";", "\t": "\\t", "|": "|"}.items():
        if len(names) == 1 and sign in names[0]:
            return f"Set {section}.csv_separator to `{shown}`: its only column is {listed}"
    return f"Name one of its columns: {listed}"


def raw_rows(frame: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
    """Return raw rows of :data:`.rows.ROW_SCHEMA`; missing columns are null.

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
    """Return a column, or an element of a column of lists, as text, with U+FFFD for invalid UTF-8.

    The name is quoted, because a dot in it would mean a field of a struct.
    """
    element = element_of(name, columns)
    base = name if element is None else element[0]
    column = F.col("`" + base.replace("`", "``") + "`")
    found = column if element is None else F.get(column, F.lit(element[1]))
    return valid_text(found.cast("string"))


def number_in(text: str, kind: str = "double") -> str:
    """Return the SQL to read a column (or SQL expression) of texts as numbers; null for others.

    `true` and `false` are 1 and 0, in any case: Parquet and JSON have booleans, and programs write
    them to CSV in various ways.
    """
    number = f"case lower(trim({text})) when 'true' then '1' when 'false' then '0' else {text} end"
    return f"try_cast({number} as {kind})"


def rows_of(
    frame: DataFrame, columns: Columns, added: Mapping[str, Column] | None = None
) -> DataFrame:
    """Return raw rows of the wanted columns, and of added columns of a raw row."""
    wanted = {f"text_{side}": name for side, name in enumerate(columns.texts[:2])} | columns.single
    names = frame.columns
    texts = {name: text_of(column, names) for name, column in wanted.items()}
    lists = {"negatives": columns.texts[2:], "candidate_scores": columns.scores}
    texts |= {
        name: F.array(*(text_of(column, names) for column in members))
        for name, members in lists.items()
        if members
    }
    return raw_rows(frame, {**texts, **(added or {})})
