"""The plan of a table of vectors, and the choice of the table for an embedding job.

`_plan.json` is the first file in the folder of a table. It records the sources of the vectors, and
the input rows of each part. A job continues a table with the same plan, or begins a new one,
perhaps with vectors of an earlier one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.errors import DamagedFileError, InputError
from pipelines.files import records, storage, versions
from pipelines.files.begun import begun_folders, check_places, discard_begun, take_place
from pipelines.files.locations import Location, as_local, location
from pipelines.files.ownership import TABLE
from pipelines.files.run_folder import RunFolder
from pipelines.models.identity import has_embedded
from pipelines.settings import Config, StorageSettings
from pipelines.settings.spark import DEFAULT_STORES
from pipelines.tokens.router import side_of
from pipelines.vectors.embedding import EmbeddingOptions, embedding_options, model_folder
from pipelines.vectors.int8 import Int8Form
from pipelines.vectors.parts import Constant, RowRange
from pipelines.vectors.table_job import (
    INDEX_FOLDER,
    MANIFEST_FILE,
    PLAN_FILE,
    STAGED,
    missing_parts,
)

INPUTS = "embedding.inputs"
OUTPUT = "embedding.output"
KEY_COLUMN = "embedding.key_column"
OVERWRITE = "Set embedding.overwrite=true to make the table again"

VECTOR_KEYS = (
    "embedding.model",
    "embedding.prompt_name",
    "embedding.dimensions",
    "embedding.quantise",
    "embedding.backend",
    "embedding.precision",
)
"""Settings with effect on the vector of a text."""
LAYOUT_KEYS = ("embedding.format", "embedding.text_column", "embedding.output_column")
"""Settings with effect on the rest of a part's file, beside the rows of its input."""


@dataclass(frozen=True)
class Changes:
    """Numbers of rows by their change since the earlier table.

    Rows ``unchanged`` keep their vectors; ``changed`` ones have another text for a known key,
    ``new`` ones a new key; ``gone`` ones are of the earlier table.
    """

    unchanged: int
    changed: int
    new: int
    gone: int

    def __str__(self) -> str:
        return ", ".join(f"{count:,} {name}" for name, count in asdict(self).items())


@dataclass(frozen=True)
class Plan:
    """The content of a table, written at its beginning.

    ``identity`` holds the settings with effect on the content; ``backend`` and ``precision`` are
    resolved from ``auto``. ``parts`` are in order. ``build`` numbers the tables made in this place,
    so no name of a part is ever reused for other content. ``changes`` are since the earlier table,
    if rows were compared. ``int8`` is for int8 matrix products; their calibration is in
    :data:`~pipelines.vectors.int8.CALIBRATION_FILE`.
    """

    identity: Mapping[str, Any]
    backend: str
    precision: str
    parts: tuple[RowRange, ...]
    build: int = 0
    changes: Changes | None = None
    int8: Int8Form | None = None

    @classmethod
    def parse(cls, known: dict[str, Any], stores: StorageSettings) -> Plan:
        """Return the plan parsed from JSON."""
        parts = tuple(_part_from(part, stores) for part in known.pop("parts"))
        changes, int8 = known.pop("changes", None), known.pop("int8", None)
        return cls(
            **known,
            parts=parts,
            changes=changes and Changes(**changes),
            int8=int8 and Int8Form(**int8),
        )

    def write(self, folder: Location) -> None:
        """Write the plan into the folder of its table."""
        parts = [_as_json(part) for part in self.parts]
        known = {"changes": self.changes, "int8": self.int8}
        fields = {name: value and asdict(value) for name, value in known.items()}
        storage.write_json(folder / PLAN_FILE, {**vars(self), "parts": parts, **fields})


def _as_json(part: RowRange) -> dict[str, Any]:
    copied_from = None if part.copied_from is None else str(part.copied_from)
    constants = [asdict(constant) for constant in part.constants]
    known = {"path": str(part.path), "constants": constants, "copied_from": copied_from}
    return {**vars(part), **known}


