"""Which files `corpus.inputs` means."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pipelines.corpus.streams import is_compressed, plain_suffix
from pipelines.errors import InputError

INPUTS = "corpus.inputs"
PARQUET_SUFFIXES = (".parquet", ".pq")
TAB_SUFFIXES = (".tsv", ".tab")
MARKDOWN_SUFFIXES = (".md", ".markdown")
DOCUMENT_FORMATS = ("documents", "text", "markdown", "wikiextractor")
"""Formats whose rows are pieces of documents."""

_TEXT = (".txt", ".text", ".rst")
_JSON = (".jsonl", ".ndjson", ".json")
_CSV = (".csv", *TAB_SUFFIXES)

SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "text": (*_TEXT, *MARKDOWN_SUFFIXES),
    "markdown": MARKDOWN_SUFFIXES,
    "wikiextractor": (*_TEXT, *_JSON),
    "documents": (*_TEXT, *MARKDOWN_SUFFIXES),
    "jsonl": _JSON,
    "csv": _CSV,
    "parquet": PARQUET_SUFFIXES,
    "columns": (*PARQUET_SUFFIXES, *_CSV, *_JSON),
}
"""Kind of input to the names that a folder is searched for; all but Parquet may be compressed.
Kinds are the formats of files, and `columns` for any of those with columns."""

# WikiExtractor's own names: wiki_00 to wiki_99 in folders AA to ZZ.
_WIKI_NAME = re.compile(r"wiki_\d+")
_WIKI_KINDS = ("wikiextractor", "documents")


def find_files(inputs: Sequence[str], kind: str, key: str = INPUTS) -> list[Path]:
    """The files that files, folders and globs stand for, absolute, sorted, each once.

    A folder stands for the files in it, at any depth, whose name ends as `kind` has it, and for
    WikiExtractor's `wiki_00` where that is of the kind. Hidden files and folders are left out.

    Args:
        inputs: What the user wrote.
        kind: A key of :data:`SUFFIXES`.
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
    scheme = re.match(r"([a-z][a-z0-9+]+):/", given)
    if scheme is None:
        return str(Path(given).expanduser())
    if scheme.group(1) == "file":
        return re.sub(r"^file:/+", "/", given)
    raise InputError(
        key,
        f"`{given}` is on {scheme.group(1)}, not on a file system",
        "mount it and give the path that the driver and every executor see",
    )


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
    empty = True
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        for name in sorted(names):
            file = Path(parent, name)
            if not is_hidden(name) and _is_of(file, kind):
                empty = False
                yield file.absolute()
    if empty:
        wanted = ", ".join(SUFFIXES[kind])
        raise InputError(key, f"{folder} holds no {kind} file", f"its files must end in {wanted}")


def is_hidden(name: str) -> bool:
    """Whether Spark, and a search of a folder, pass a file over for its name."""
    return name.startswith(("_", "."))


def _is_of(file: Path, kind: str) -> bool:
    suffix = plain_suffix(file)
    if suffix in PARQUET_SUFFIXES and is_compressed(file):
        return False
    if suffix in SUFFIXES[kind]:
        return True
    stem = file.stem if is_compressed(file) else file.name
    return kind in _WIKI_KINDS and _WIKI_NAME.fullmatch(stem) is not None
