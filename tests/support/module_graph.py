"""Which module of the package imports which, read from the sources: nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "pipelines"
# Where statements hold others.
BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")


@dataclass(frozen=True)
class Module:
    """What a module imports, by dotted names.

    Attributes:
        path: Of its source.
        at_once: What is imported as soon as the module is.
        later: What its functions import when they are called.
        typed: What only a type checker imports.
    """

    path: Path
    at_once: frozenset[str]
    later: frozenset[str]
    typed: frozenset[str]

    @property
    def imports(self) -> frozenset[str]:
        return self.at_once | self.later | self.typed


@cache
def read_modules() -> dict[str, Module]:
    """All modules of the package by dotted name; a package goes by its own name."""
    paths = {dotted_name(path): path for path in sorted((ROOT / PACKAGE).rglob("*.py"))}
    return {name: read_module(path, paths) for name, path in paths.items()}


def dotted_name(path: Path) -> str:
    """The name by which the source of a module is imported."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def read_module(path: Path, known: Collection[str]) -> Module:
    """What one source imports.

    Args:
        path: The source.
        known: The modules of the package, among them those that `from package import module` names.
    """
    at_once: set[str] = set()
    later: set[str] = set()
    typed: set[str] = set()
    waiting: list[tuple[ast.AST, set[str]]] = [(syntax_of(path), at_once)]
    while waiting:
        node, found = waiting.pop()
        found.update(imported(node, known))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            found = typed
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found = later
        # Expressions, which most nodes are of, import nothing.
        children = (getattr(node, name, ()) for name in BLOCKS)
        waiting += [(child, found) for child in chain.from_iterable(children)]
    return Module(path, frozenset(at_once), frozenset(later), frozenset(typed))


@cache
def syntax_of(path: Path) -> ast.Module:
    """A source as a tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(node: ast.AST, known: Collection[str]) -> Iterator[str]:
    """The names of the modules that a statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            yield full if full in known else node.module


def cycles(graph: Mapping[str, Collection[str]]) -> list[list[str]]:
    """The groups of modules that import one another, round about (Tarjan's components)."""
    found: list[list[str]] = []
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    waiting: list[str] = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        waiting.append(name)
        for other in graph[name]:
            if other not in graph:
                continue
            if other not in order:
                visit(other)
            if other in waiting:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == order[name]:
            place = waiting.index(name)
            group = waiting[place:]
            del waiting[place:]
            if len(group) > 1:
                found.append(sorted(group))

    for name in graph:
        if name not in order:
            visit(name)
    return found


def reached(start: str, modules: Mapping[str, Module]) -> set[str]:
    """All that is imported, of the package and of others, when a module is."""
    found: set[str] = set()
    waiting = {start}
    while waiting:
        name = waiting.pop()
        found.add(name)
        if name in modules:
            # Python runs a package's __init__ before its modules.
            parents = {name.rpartition(".")[0]} - {""}
            waiting |= (modules[name].at_once | parents) - found
    return found
