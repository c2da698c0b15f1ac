"""Finds the files that settings such as `corpus.inputs` name."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelines.corpus.readers import FORMATS
from pipelines.corpus.readers.formats import FileNames
from pipelines.errors import InputError
from pipelines.files.compression import is_compressed, plain_suffix
from pipelines.settings import paths

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


def format_of(file: Path) -> str | None:
    """The format with columns that a file's name tells."""
    return next((name for name, files in names_of(COLUMNS).items() if _is_of(file, files)), None)


def stamp_of(file: Path) -> list[str | int]:
    """Path, size and time of the last change; only the path of a file that went away."""
    try:
        status = file.stat()
    except OSError:
        return [str(file)]
    return [str(file), status.st_size, status.st_mtime_ns]


def find_files(inputs: Sequence[str], kind: str, key: str = INPUTS) -> list[Path]:
    """The files that files, folders and globs stand for, absolute, sorted, each once.

    A folder stands for the files in it, at any depth, whose name ends as `kind` has it, and for
    WikiExtractor's `wiki_00` where that is of the kind. Hidden files and folders are left out.

    Args:
        inputs: What the user wrote.
        kind: A format of files, or :data:`COLUMNS`.
        key: The setting that an error names.

    Raises:
        InputError: Something is missing, matches nothing or is not on a file system.
    """
    found: set[Path] = set()
    for given in inputs:
        found.update(_files_of(local_path(given, key), given, kind, key))
    if not found:
        raise InputError(key, "it is empty", "name files, folders or globs")
    return sorted(found)


def local_path(given: str, key: str = INPUTS) -> str:
    """The path on a file system that a name or a `file:` address means.

    Raises:
        InputError: It is an address of another kind.
    """
    try:
        return paths.local_path(given)
    except paths.NotLocalError as error:
        raise InputError(key, error.problem, error.remedy) from None


def _files_of(path: str, given: str, kind: str, key: str) -> Iterator[Path]:
    # A name that exists is taken literally, even if it holds a bracket or a star.
    if Path(path).exists():
        matches = [path]
    elif glob.has_magic(path):
        matches = glob.glob(path, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute ones
        matches = [match for match in matches if not is_hidden(Path(match).name)]
        if not matches:
            raise InputError(key, f"nothing matches `{given}`", "name existing files")
    else:
        raise InputError(key, f"there is no file or folder `{given}`", "name existing files")
    for match in sorted(matches):
        if Path(match).is_dir():
            yield from _files_in(Path(match), kind, key)
        else:
            yield Path(match).absolute()


def _files_in(folder: Path, kind: str, key: str) -> Iterator[Path]:
    empty, kinds = True, names_of(kind).values()
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        for name in sorted(names):
            file = Path(parent, name)
            if not is_hidden(name) and any(_is_of(file, files) for files in kinds):
                empty = False
                yield file.absolute()
    if empty:
        wanted = suffixes_of(kind)
        raise InputError(key, f"{folder} holds no {kind} file", f"its files must end in {wanted}")


def is_hidden(name: str) -> bool:
    """Whether Spark, and a search of a folder, pass a file over for its name."""
    return name.startswith(("_", "."))


def _is_of(file: Path, files: FileNames) -> bool:
    if is_compressed(file) and not files.may_be_packed:
        return False
    if plain_suffix(file) in files.suffixes:
        return True
    stem = file.stem if is_compressed(file) else file.name
    return files.stem is not None and files.stem(stem)
