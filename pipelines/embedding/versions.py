"""Which table a job works on: one that it goes on with, or a new one, and what that may take over.

A new table is made apart from the one that is there (:mod:`pipelines.embedding.places`), and takes
its place when it is whole. So `embedding.output` holds one whole table or the one before, at any
moment, and a job that was killed goes on where it stopped.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.embedding.places import begun_folders, check_places, discard_begun, take_place
from pipelines.embedding.plan import (
    INDEX_FOLDER,
    INPUTS,
    KEY_COLUMN,
    LAYOUT_KEYS,
    OUTPUT,
    OVERWRITE,
    VECTOR_KEYS,
    Version,
    part_file,
    read_version,
)
from pipelines.errors import InputError
from pipelines.files import versions
from pipelines.files.locations import Location
from pipelines.files.ownership import TABLE
from pipelines.settings import StorageSettings
from pipelines.settings.spark import DEFAULT_STORES

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Work:
    """What a job is to do.

    Attributes:
        goes_on: The table that is made further, or is whole; None where there is to be a new one.
        before: Tables that a new one may take vectors from; those that are whole come first.
        build: Number of a new one.
    """

    goes_on: Version | None
    before: tuple[Version, ...]
    build: int


def choose_work(
    folder: Location,
    identity: Mapping[str, Any],
    *,
    overwrite: bool,
    stores: StorageSettings = DEFAULT_STORES,
) -> Work:
    """What a job is to do in the folder of a table. Nothing is changed.

    An unfinished table of the same goes on, also where a finished one would be overwritten: a job
    that is started again is to make what is missing.

    Args:
        folder: Of the table.
        identity: What it is to follow from, by setting.
        overwrite: Whether a new one takes the place of any other.
        stores: How the stores of inputs are reached.

    Raises:
        InputError: The folder holds other files, or a table that follows from something else, or
            from inputs that may have changed since, and its rows have no keys.
    """
    there = versions.current(folder)
    check_places(OUTPUT, folder, TABLE)
    in_place = read_version(there, stores)
    found = (*_begun(folder, in_place, stores), *([in_place] if in_place is not None else []))
    build = max((version.plan.build + 1 for version in found), default=0)
    same = next((version for version in found if _differing(version, identity) is None), None)
    if same is not None and _goes_on(same, there, identity, overwrite=overwrite):
        return Work(same, (), build)
    if overwrite or not found:
        return Work(None, (), build)
    if identity[KEY_COLUMN] is not None:
        return Work(None, tuple(sorted(found, key=lambda version: not version.is_whole)), build)
    raise _refusal(found[0], folder, identity)


def _begun(
    folder: Location, in_place: Version | None, stores: StorageSettings
) -> Iterator[Version]:
    """Tables that are to take the place, the newest first."""
    read = (read_version(place, stores) for place in begun_folders(folder))
    known = [version for version in read if version is not None]
    for version in sorted(known, key=lambda version: -version.plan.build):
        # One that has lost the place, and that a killed job could not remove, has a lower number.
        if in_place is None or version.plan.build > in_place.plan.build:
            yield version


def _goes_on(
    version: Version, folder: Location, identity: Mapping[str, Any], *, overwrite: bool
) -> bool:
    if not version.is_whole or version.folder != folder:
        return True
    return not overwrite and identity[INPUTS][1] is not None


def _differing(version: Version, identity: Mapping[str, Any]) -> str | None:
    known = version.plan.identity
    return next((key for key, value in identity.items() if known.get(key) != value), None)


def _refusal(version: Version, folder: Location, identity: Mapping[str, Any]) -> InputError:
    other = _differing(version, identity)
    if other is None:
        names = ", ".join(identity[INPUTS][0])
        problem = f"whether {names} has changed since {folder} was made cannot be known"
        return InputError(INPUTS, problem, f"set embedding.key_column, or {OVERWRITE}")
    begun_with = _difference(other, version.plan.identity.get(other), identity[other])
    return InputError(
        other,
        f"{folder} was begun with {begun_with}",
        "put it back, name another embedding.output, set embedding.key_column to bring it up to "
        "date, or set embedding.overwrite=true",
    )


def _difference(key: str, known: Any, value: Any) -> str:
    if key == "embedding.model":
        return "another model"
    if key == INPUTS:
        same = known is not None and known[0] == value[0]
        return "other content of the same inputs" if same else f"{known and known[0]}"
    return " and not ".join("unset" if one is None else f"`{one}`" for one in (known, value))


def other_vectors(version: Version, identity: Mapping[str, Any]) -> list[str]:
    """The settings for which the vectors of a table are not those that are wanted.

    Where a backend or a precision is left to be chosen, that of the table does.
    """
    plan = version.plan
    chosen = {"embedding.backend": plan.backend, "embedding.precision": plan.precision}
    return [
        key
        for key in VECTOR_KEYS
        if plan.identity.get(key) != identity[key]
        and not (key in chosen and identity[key] in ("auto", chosen[key]))
    ]


def has_same_files(version: Version, identity: Mapping[str, Any]) -> bool:
    """Whether the files of a table are those that are wanted, where rows and vectors are."""
    return all(version.plan.identity.get(key) == identity[key] for key in LAYOUT_KEYS)


def publish(version: Version, folder: Location) -> None:
    """Has a table that is whole take its place.

    Args:
        version: Where it was made.
        folder: Its place; what is there goes, but for the index of parts that both have. In a store
            the table of before stays there until the next one, for those who still read it.
    """
    if version.folder == versions.current(folder):
        # An earlier attempt at another one.
        discard_begun(folder)
        return
    if isinstance(folder, Path) and isinstance(version.folder, Path):
        names = {part_file(folder, part).stem for part in version.plan.parts}
        _keep_index(folder / INDEX_FOLDER, version.folder / INDEX_FOLDER, names)
    take_place(version.folder, folder)


def _keep_index(there: Path, here: Path, names: Iterable[str]) -> None:
    """The index of parts that stay; what cannot be linked is built again when it is asked for."""
    kept = frozenset(names)
    if not there.is_dir() or here.exists():
        return
    here.mkdir()
    for file in there.iterdir():
        if file.suffix == ".json":
            shutil.copyfile(file, here / file.name)
        elif file.stem in kept:
            with suppress(OSError):
                (here / file.name).hardlink_to(file)
