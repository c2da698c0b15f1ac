"""Docstrings of the installed Python packages: real prose on every machine.

Executors parse the source files, and never import them; they must see the driver's environment.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import inspect
import logging
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.corpus.funnel import FILES, ROWS
from pipelines.corpus.readers.formats import Format
from pipelines.corpus.readers.inputs import INPUTS, raw_rows, stamp_of
from pipelines.corpus.readers.streams import Links, open_regular
from pipelines.errors import InputError
from pipelines.settings import CorpusSettings, StorageSettings

logger = logging.getLogger(__name__)

_TEST_PART = re.compile(r"(tests?|test_.*|.*_tests?|conftest|idle_test)", re.IGNORECASE)
_VENDOR_PARTS = {"_vendor", "vendor", "vendored", "_vendored", "_distutils", "externals"}
_TRIPLE_QUOTE = re.compile(rb"\"\"\"|'''")
_LEADING_LINES = re.compile(r"\A(?:[ \t]*\n)+")
# The tree takes about a hundred times as much.
_LARGEST_SOURCE = 8 << 20
_BLOCKS = (ast.If, ast.Try, ast.With)
_SOURCES_PER_TASK = 250
_FILES_AT_ONCE = 64
_COLUMNS = ("level", "document", "unit", "text", "reason")
_NAMED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class SourceFile:
    """A Python source file: the folder of its packages, and its path below, with `/`."""

    root: str
    path: str

    @property
    def package(self) -> str:
        """The top-level name; it is held out as a whole."""
        return self.path.partition("/")[0].removesuffix(".py")


@dataclass(frozen=True)
class Docstring:
    """A docstring, cleaned by :func:`inspect.cleandoc`.

    `document` is the path of its file and its qualified name, `numpy/lib/x.py::function`.
    """

    document: str
    text: str


def installed_roots() -> list[Path]:
    """Return the folders of the running interpreter's packages and standard library."""
    paths = sysconfig.get_paths()
    names = ("purelib", "platlib", "stdlib")
    return sorted({Path(paths[name]).resolve() for name in names})


def source_files(roots: Iterable[Path]) -> list[SourceFile]:
    """Return every Python file below the roots; a package inside another root counts once."""
    known = {str(root) for root in roots}
    found = []
    for root in sorted(known):
        for parent, folders, names in os.walk(root):
            folders[:] = [
                name
                for name in folders
                if name not in ("__pycache__", "site-packages", "dist-packages")
                and str(Path(parent, name)) not in known
            ]
            below = Path(parent).relative_to(root).as_posix()
            prefix = "" if below == "." else f"{below}/"
            found += [SourceFile(root, prefix + name) for name in names if name.endswith(".py")]
    return sorted(found, key=lambda file: (file.root, file.path))


def file_docstrings(file: SourceFile) -> tuple[list[Docstring], str | None]:
    """Return the docstrings of a file, or the reason for none. Runs on an executor."""
    parts = file.path.removesuffix(".py").split("/")
    if any(_TEST_PART.fullmatch(part) for part in parts):
        return [], "test code"
    if _VENDOR_PARTS.intersection(parts[1:]):
        return [], "copy of another package"
    source, reason = _source(Path(file.root, file.path))
    if reason is not None:
        return [], reason
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [], "does not parse"
    found = [Docstring(f"{file.path}::{name}", text) for name, text in _texts(tree)]
    return found, None if found else "no docstring"


def _source(path: Path) -> tuple[bytes, str | None]:
    """Return the content of a file, or the reason against parsing it."""
    try:
        with open_regular(path) as stored:
            source = stored.read(_LARGEST_SOURCE + 1)
    except OSError:
        return b"", "not readable"
    if len(source) > _LARGEST_SOURCE:
        return b"", f"longer than {_LARGEST_SOURCE >> 20} MB"
    # A prefilter that costs nothing beside the parser.
    return source, None if _TRIPLE_QUOTE.search(source) else "no docstring"


