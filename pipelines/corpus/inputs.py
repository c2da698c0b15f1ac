"""Which files `corpus.inputs` means, and whether they are what they are said to be.

Everything here runs on the driver and looks at the first bytes of a file at most, so that a
wrong input is refused before Spark reads anything.
"""

from __future__ import annotations

import bz2
import csv
import glob
import gzip
import io
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, cast

from pipelines.errors import InputError

SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "docstrings": (".py",),
    "text": (".txt", ".text", ".md", ".rst"),
    "jsonl": (".jsonl", ".ndjson", ".json"),
    "csv": (".csv", ".tsv", ".tab"),
    "parquet": (".parquet", ".pq"),
}
_UNPACK: Mapping[str, Callable[[IO[bytes]], IO[bytes]]] = {
    ".gz": lambda stored: cast(IO[bytes], gzip.GzipFile(fileobj=stored)),
    ".bz2": lambda stored: cast(IO[bytes], bz2.BZ2File(stored)),
}
_UNREADABLE = (".zip", ".xz", ".zst", ".7z", ".rar", ".tar", ".tgz")
_HEAD_BYTES = 65536
_PARQUET_MAGIC = b"PAR1"


def find_files(inputs: Sequence[str], kind: str, key: str = "corpus.inputs") -> list[Path]:
    """The files that files, folders and globs stand for, absolute, sorted, each once.

    A folder stands for the files in it, at any depth, whose name ends as `kind` has it.

    Args:
        inputs: What the user wrote.
        kind: A key of :data:`SUFFIXES`.
        key: The setting that an error names.

    Raises:
        InputError: Something is missing, matches nothing or cannot be read by Spark.
    """
    found: set[Path] = set()
    for given in inputs:
        found.update(_files_of(_local_path(given, key), given, kind, key))
    return sorted(found)


def check_files(files: Sequence[Path], kind: str, key: str = "corpus.inputs") -> None:
    """Refuses files whose bytes do not fit their format; reads 64 KB of each at most.

    Raises:
        InputError: Naming the file and what it is instead.
    """
    for file in files:
        if file.name.startswith(("_", ".")):
            raise InputError(
                key, f"{file} has a name that Spark skips", "rename it without the leading _ or ."
            )
        if file.suffix.lower() in _UNREADABLE:
            raise InputError(
                key, f"{file} is packed in a way Spark cannot read", "unpack it, or use .gz"
            )
        if kind == "parquet":
            _check_parquet(file, key)
        else:
            _check_text(file, kind, key)


def csv_header(file: Path, key: str = "corpus.inputs") -> tuple[str, ...]:
    """The column names in the first line of a CSV or TSV file.

    Raises:
        InputError: The file is empty.
    """
    text = _head(file, key).decode("utf-8-sig", errors="replace")
    dialect = (
        csv.reader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE)
        if is_tab_separated(file)
        else csv.reader(io.StringIO(text))
    )
    header = next(iter(dialect), None)
    if not header:
        raise InputError(key, f"{file} has no header line", "name the columns in its first line")
    return tuple(header)


def is_tab_separated(file: Path) -> bool:
    """Whether the name says that tabs separate the columns."""
    return _plain_suffix(file) in (".tsv", ".tab")


def _local_path(given: str, key: str) -> str:
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
        matches = [match for match in matches if not _is_hidden(Path(match).name)]
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
        folders[:] = sorted(name for name in folders if not _is_hidden(name))
        for name in sorted(names):
            file = Path(parent, name)
            if not _is_hidden(name) and _plain_suffix(file) in SUFFIXES[kind]:
                empty = False
                yield file.absolute()
    if empty:
        wanted = ", ".join(SUFFIXES[kind])
        raise InputError(key, f"{folder} holds no {kind} file", f"its files must end in {wanted}")


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", "."))


def _plain_suffix(file: Path) -> str:
    suffix = file.suffix.lower()
    return Path(file.stem).suffix.lower() if suffix in _UNPACK else suffix


def _head(file: Path, key: str) -> bytes:
    try:
        with file.open("rb") as stored:
            unpack = _UNPACK.get(file.suffix.lower())
            stream = unpack(stored) if unpack else stored
            return stream.read(_HEAD_BYTES)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            key, f"{file} is not what its name says ({error})", "mend or rename it"
        ) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(key, f"{file} cannot be read ({reason})", "mend it") from None


def _check_text(file: Path, kind: str, key: str) -> None:
    head = _head(file, key)
    if head.startswith(_PARQUET_MAGIC):
        raise InputError(key, f"{file} is a Parquet file", "set corpus.format to parquet")
    if b"\0" in head or head.startswith(b"\x1f\x8b"):
        raise InputError(key, f"{file} is binary", f"{kind} files are UTF-8 text")


def _check_parquet(file: Path, key: str) -> None:
    try:
        with file.open("rb") as stream:
            head = stream.read(4)
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(size - 4, 0))
            tail = stream.read(4)
    except OSError as error:
        raise InputError(key, f"{file} cannot be read ({error.strerror})", "mend it") from None
    if head != _PARQUET_MAGIC:
        raise InputError(key, f"{file} is not a Parquet file", "name Parquet files")
    if tail != _PARQUET_MAGIC or size < 12:
        raise InputError(key, f"{file} is a Parquet file without its end", "write it again")
