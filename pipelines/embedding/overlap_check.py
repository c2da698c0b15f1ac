"""Refuses inputs and outputs that overlap.

Otherwise a job would read what it writes, or delete what it reads.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from pipelines.catalog import FORMATS, TABLE_FORMATS
from pipelines.corpus.readers.inputs import find_files, place_of
from pipelines.corpus.readers.tables import delta_folder
from pipelines.embedding.partitions import fixed_part
from pipelines.errors import InputError
from pipelines.files.locations import Location, is_within
from pipelines.settings import EmbeddingSettings, StorageSettings
from pipelines.settings.spark import DEFAULT_STORES

INPUTS = "embedding.inputs"
OUTPUT = "embedding.output"

_A_FILE = "part-00000-00000.parquet"


def check_no_overlap(
    settings: EmbeddingSettings, folder: Location, stores: StorageSettings = DEFAULT_STORES
) -> None:
    """Compares the inputs with the output's folder, whatever links lead to them.

    Args:
        settings: The inputs.
        folder: Of the output.
        stores: How object stores are reached.

    Raises:
        InputError: One is within the other, or will be, or an input is not there.
    """
    real = folder.resolve()
    for given in settings.inputs:
        path = _input_path(given, settings.format, stores)
        if path is not None and path.exists():
            if is_within(real, path.resolve()):
                raise _within(folder)
            _check_outside([path], real, folder)
        elif path is not None and _would_find(path, fixed_part(given, stores), real):
            raise _within(folder)
    if TABLE_FORMATS.load(settings.format).files is not None:
        follow = settings.follow_links
        files = find_files(settings.inputs, settings.format, INPUTS, stores, follow_links=follow)
        _check_outside(files, real, folder)


def check_files_outside(files: Iterable[Location], folder: Location) -> None:
    """Makes sure that none of the files is in the output's folder.

    Raises:
        InputError: One is.
    """
    _check_outside(files, folder.resolve(), folder)


def check_outside(
    given: Sequence[str], kind: str | None, key: str, folder: Location, stores: StorageSettings
) -> None:
    """Makes sure that a job does not write into a folder around what it reads.

    Args:
        given: Files, folders, globs, or names of tables.
        kind: The format of inputs; None of what is a file or a folder itself.
        key: The setting that names the folder.
        folder: Need not be there.
        stores: How object stores are reached.

    Raises:
        InputError: Something that is read is in the folder.
    """
    real = folder.resolve()
    for name in given:
        path = place_of(name, stores, key) if kind is None else _corpus_path(name, kind, stores)
        if path is None:
            continue
        base = fixed_part(str(path), stores) if glob.has_magic(str(path)) else path
        _check_outside([path if path.exists() else base], real, folder, key)
        # A folder around it may have files in it.
        are_files = kind is not None and FORMATS.load(kind).files is not None
        if kind is not None and are_files and is_within(real, base.resolve()):
            _check_outside(find_files([name], kind, stores=stores), real, folder, key)


def _check_outside(
    files: Iterable[Location], real: Location, folder: Location, key: str = OUTPUT
) -> None:
    inside = next((file for file in files if is_within(file.resolve(), real)), None)
    if inside is not None:
        raise InputError(key, f"{folder} holds the input {inside}", "name a folder beside it")


def _within(folder: Location) -> InputError:
    return InputError(OUTPUT, f"{folder} is within the inputs", "name a folder beside them")


def _input_path(given: str, kind: str, stores: StorageSettings) -> Location | None:
    """The path of an input, perhaps a glob; None for a table that is known by name only."""
    if kind == "delta":
        return delta_folder(given)
    by_name = TABLE_FORMATS.load(kind).files is None
    return None if by_name else place_of(given, stores, INPUTS)


def _corpus_path(given: str, kind: str, stores: StorageSettings) -> Location | None:
    """The path of an input of any format; None for a table that is known by name only."""
    if kind in TABLE_FORMATS:
        return _input_path(given, kind, stores)
    return place_of(given, stores, INPUTS)


def _would_find(pattern: Location, base: Location, real: Location) -> bool:
    """Whether a glob means the output's folder, one around it, or a file in it."""
    if not glob.has_magic(str(pattern)):
        return False
    wild = pattern.parts[len(base.parts) :]
    base = base.resolve()
    file = real / _A_FILE
    around = [path for path in (file, *file.parents) if is_within(path, base)]
    return any(_matches(path.parts[len(base.parts) :], wild) for path in around)


def _matches(parts: Sequence[str], wild: Sequence[str]) -> bool:
    if not wild:
        return not parts
    if wild[0] == "**":
        return any(_matches(parts[skipped:], wild[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], wild[0]) and _matches(parts[1:], wild[1:])