def docstring_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the docstrings of source files (`root`, `path`). Runs on an executor.

    Each file also gives one row of the level `source files`, with the `reason` for no docstring; so
    one pass counts files. `unit` is the package.
    """
    with _fast_parsing():
        for batch in batches:
            # A batch for each file would cost more to pass on than to fill.
            for start in range(0, batch.num_rows, _FILES_AT_ONCE):
                yield _docstring_batch(batch.slice(start, _FILES_AT_ONCE).to_pylist())


def _docstring_batch(files: Iterable[Mapping[str, str]]) -> pa.RecordBatch:
    rows: list[tuple[str | None, ...]] = []
    for file in (SourceFile(row["root"], row["path"]) for row in files):
        docstrings, reason = file_docstrings(file)
        rows.append((FILES, file.path, file.package, None, reason))
        for found in docstrings:
            # A docstring may spell half a surrogate pair, which UTF-8 cannot hold.
            text = found.text.encode("utf-8", errors="replace").decode("utf-8")
            rows.append((ROWS, found.document, file.package, text, None))
    columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=_COLUMNS)


def _texts(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield qualified names and docstrings of a module, its classes and functions, in order."""
    # An explicit stack: a chain of `elif` is a tree deeper than Python's recursion limit.
    waiting = [(tree, "")]
    while waiting:
        node, prefix = waiting.pop()
        if isinstance(node, (ast.Module, *_NAMED)):
            text = ast.get_docstring(node, clean=False)
            if text and text.strip():
                # `cleandoc` drops the blank lines in front one at a time, and moves all others.
                yield (
                    prefix.removesuffix(".") or "<module>",
                    inspect.cleandoc(_LEADING_LINES.sub("\n", text)),
                )
        # Definitions inside a function are nobody's interface.
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for child in reversed(list(ast.iter_child_nodes(node))):
            if isinstance(child, _NAMED):
                waiting.append((child, f"{prefix}{child.name}."))
            elif isinstance(child, _BLOCKS):
                waiting.append((child, prefix))


@contextmanager
def _fast_parsing() -> Iterator[None]:
    """Switch off cyclic collection, which otherwise walks every syntax tree over and over."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if collecting:
            gc.enable()


def _read_docstrings(
    session: SparkSession, settings: CorpusSettings, stores: StorageSettings
) -> DataFrame:
    files = source_files(_source_roots(settings.inputs))
    if not files:
        raise InputError(INPUTS, "its folders hold no Python file", "Name source folders")
    # Installed packages may be links into the cache of the installer.
    for source in files if settings.inputs else ():
        path = Path(source.root, source.path)
        if path.is_symlink():
            Links(Path(source.root), INPUTS, settings.follow_links).check(path)
    logger.info("reading the docstrings of %d source files", len(files))
    tasks = max(1, len(files) // _SOURCES_PER_TASK)
    listed = session.createDataFrame(
        [(file.root, file.path) for file in files], "root string, path string"
    )
    found = listed.repartition(tasks, "path").mapInArrow(
        docstring_batches, ", ".join(f"{name} string" for name in _COLUMNS)
    )
    columns = {name: F.col(name) for name in ("level", "document", "unit", "reason")}
    file = F.substring_index("document", "::", 1)
    return raw_rows(found, {**columns, "file": file, "text_0": F.col("text")})


def _source_roots(inputs: Sequence[str]) -> list[Path]:
    """Return the given folders of packages, by default those of the interpreter."""
    roots = []
    for given in inputs:
        path = Path(given).expanduser()
        if not path.is_dir():
            problem = f"there is no folder `{given}`"
            raise InputError(INPUTS, problem, "Name folders of Python packages")
        roots.append(path.resolve())
    return roots or installed_roots()


def _docstrings_fingerprint(inputs: Sequence[str], stores: StorageSettings) -> dict[str, Any]:
    # About ten thousand files: their names alone would be megabytes.
    files = source_files(_source_roots(inputs))
    stamps = "".join(repr(stamp_of(Path(file.root, file.path))) for file in files)
    return {"files": len(files), "sha256": hashlib.sha256(stamps.encode()).hexdigest()}


DOCSTRINGS = Format(
    read=_read_docstrings,
    fingerprint=_docstrings_fingerprint,
    pairs=("summary", "adjacent", "single"),
    large_units=True,
)
