"""Docstrings of the installed Python packages: real prose that every machine has.

The source files are parsed, never imported, on the executors; these must see the same
environment as the driver.
"""

from __future__ import annotations

import ast
import gc
import inspect
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pipelines.corpus.funnel import FILES, ROWS

_TEST_PART = re.compile(r"(tests?|test_.*|.*_tests?|conftest|idle_test)", re.IGNORECASE)
_VENDOR_PARTS = {"_vendor", "vendor", "vendored", "_vendored", "_distutils", "externals"}
_TRIPLE_QUOTE = re.compile(rb"\"\"\"|'''")
_BLOCKS = (ast.If, ast.Try, ast.With)
_NAMED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class SourceFile:
    """A Python source file.

    Attributes:
        root: The folder that its packages lie in.
        path: Relative to the root, with forward slashes.
    """

    root: str
    path: str

    @property
    def package(self) -> str:
        """Top-level name: what is held out as a whole."""
        return self.path.partition("/")[0].removesuffix(".py")


@dataclass(frozen=True)
class Docstring:
    """A docstring.

    Attributes:
        document: Path of its file and its qualified name, `numpy/lib/x.py::function`.
        text: As :func:`inspect.cleandoc` has it.
    """

    document: str
    text: str


def installed_roots() -> list[Path]:
    """The folders of the running interpreter's packages and of its standard library."""
    paths = sysconfig.get_paths()
    names = ("purelib", "platlib", "stdlib")
    return sorted({Path(paths[name]).resolve() for name in names})


def source_files(roots: Iterable[Path]) -> list[SourceFile]:
    """Every Python file below the roots; a package folder inside another root counts once."""
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
    """The docstrings of a file, or the reason why there is none. Runs on an executor."""
    parts = file.path.removesuffix(".py").split("/")
    if any(_TEST_PART.fullmatch(part) for part in parts):
        return [], "test code"
    if _VENDOR_PARTS.intersection(parts[1:]):
        return [], "copy of another package"
    try:
        source = Path(file.root, file.path).read_bytes()
    except OSError:
        return [], "not readable"
    # A prefilter that costs nothing beside the parser.
    if _TRIPLE_QUOTE.search(source) is None:
        return [], "no docstring"
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [], "does not parse"
    found = [Docstring(f"{file.path}::{name}", text) for name, text in _texts(tree, "")]
    return found, None if found else "no docstring"


def docstring_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Source files in, docstrings out. Runs on an executor.

    Each file also gives one row of the level `source files`, whose reason says why it gave no
    docstring; so files are counted in the same pass.

    Args:
        batches: Columns `root` and `path`.

    Returns:
        Batches of columns `level`, `document`, `unit` (the package), `text` and `reason`.
    """
    with _fast_parsing():
        for batch in batches:
            pairs = zip(batch["root"].to_pylist(), batch["path"].to_pylist(), strict=True)
            for root, path in pairs:
                yield _file_batch(SourceFile(root, path))


def _file_batch(file: SourceFile) -> pa.RecordBatch:
    docstrings, reason = file_docstrings(file)
    count = len(docstrings)
    return pa.RecordBatch.from_pydict(
        {
            "level": [FILES] + [ROWS] * count,
            "document": [file.path] + [docstring.document for docstring in docstrings],
            "unit": [file.package] * (count + 1),
            "text": [None] + [_valid(docstring.text) for docstring in docstrings],
            "reason": [reason] + [None] * count,
        },
        schema=pa.schema(
            [(name, pa.string()) for name in ("level", "document", "unit", "text", "reason")]
        ),
    )


def _valid(text: str) -> str:
    # A docstring may spell half a surrogate pair, which UTF-8 cannot hold.
    return text.encode("utf-8", errors="replace").decode("utf-8")


def _texts(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    """Qualified names and docstrings of a module, its classes, methods and functions."""
    if isinstance(node, (ast.Module, *_NAMED)):
        text = ast.get_docstring(node, clean=False)
        if text and text.strip():
            yield prefix.removesuffix(".") or "<module>", inspect.cleandoc(text)
    # What is defined inside a function is nobody's interface.
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _NAMED):
            yield from _texts(child, f"{prefix}{child.name}.")
        elif isinstance(child, _BLOCKS):
            yield from _texts(child, prefix)


@contextmanager
def _fast_parsing() -> Iterator[None]:
    """Without cyclic collection, which otherwise walks every syntax tree over and over."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if collecting:
            gc.enable()
