"""The plan of an embedding job, checked and written before any row is embedded.

`_plan.json` says what the vectors follow from, and which rows of which file each part holds. It is
the first thing in the folder of a table. Names that begin with an underscore are no data to Spark,
pandas and pyarrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from pipelines.embedding.executor import Columns
from pipelines.embedding.footers import in_threads, read_part_footer
from pipelines.embedding.inputs import input_stamps
from pipelines.embedding.options import EmbeddingOptions, embedding_options
from pipelines.embedding.overlap_check import check_no_overlap
from pipelines.embedding.partitions import constants_from
from pipelines.embedding.parts import RowRange
from pipelines.errors import InputError
from pipelines.files import records, storage
from pipelines.files.locations import Location, RemotePath, location
from pipelines.files.run_folder import RunFolder
from pipelines.files.versions import current
from pipelines.settings import Config, EmbeddingSettings, StorageSettings
from pipelines.settings.spark import DEFAULT_STORES

PLAN_FILE = "_plan.json"
MANIFEST_FILE = "_manifest.json"
STAGED = "_input"
ATTEMPTS = "_attempts"
KEPT = "_kept"
"""Vectors that rows keep, until their part is made."""
MERGED_FILE = "_merged.json"
"""Into which table the rows have been merged."""
INDEX_FOLDER = "_index"
"""Of :mod:`pipelines.search.index`; its files are called as the parts that they are of."""

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
