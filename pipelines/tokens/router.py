"""Routers: folders of sentence-transformers with one encoder for queries, one for documents.

`router_config.json` lists the modules of each route. Modules behind the Router belong to both.
:func:`route_modules` returns them as those of a plain folder, so that all else reads a route as it
reads a model. Texts go where `encode_query`, `encode_document` and `encode` send them.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from typing_extensions import TypedDict

from pipelines.errors import InputError
from pipelines.files import records
from pipelines.tokens.model_files import (
    TRANSFORMER,
    Known,
    anything,
    check_keys,
    flag,
    nothing,
    text,
)
from pipelines.tokens.start import (
    DOCUMENT,
    QUERY,
    ROUTER,
    check_module,
    folder_modules,
    module_kind,
)

KEY = "encoder.start"
ROUTER_FILE = "router_config.json"
SIDES = (QUERY, DOCUMENT)
"""The routes of a Router."""
_FIRST = (TRANSFORMER, "StaticEmbedding")
"""Modules that turn a text into one vector."""
_NORMALISING = "Normalize"
_FILE_KEYS: Known = dict.fromkeys(("types", "structure", "parameters"), anything)
_PARAMETERS: Known = {
    "default_route": text,
    "allow_empty_key": flag,
    "route_mappings": nothing,
}
_OTHER_MODEL = "Save it with `Router.for_query_document`, or name one encoder"


class _RouterFile(TypedDict):
    """The content of :data:`ROUTER_FILE`."""

    types: dict[str, str]
    structure: dict[str, list[str]]
    parameters: dict[str, Any]


def side_of(prompt_name: str | None) -> str:
    """Return the route of texts with a prompt: only `query` is that of queries."""
    return QUERY if prompt_name == QUERY else DOCUMENT


def route_modules(folder: Path, side: str | None) -> list[tuple[str, str]]:
    """Return class and path of the modules that embed a side; in a plain folder, of all modules.

    Raises:
        InputError: It is a Router and the side is None, or the Router has other routes.
        DamagedFileError: A file does not hold modules.
    """
    modules = folder_modules(folder)
    kinds = [kind for kind, _ in modules]
    if ROUTER not in kinds:
        return modules
    if side is None:
        _refuse(folder, "is a Router of two encoders", "Name one of the two models it was made of")
    if kinds[0] != ROUTER:
        _refuse(folder, f"has the modules {', '.join(kinds)}")
    (_, place), *behind = modules
    route = [*_route(folder, place, side), *behind]
    # Routes made of whole models have one, and so has the example of the library behind them.
    while [kind for kind, _ in route[-2:]] == [_NORMALISING] * 2:
        route.pop()
    return route


def _route(folder: Path, place: str, side: str) -> list[tuple[str, str]]:
    """Return the modules of a route, with their paths from the folder on."""
    path = folder / place / ROUTER_FILE
    if not path.is_file():
        _refuse(folder, f"has no {ROUTER_FILE}", "Copy the whole folder again")
    known = records.read(path, _RouterFile)
    check_keys(path, records.read_object(path), _FILE_KEYS)
    check_keys(path, known["parameters"], _PARAMETERS)
    if {*known["structure"]} != {*SIDES}:
        _refuse(folder, f"has the routes {', '.join(known['structure']) or 'none'}")
    _check_default(folder, known)
    modules = []
    for name in known["structure"][side]:
        if name not in known["types"]:
            _refuse(folder, f"has no type of {name} in its {ROUTER_FILE}")
        check_module(folder, path, known["types"][name], name)
        modules.append((module_kind(known["types"][name]), str(PurePosixPath(place, name))))
    if not modules or modules[0][0] not in _FIRST:
        named = ", ".join(kind for kind, _ in modules) or "none"
        _refuse(folder, f"has the modules {named} for a {side}")
    return modules


def _check_default(folder: Path, known: _RouterFile) -> None:
    """Refuse a Router that takes texts for queries unless they are called documents."""
    default = known["parameters"].get("default_route")
    if default is None and known["parameters"].get("allow_empty_key", True):
        default = next(iter(known["structure"]))
    if default not in (None, DOCUMENT):
        _refuse(
            folder,
            f"embeds any text by its route `{default}`",
            f"Set default_route to `{DOCUMENT}` in its {ROUTER_FILE}",
        )


def _refuse(folder: Path, problem: str, remedy: str = _OTHER_MODEL) -> NoReturn:
    raise InputError(KEY, f"{folder} {problem}", remedy)
