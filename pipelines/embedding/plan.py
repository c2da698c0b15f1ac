"""The plan of an embedding job, checked and written before any row is embedded.

`_plan.json` says what the vectors follow from, and which rows of which file each part holds. It is
the first thing in the output folder. Names that begin with an underscore are no data to Spark,
pandas and pyarrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipelines.embedding.column import check_columns
from pipelines.embedding.executor import Columns
from pipelines.embedding.inputs import input_stamps, parquet_files, schema_of, stage_table
from pipelines.embedding.options import EmbeddingOptions, embedding_options
from pipelines.embedding.overlap_check import check_no_overlap
from pipelines.embedding.partitions import Constants, constants_from, partition_columns
from pipelines.embedding.parts import RowRange, cut_files
from pipelines.embedding.schemas import check_timestamps
from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.files.copies import local_folder
from pipelines.files.run_folder import RunFolder
from pipelines.settings import Config, EmbeddingSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAN_FILE = "_plan.json"
MANIFEST_FILE = "_manifest.json"
STAGED = "_input"
ATTEMPTS = "_attempts"

_OURS = (PLAN_FILE, MANIFEST_FILE, STAGED, ATTEMPTS)
_INPUTS = "embedding.inputs"
_OUTPUT = "embedding.output"
_OVERWRITE = "set embedding.overwrite=true to make the table again"
_FOLLOWED = (
    "text_column",
    "output_column",
    "prompt_name",
    "dimensions",
    "quantise",
    "backend",
    "precision",
    "part_rows",
)
"""Settings that the table follows from, beside model and inputs."""


@dataclass(frozen=True)
class Plan:
    """What is written when a table is begun.

    Attributes:
        identity: What decides the content of the table, by setting.
        backend: Who computes all of it, where the setting is ``auto`` too.
        precision: The same of the precision.
        parts: All of them, in order.
    """

    identity: Mapping[str, Any]
    backend: str
    precision: str
    parts: tuple[RowRange, ...]


def check_job(config: Config) -> None:
    """Checks all that can be checked without Spark.

    Raises:
        InputError: See :func:`pipelines.embedding.table.embed_table`.
    """
    settings, options = config.embedding, options_of(config)
    identity = identity_of(settings, options)
    kept_plan(output_folder(settings), identity, overwrite=settings.overwrite)
    if settings.format == "parquet":
        constants = partition_columns(settings.inputs)
        _check_files(parquet_files(settings), constants, columns_of(settings), options)


def output_folder(settings: EmbeddingSettings) -> Path:
    """Where the table is."""
    return Path(settings.output).expanduser().absolute()


def columns_of(settings: EmbeddingSettings) -> Columns:
    """The columns of text and vectors."""
    return Columns(text=settings.text_column, vector=settings.output_column)


def model_folder(config: Config) -> Path:
    """The model that the settings name: ``embedding.model``, or that of the run."""
    named = config.embedding.model
    return Path(named) if named is not None else local_folder(RunFolder.of(config).model)


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


def identity_of(settings: EmbeddingSettings, options: EmbeddingOptions) -> dict[str, Any]:
    """What decides the content of the table, by setting.

    Raises:
        InputError: An input is not there, or inputs and output are within one another.
    """
    if settings.inputs:
        check_no_overlap(settings, output_folder(settings))
    asked = settings.model_dump(mode="json")
    return {
        "embedding.model": options.model_sha256,
        "embedding.inputs": [list(settings.inputs), input_stamps(settings)],
        "embedding.format": settings.format,
        **{f"embedding.{name}": asked[name] for name in _FOLLOWED},
    }


def kept_plan(folder: Path, identity: Mapping[str, Any], *, overwrite: bool) -> Plan | None:
    """The plan that the folder was begun with; None where there is to be a new one.

    An unfinished table of the same goes on, also where a finished one would be overwritten: a job
    that is started again is to make what is missing. Nothing is changed.

    Raises:
        InputError: The folder holds other files, or a table that follows from something else, or
            from inputs that may have changed since.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(_OUTPUT, f"{folder} is a file", "name a folder")
    if not (folder / PLAN_FILE).is_file():
        if folder.is_dir() and any(path.name not in _OURS for path in folder.iterdir()):
            raise InputError(_OUTPUT, f"{folder} holds other files", "name an empty folder")
        return None
    plan = _read_plan(folder / PLAN_FILE)
    is_finished = (folder / MANIFEST_FILE).is_file()
    other = next((key for key, value in identity.items() if plan.identity.get(key) != value), None)
    if overwrite:
        return plan if other is None and not is_finished else None
    if other is not None:
        begun_with = _difference(other, plan.identity.get(other), identity[other])
        raise InputError(
            other,
            f"{folder} was begun with {begun_with}",
            "put it back, name another embedding.output, or set embedding.overwrite=true",
        )
    names, stamps = identity[_INPUTS]
    if is_finished and stamps is None:
        problem = f"whether {', '.join(names)} has changed since {folder} was made cannot be known"
        raise InputError(_INPUTS, problem, _OVERWRITE)
    return plan