def _part_from(known: Mapping[str, Any], stores: StorageSettings) -> RowRange:
    copied_from = known.get("copied_from") and location(known["copied_from"], stores)
    constants = tuple(Constant(**constant) for constant in known["constants"])
    path = location(known["path"], stores)
    return RowRange(**{**known, "path": path, "constants": constants, "copied_from": copied_from})


@dataclass(frozen=True)
class Version:
    """A table, finished or not; in a store, ``folder`` is a version of its place."""

    folder: Location
    plan: Plan
    is_whole: bool

    def file(self, part: RowRange) -> Location:
        """Return the file of a part."""
        return part_file(self.folder, part)

    def differing(self, identity: Mapping[str, Any]) -> str | None:
        """Return the first setting of this identity with another value in the table."""
        known = self.plan.identity
        return next((key for key, value in identity.items() if known.get(key) != value), None)

    def other_vectors(self, identity: Mapping[str, Any]) -> list[str]:
        """Return the settings with effect on vectors and other values in the table.

        A backend or precision of ``auto`` accepts that of the table.
        """
        plan = self.plan
        chosen = {"embedding.backend": plan.backend, "embedding.precision": plan.precision}
        return [
            key
            for key in VECTOR_KEYS
            if plan.identity.get(key) != identity[key]
            and not (key in chosen and identity[key] in ("auto", chosen[key]))
        ]

    def has_same_files(self, identity: Mapping[str, Any]) -> bool:
        """Return whether parts have the wanted file layout, given the same rows and vectors."""
        return all(self.plan.identity.get(key) == identity[key] for key in LAYOUT_KEYS)

    def missing(self) -> list[RowRange]:
        """Return the parts to make.

        Raises:
            InputError: The rows of a missing part no longer exist.
        """
        names = {*missing_parts(self.folder, {part.name: part.rows for part in self.plan.parts})}
        missing = [part for part in self.plan.parts if part.name in names]
        for part in missing:
            if part.path.parent.name == STAGED and not part.path.is_file():
                problem = f"{self.file(part)} is gone, and so is the copy of its rows"
                raise InputError(OUTPUT, problem, OVERWRITE)
        return missing


def part_file(folder: Location, part: RowRange) -> Location:
    """Return the file of a part."""
    return folder / f"{part.name}.parquet"


def read_version(folder: Location, stores: StorageSettings = DEFAULT_STORES) -> Version | None:
    """Return the table in a folder (in a store, a version); None without a plan.

    Raises:
        DamagedFileError: The plan cannot be read.
    """
    if not (folder / PLAN_FILE).is_file():
        return None
    plan = records.built(folder / PLAN_FILE, partial(Plan.parse, stores=stores))
    return Version(folder, plan, (folder / MANIFEST_FILE).is_file())


def output_folder(config: Config) -> Location:
    """Return the place of the table."""
    return location(config.embedding.output, config.storage).expanduser().absolute()


def options_for(
    config: Config,
    named: str | None,
    *,
    prompt_name: str | None = None,
    quantise: str = "none",
) -> EmbeddingOptions:
    """Return the options of a model, with the computation of the section ``embedding``.

    ``named`` is the model's folder or `default`; None means that of the run. For the others see
    :class:`~pipelines.vectors.embedding.EmbeddingOptions`.

    Raises:
        InputError: There is no such model, or the options do not fit it.
    """
    settings = config.embedding
    return embedding_options(
        RunFolder.of(config).model if named is None else model_folder(named, config.storage),
        backend=settings.backend,
        precision=settings.precision,
        batch_tokens=settings.batch_tokens,
        prompt_name=prompt_name,
        dimensions=settings.dimensions,
        quantise=quantise,
    )


def digest_known_in(folder: Location, options: EmbeddingOptions, stores: StorageSettings) -> str:
    """Return the digest by which the tables in a place know a model.

    A table of an earlier release keeps its digest, and so its vectors.
    """
    side = side_of(options.prompt_name)
    for place in (versions.current(folder), *begun_folders(folder)):
        # A damaged plan is told once the work is chosen.
        with suppress(DamagedFileError):
            version = read_version(place, stores)
            known = version and version.plan.identity.get("embedding.model")
            if isinstance(known, str) and has_embedded(known, options.model, side):
                return known
    return options.made_by


