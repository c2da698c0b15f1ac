"""Finds the files that settings such as `corpus.inputs` name."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelines.catalog import FORMATS
from pipelines.corpus.readers.finding import (
    Links,
    check_regular,
    exists,
    files_below,
    fixed_folder,
    matching,
    sort_key,
)
from pipelines.corpus.readers.formats import FileNames
from pipelines.errors import InputError
from pipelines.files.compression import is_compressed, plain_suffix
from pipelines.files.locations import Location, location
from pipelines.settings import StorageSettings
from pipelines.settings import base as paths
from pipelines.settings.spark import DEFAULT_STORES

INPUTS = "corpus.inputs"
COLUMNS = "columns"
"""Stands for the files of all formats whose records have columns."""


def names_of(kind: str) -> dict[str, FileNames]:
    """The names of files of a format, or of all those of :data:`COLUMNS`, by format."""
    loaded = {name: FORMATS.load(name) for name in (FORMATS if kind == COLUMNS else (kind,))}
    return {
        name: known.files
        for name, known in loaded.items()
        if known.files is not None and (known.columns or kind != COLUMNS)
    }


def suffixes_of(kind: str) -> str:
    """The suffixes of a format, or of all those of :data:`COLUMNS`, for a remedy."""
    return ", ".join(suffix for files in names_of(kind).values() for suffix in files.suffixes)


def format_of(file: Location) -> str | None:
    """The format with columns that a file's name tells."""
    return next((name for name, files in names_of(COLUMNS).items() if _is_of(file, files)), None)


def stamp_of(file: Location) -> list[str | int]:
    """Path, size and time of the last change; only the path of a file that went away."""
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
    """The files that files, folders and globs stand for, absolute, sorted, each once.

    A folder stands for the files in it, at any depth, whose name ends as `kind` has it, and for
    WikiExtractor's `wiki_00` where that is of the kind. Hidden files and folders are left out.

    Args:
        inputs: What the user wrote.
        kind: A format of files, or :data:`COLUMNS`.
        key: The setting that an error names.
        stores: How object stores are reached.
        follow_links: Whether links in a folder that lead out of it are followed. An input that is
            a link itself is what the user has named.

    Raises:
        InputError: Something is missing, matches nothing, cannot be reached, is neither file nor
            folder, or is a link that is not to be followed.
    """
    found: set[Location] = set()
    for given in inputs:
        path = place_of(given, stores, key)
        found.update(_files_of(path, given, kind, key, follow=follow_links))
    if not found:
        raise InputError(key, "it is empty", "name files, folders or globs")
    return sorted(found, key=sort_key)


def local_files(inputs: Sequence[str], kind: str, key: str = INPUTS) -> list[Path]:
    """Those of :func:`find_files` that are on a file system."""
    return [file for file in find_files(inputs, kind, key) if isinstance(file, Path)]


def place_of(given: str, stores: StorageSettings, key: str = INPUTS) -> Location:
    """The place that a path or an address means, absolute.

    Raises:
        InputError: It is none.
    """
    try:
        place = location(paths.stored_path(given), stores)
    except paths.NotLocalError as error:
        raise InputError(key, error.problem, error.remedy) from None
    # Spark takes `..` out of a path before it reads a file, and tells of the file by that name.
    whole = place.absolute()
    return Path(os.path.normpath(whole)) if isinstance(whole, Path) else whole


def local_path(given: str, key: str = INPUTS) -> str:
    """The path on a file system that a name or a `file:` address means.

    Raises:
        InputError: It is an address of another kind.
    """
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
            raise InputError(key, f"nothing matches `{given}`", "name existing files")
        for match in matches:
            if isinstance(match, Path):
                links.check(match)
    else:
        raise InputError(key, f"there is no file or folder `{given}`", "name existing files")
    for match in sorted(matches, key=sort_key):
        check_regular(match, key)
        if match.is_dir():
            yield from _files_in(match, kind, links)
        else:
            yield match


def _files_in(folder: Location, kind: str, links: Links) -> Iterator[Location]:
    empty, kinds = True, names_of(kind).values()
    for file in files_below(folder, is_hidden, links):
        if any(_is_of(file, files) for files in kinds):
            empty = False
            if file.is_symlink() and isinstance(file, Path):
                links.check(file)
            check_regular(file, links.key)
            yield file
    if empty:
        wanted = suffixes_of(kind)
        problem = f"{folder} holds no {kind} file"
        raise InputError(links.key, problem, f"its files must end in {wanted}")


def is_hidden(name: str) -> bool:
    """Whether Spark, and a search of a folder, pass a file over for its name."""
    return name.startswith(("_", "."))


def _is_of(file: Location, files: FileNames) -> bool:
    if is_compressed(file) and not files.may_be_packed:
        return False
    if plain_suffix(file) in files.suffixes:
        return True
    stem = file.stem if is_compressed(file) else file.name
    return files.stem is not None and files.stem(stem)
