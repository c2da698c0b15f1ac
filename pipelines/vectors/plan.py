"""The plan of an embedding job, checked and written before any row is embedded.

`_plan.json` says what the vectors follow from, and which rows of which file each part holds. It is
the first thing in the folder of a table. Names that begin with an underscore are no data to Spark,
pandas and pyarrow.

Where a table of vectors is, and where the next one is made until it takes its place.

On a file system the next one is made beside the table, in `.<name>.next`, and is renamed. In an
object store both are versions of the folder (:mod:`pipelines.files.versions`), one of which is the
current one.

Which table a job works on: one that it goes on with, or a new one, and what that may take over.

A new table is made apart from the one that is there (:mod:`pipelines.vectors.plan`), and takes
its place when it is whole. So `embedding.output` holds one whole table or the one before, at any
moment, and a job that was killed goes on where it stopped.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipelines.errors import InputError
from pipelines.files import locks, records, storage, versions
from pipelines.files.locations import Location, RemotePath, is_within, location
from pipelines.files.ownership import TABLE, Kind, check_ours
from pipelines.files.run_folder import RunFolder
from pipelines.files.versions import current
from pipelines.settings import Config, EmbeddingSettings, StorageSettings
from pipelines.settings.spark import DEFAULT_STORES
from pipelines.vectors.embedding import Columns, EmbeddingOptions, embedding_options
from pipelines.vectors.inputs import check_no_overlap, input_stamps
from pipelines.vectors.parts import RowRange, constants_from, in_threads, read_part_footer


@dataclass(frozen=True)
class Beginning:
    """A table that is begun.

    Attributes:
        aside: Where its first files are written.
        folder: Where these are when all of them are there, until the table is whole.
    """

    aside: Location
    folder: Location

    def final(self, path: Location) -> Location:
        """Where a file will be that may be one of the first."""
        if not is_within(path, self.aside):
            return path
        return self.folder.joinpath(*path.parts[len(self.aside.parts) :])


def next_folder(folder: Path) -> Path:
    """Where a table is made on a file system before it takes its place."""
    return folder.parent / f".{folder.name}.next"


def begun_folders(folder: Location) -> list[Location]:
    """Where there may be tables that have not taken their place, or have lost it."""
    if isinstance(folder, Path):
        return [next_folder(folder)]
    return list(versions.begun(folder))


def check_places(key: str, folder: Location, kind: Kind) -> None:
    """Refuses a place that would be replaced, and where a table is begun, if the user's are there.

    Raises:
        InputError: See :func:`pipelines.files.ownership.check_ours`.
    """
    check_ours(key, folder, kind, whole=True)
    if isinstance(folder, Path):
        check_ours(key, next_folder(folder), kind, whole=True)


@contextmanager
def beginning(folder: Location) -> Iterator[Beginning]:
    """Yields where a table is to be begun; an error inside leaves what was there before.

    Args:
        folder: The place that the table is to take; no other job works there.
    """
    if isinstance(folder, Path):
        final = next_folder(folder)
        with storage.built_folder(final) as aside:
            yield Beginning(aside, final)
        return
    version = versions.begin(folder)
    try:
        yield Beginning(version, version)
    except BaseException:
        # What cannot be removed now, the next job removes.
        with suppress(OSError):
            versions.clear(version)
        raise
    versions.remove_begun(folder, but=version)


def take_place(made: Location, folder: Location) -> None:
    """Has a table that is whole take its place."""
    if isinstance(made, RemotePath):
        versions.publish(made)
    else:
        assert isinstance(folder, Path), "a table is made where it is to be"
        storage.take_place(made, folder)


def discard_begun(folder: Location) -> None:
    """Removes tables that were begun and are not wanted any more."""
    if isinstance(folder, RemotePath):
        versions.remove_begun(folder)
    elif next_folder(folder).is_dir():
        # As a whole: half of it would have no mark, and nobody would know whose it is.
        storage.remove_folder(next_folder(folder))


def lock_file(folder: Location) -> Location:
    """The lock of a table: beside a folder that is replaced as a whole, in one of a store."""
    if isinstance(folder, RemotePath):
        return folder / locks.LOCK_FILE
    real = folder.resolve()
    return real.parent / f".{real.name}{locks.LOCK_FILE}"


PLAN_FILE = "_plan.json"
MANIFEST_FILE = "_manifest.json"
STAGED = "_input"
ATTEMPTS = "_attempts"
KEPT = "_kept"
"""Vectors that rows keep, until their part is made."""
MERGED_FILE = "_merged.json"
"""Into which table the rows have been merged."""
INDEX_FOLDER = "_index"
"""Of :mod:`pipelines.vectors.index`; its files are called as the parts that they are of."""

DELETED_FILE = "_deleted.json"
"""Which rows are kept out of the table."""

INPUTS = "embedding.inputs"
OUTPUT = "embedding.output"
KEY_COLUMN = "embedding.key_column"
OVERWRITE = "set embedding.overwrite=true to make the table again"

VECTOR_KEYS = (
    "embedding.model",
    *(
        f"embedding.{name}"
        for name in ("prompt_name", "dimensions", "quantise", "backend", "precision")
    ),
)
"""What the vector of a text follows from."""
LAYOUT_KEYS = ("embedding.format", "embedding.text_column", "embedding.output_column")
"""What else the file of a part follows from, beside the rows of its input."""


@dataclass(frozen=True)
class Changes:
    """Rows by what has become of them since the table before.

    Attributes:
        unchanged: They keep their vectors.
        changed: Their key was there, with another text.
        new: Their key was not there.
        gone: Of the table before.
    """

    unchanged: int
    changed: int
    new: int
    gone: int

    def __str__(self) -> str:
        return ", ".join(f"{count:,} {name}" for name, count in asdict(self).items())


@dataclass(frozen=True)
class Plan:
    """What is written when a table is begun.

    Attributes:
        identity: What decides the content of the table, by setting.
        backend: Who computes all of it, where the setting is ``auto`` too.
        precision: The same of the precision.
        parts: All of them, in order.
        build: Number of the table among those that were made in its place: a name of a part is
            never that of another content.
        changes: Since the table before, if rows were compared.
    """

    identity: Mapping[str, Any]
    backend: str
    precision: str
    parts: tuple[RowRange, ...]
    build: int = 0
    changes: Changes | None = None


@dataclass(frozen=True)
class Version:
    """A table, or the beginnings of one.

    Attributes:
        folder: Where it is; in a store a version of its place.
        plan: What it is made by.
        is_whole: Whether all of it has been made.
    """

    folder: Location
    plan: Plan
    is_whole: bool


def read_version(folder: Location, stores: StorageSettings = DEFAULT_STORES) -> Version | None:
    """The table in a folder; None where there is no plan of one.

    Args:
        folder: Of the table itself, in a store a version.
        stores: How the stores of its inputs are reached.

    Raises:
        DamagedFileError: There is a file that holds none.
    """
    if not (folder / PLAN_FILE).is_file():
        return None
    plan = records.built(folder / PLAN_FILE, partial(_plan_from, stores=stores))
    return Version(folder, plan, (folder / MANIFEST_FILE).is_file())


def _plan_from(known: dict[str, Any], stores: StorageSettings) -> Plan:
    parts = tuple(_part_from(part, stores) for part in known.pop("parts"))
    changes = known.pop("changes", None)
    return Plan(**known, parts=parts, changes=changes and Changes(**changes))


def write_plan(folder: Location, plan: Plan) -> None:
    """Writes a plan into the folder of its table."""
    parts = [_as_json(part) for part in plan.parts]
    changes = plan.changes and asdict(plan.changes)
    storage.write_json(folder / PLAN_FILE, {**vars(plan), "parts": parts, "changes": changes})


def _as_json(part: RowRange) -> dict[str, Any]:
    copied_from = None if part.copied_from is None else str(part.copied_from)
    constants = [asdict(constant) for constant in part.constants]
    known = {"path": str(part.path), "constants": constants, "copied_from": copied_from}
    return {**vars(part), **known}


def _part_from(known: Mapping[str, Any], stores: StorageSettings) -> RowRange:
    copied_from = known.get("copied_from") and location(known["copied_from"], stores)
    constants = constants_from(known["constants"])
    path = location(known["path"], stores)
    return RowRange(**{**known, "path": path, "constants": constants, "copied_from": copied_from})


def output_folder(
    settings: EmbeddingSettings, stores: StorageSettings = DEFAULT_STORES
) -> Location:
    """The place of the table."""
    return location(settings.output, stores).expanduser().absolute()


def columns_of(settings: EmbeddingSettings) -> Columns:
    """The columns of text and vectors."""
    return Columns(text=settings.text_column, vector=settings.output_column)


def model_folder(config: Config) -> Location:
    """The model that the settings name: ``embedding.model``, or that of the run."""
    named = config.embedding.model
    if named is None:
        return RunFolder.of(config).model
    return current(location(named, config.storage))


def options_of(config: Config, threads: int = 1, backend: str | None = None) -> EmbeddingOptions:
    """The options that the section ``embedding`` asks for.

    Args:
        threads: CPU threads of a task.
        backend: Instead of that of the settings.

    Raises:
        InputError: They do not fit the model, or there is none.
    """
    settings = config.embedding
    return embedding_options(
        model_folder(config),
        backend=backend or settings.backend,
        precision=settings.precision,
        threads=threads,
        batch_tokens=settings.batch_tokens,
        prompt_name=settings.prompt_name,
        dimensions=settings.dimensions,
        quantise=settings.quantise,
    )


def is_up_to_date(config: Config) -> bool:
    """Whether the table is finished, and of the same model, inputs and settings."""
    version = read_version(current(output_folder(config.embedding, config.storage)), config.storage)
    if version is None or not version.is_whole:
        return False
    identity = identity_of(config.embedding, options_of(config), config.storage)
    # Of tables by name it is not known whether they have changed.
    return identity[INPUTS][1] is not None and version.plan.identity == identity


def identity_of(
    settings: EmbeddingSettings, options: EmbeddingOptions, stores: StorageSettings = DEFAULT_STORES
) -> dict[str, Any]:
    """What decides the content of the table, by setting.

    Raises:
        InputError: An input is not there, or inputs and output are within one another.
    """
    if settings.inputs:
        check_no_overlap(settings, output_folder(settings, stores), stores)
    asked = settings.model_dump(mode="json")
    followed = (key.removeprefix("embedding.") for key in (*LAYOUT_KEYS, *VECTOR_KEYS[1:]))
    return {
        "embedding.model": options.model_sha256,
        INPUTS: [list(settings.inputs), input_stamps(settings, stores)],
        **{f"embedding.{name}": asked[name] for name in followed},
        KEY_COLUMN: settings.key_column,
    }


def missing_parts(version: Version) -> list[RowRange]:
    """The parts that are to be made.

    Raises:
        InputError: The rows of one are not there any more.
    """
    folder = version.folder
    there = {path.name for path in folder.glob("part-*.parquet")}
    made = [f"{part.name}.parquet" in there for part in version.plan.parts]
    if isinstance(folder, RemotePath):
        # What is left of an upload that broke off has the name of the part.
        candidates = zip(version.plan.parts, made, strict=True)
        made = in_threads(partial(_is_whole, folder=folder), candidates)
    missing = [part for part, done in zip(version.plan.parts, made, strict=True) if not done]
    for part in missing:
        if part.path.parent.name == STAGED and not part.path.is_file():
            problem = f"{part_file(folder, part)} is gone, and so is the copy of its rows"
            raise InputError(OUTPUT, problem, OVERWRITE)
    return missing


def _is_whole(candidate: tuple[RowRange, bool], *, folder: Location) -> bool:
    """Whether a part is there, with its footer."""
    part, is_there = candidate
    if not is_there:
        return False
    try:
        return read_part_footer(part_file(folder, part)).covers(part.rows)
    except pa.ArrowInvalid:
        return False


def part_file(folder: Location, part: RowRange) -> Location:
    """The file of a part."""
    return folder / f"{part.name}.parquet"


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