def _read_plan(path: Path) -> Plan:
    known = storage.read_json(path)
    parts = (
        RowRange(**{**part, "constants": constants_from(part["constants"])})
        for part in known["parts"]
    )
    return Plan(known["identity"], known["backend"], known["precision"], tuple(parts))


def _difference(key: str, known: Any, value: Any) -> str:
    if key == "embedding.model":
        return "another model"
    if key == _INPUTS:
        same = known is not None and known[0] == value[0]
        return "other content of the same inputs" if same else f"{known and known[0]}"
    return " and not ".join("unset" if one is None else f"`{one}`" for one in (known, value))


def new_plan(
    session: SparkSession,
    settings: EmbeddingSettings,
    folder: Path,
    identity: Mapping[str, Any],
    columns: Columns,
    options: EmbeddingOptions,
) -> Plan:
    """Begins a table: a folder with its plan, in the place of what was there.

    That goes only when the new input has been looked at.

    Args:
        session: Reads inputs that are not Parquet.
        settings: The inputs.
        folder: Of the table.
        identity: What it follows from.
        columns: Names.
        options: With a backend and a precision that are not ``auto``.

    Raises:
        InputError: The input cannot be used; what was there stays.
    """
    if folder.is_symlink():
        raise InputError(_OUTPUT, f"{folder} is a link", f"name {folder.resolve()}")
    with storage.built_folder(folder) as aside:
        files, constants = _files(session, settings, aside, folder)
        _check_files(files, constants, columns, options)
        parts = cut_files(files, settings.part_rows, constants)
        _check_rows(parts)
        final = tuple(replace(part, path=_final(part.path, aside, folder)) for part in parts)
        plan = Plan(dict(identity), options.backend, options.precision, final)
        storage.write_json(aside / PLAN_FILE, asdict(plan))
    return plan


def _final(path: str, aside: Path, folder: Path) -> str:
    """Where a file will be once the folder is renamed."""
    file = Path(path)
    return str(folder / file.relative_to(aside)) if file.is_relative_to(aside) else path


def missing_parts(folder: Path, plan: Plan) -> list[RowRange]:
    """The parts that are to be made.

    Raises:
        InputError: The rows of one are not there any more.
    """
    missing = [part for part in plan.parts if not part_file(folder, part).is_file()]
    for part in missing:
        if Path(part.path).parent == folder / STAGED and not Path(part.path).is_file():
            problem = f"{part_file(folder, part)} is gone, and so is the copy of its rows"
            raise InputError(_OUTPUT, problem, _OVERWRITE)
    return missing


def part_file(folder: Path, part: RowRange) -> Path:
    """The file of a part."""
    return folder / f"{part.name}.parquet"


def _check_rows(parts: Sequence[RowRange]) -> None:
    if not parts:
        raise InputError(_INPUTS, "they hold no rows", "name a table that has some")


def _files(
    session: SparkSession, settings: EmbeddingSettings, aside: Path, folder: Path
) -> tuple[list[Path], Mapping[Path, Constants]]:
    """The input as Parquet files, with the columns in the names of their folders."""
    if settings.format == "parquet":
        return parquet_files(settings), partition_columns(settings.inputs)
    stage_table(session, settings, aside / STAGED, folder)
    return sorted((aside / STAGED).glob("part-*.parquet")), {}


def _check_files(
    files: Sequence[Path],
    constants: Mapping[Path, Constants],
    columns: Columns,
    options: EmbeddingOptions,
) -> None:
    for file in files:
        named = {one.name: one.type == "string" for one in constants.get(file, ())}
        is_text = named | {field.name: _is_text(field.type) for field in schema_of(file)}
        where = "the table" if file.parent.name == STAGED else str(file)
        check_columns(is_text, columns, options, where)
        check_timestamps(file)


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