@dataclass(frozen=True)
class Work:
    """The work of a job.

    ``goes_on`` is the table to continue, or a whole one; None for a new table. A new one has the
    number ``build``, and may take vectors from the tables ``before``, whole ones first.
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
    """Return a job's work in the folder of a table, without changing anything.

    An unfinished table of the same identity goes on, even if ``overwrite`` would replace a finished
    one: a restarted job is to make the missing parts. With ``overwrite`` a new table replaces any
    other.

    Raises:
        InputError: The folder holds other files, or a table without keys from other settings or
            perhaps changed inputs.
    """
    current = versions.current(folder)
    check_places(OUTPUT, folder, TABLE)
    in_place = read_version(current, stores)
    found = (*_begun(folder, in_place, stores), *([in_place] if in_place is not None else []))
    build = max((version.plan.build + 1 for version in found), default=0)
    same = next((version for version in found if version.differing(identity) is None), None)
    if same is not None:
        is_begun = not same.is_whole or same.folder != current
        if is_begun or (not overwrite and identity[INPUTS][1] is not None):
            return Work(same, (), build)
    if overwrite or not found:
        return Work(None, (), build)
    if identity[KEY_COLUMN] is not None:
        return Work(None, tuple(sorted(found, key=lambda version: not version.is_whole)), build)
    raise _refusal(found[0], folder, identity)


def _begun(
    folder: Location, in_place: Version | None, stores: StorageSettings
) -> Iterator[Version]:
    """Yield the unfinished tables for this place, the newest first."""
    read = (read_version(place, stores) for place in begun_folders(folder))
    known = [version for version in read if version is not None]
    for version in sorted(known, key=lambda version: -version.plan.build):
        # A replaced table, left over by a killed job, has a lower number.
        if in_place is None or version.plan.build > in_place.plan.build:
            yield version


def _refusal(version: Version, folder: Location, identity: Mapping[str, Any]) -> InputError:
    differing = version.differing(identity)
    if differing is None:
        names = ", ".join(identity[INPUTS][0])
        problem = f"it is unknown whether {names} has changed since {folder} was made"
        remedy = "Set embedding.key_column, or set embedding.overwrite=true to make the table again"
        return InputError(INPUTS, problem, remedy)
    begun_with = _difference(differing, version.plan.identity.get(differing), identity[differing])
    return InputError(
        differing,
        f"{folder} was begun with {begun_with}",
        "Restore the setting, name another embedding.output, set embedding.key_column to update "
        "the table, or set embedding.overwrite=true",
    )


def _difference(key: str, known: Any, value: Any) -> str:
    if key == "embedding.model":
        return "another model"
    if key == INPUTS:
        same = known is not None and known[0] == value[0]
        return "other content of the same inputs" if same else f"{known and known[0]}"
    return ", not ".join("unset" if shown is None else f"`{shown}`" for shown in (known, value))


def publish(version: Version, folder: Location) -> None:
    """Move a whole table to its place.

    The old table goes, except the index of common parts. In a store it stays until the next
    publication, for its current readers.
    """
    if version.folder == versions.current(folder):
        # Remains of an earlier attempt at another table.
        discard_begun(folder)
        return
    old_index, new_index = as_local(folder / INDEX_FOLDER), as_local(version.folder / INDEX_FOLDER)
    if old_index is not None and new_index is not None:
        _keep_index(old_index, new_index, (part.name for part in version.plan.parts))
    take_place(version.folder, folder)


def _keep_index(old_index: Path, new_index: Path, names: Iterable[str]) -> None:
    """Link the index of kept parts; without a link, an index is rebuilt on demand."""
    kept = frozenset(names)
    if not old_index.is_dir() or new_index.exists():
        return
    new_index.mkdir()
    for file in old_index.iterdir():
        if file.suffix == ".json":
            shutil.copyfile(file, new_index / file.name)
        elif file.stem in kept:
            with suppress(OSError):
                storage.link(file, new_index / file.name)
