"""What an embedding job is to make, checked and written down before anything is made.

`_plan.json` says what the vectors follow from, and which rows of which file each part holds. It is
the first thing in the output folder. Names that begin with an underscore are no data to Spark,
pandas and pyarrow.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipelines import storage
from pipelines.embedding.column import check_columns
from pipelines.embedding.executor import Columns
from pipelines.embedding.inputs import input_stamps, parquet_files, schema_of, stage_table
from pipelines.embedding.options import EmbeddingOptions, embedding_options
from pipelines.embedding.parts import Part, cut_files
from pipelines.errors import InputError
from pipelines.settings import Config, EmbeddingSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAN_FILE = "_plan.json"
MANIFEST_FILE = "_manifest.json"
STAGED = "_input"
ATTEMPTS = "_attempts"

_OURS = (PLAN_FILE, MANIFEST_FILE, STAGED, ATTEMPTS)
_OUTPUT = "embedding.output"
_FOLLOWED = (
    "text_column",
    "output_column",
    "dimensions",
    "quantise",
    "backend",
    "precision",
    "part_rows",
)
"""Settings that the table follows from, beside model and inputs."""


def check_job(config: Config) -> None:
    """Looks at all that can be seen without Spark.

    Raises:
        InputError: See :func:`pipelines.embedding.table.embed_table`.
    """
    settings, options = config.embedding, options_of(config)
    identity = identity_of(settings, options)
    check_folder(output_folder(settings), identity, overwrite=settings.overwrite)
    if settings.format == "parquet":
        _check_files(parquet_files(settings), columns_of(settings), options)


def output_folder(settings: EmbeddingSettings) -> Path:
    """Where the table is."""
    return Path(settings.output).expanduser().absolute()


def columns_of(settings: EmbeddingSettings) -> Columns:
    """The columns of text and vectors."""
    return Columns(text=settings.text_column, vector=settings.output_column)


def model_folder(config: Config) -> Path:
    """The model that the settings name: ``embedding.model``, or that of the run."""
    named = config.embedding.model
    return Path(named) if named is not None else Path(config.run.folder) / "model"


def options_of(config: Config, threads: int = 1, backend: str | None = None) -> EmbeddingOptions:
    """The options that the section ``embedding`` asks for.

    Args:
        config: The configuration.
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
        dimensions=settings.dimensions,
        quantise=settings.quantise,
    )


def identity_of(settings: EmbeddingSettings, options: EmbeddingOptions) -> dict[str, Any]:
    """What the table follows from, by the setting that decides it.

    Raises:
        InputError: An input is not there, or the output is among the inputs.
    """
    folder = output_folder(settings)
    if any(folder.is_relative_to(Path(given).expanduser().absolute()) for given in settings.inputs):
        raise InputError(_OUTPUT, f"{folder} is within the inputs", "name a folder beside them")
    asked = settings.model_dump(mode="json")
    return {
        "embedding.model": options.model_sha256,
        "embedding.inputs": [list(settings.inputs), input_stamps(settings)],
        "embedding.format": settings.format,
        **{f"embedding.{name}": asked[name] for name in _FOLLOWED},
    }


def open_folder(folder: Path, identity: Mapping[str, Any], *, overwrite: bool) -> None:
    """Makes the folder, or opens one that was begun with the same; what is refused stays.

    Raises:
        InputError: It holds other files, or a table that follows from something else.
    """
    check_folder(folder, identity, overwrite=overwrite)
    if (folder / PLAN_FILE).is_file() and not overwrite:
        return
    if folder.is_dir():
        storage.remove_folder(folder)
    folder.mkdir(parents=True)


def check_folder(folder: Path, identity: Mapping[str, Any], *, overwrite: bool) -> None:
    """See :func:`open_folder`; changes nothing."""
    if folder.exists() and not folder.is_dir():
        raise InputError(_OUTPUT, f"{folder} is a file", "name a folder")
    held = folder / PLAN_FILE
    if not held.is_file():
        if folder.is_dir() and any(path.name not in _OURS for path in folder.iterdir()):
            raise InputError(_OUTPUT, f"{folder} holds other files", "name an empty folder")
        return
    known = storage.read_json(held)["identity"]
    for key, value in identity.items():
        if known.get(key) != value and not overwrite:
            raise InputError(
                key,
                f"{folder} was begun with {_told(key, known.get(key), value)}",
                "put it back, name another embedding.output, or set embedding.overwrite=true",
            )


def _told(key: str, known: Any, value: Any) -> str:
    if key == "embedding.model":
        return "another model"
    if key == "embedding.inputs":
        same = known is not None and known[0] == value[0]
        return "other content of the same inputs" if same else f"{known and known[0]}"
    return " and not ".join("unset" if one is None else f"`{one}`" for one in (known, value))


def planned_parts(
    session: SparkSession,
    settings: EmbeddingSettings,
    folder: Path,
    identity: Mapping[str, Any],
    columns: Columns,
    options: EmbeddingOptions,
) -> list[Part]:
    """The parts as they were planned when the folder was begun, or now."""
    path = folder / PLAN_FILE
    if path.is_file():
        return [Part(**part) for part in storage.read_json(path)["parts"]]
    try:
        parts = cut_files(_files(session, settings, folder, columns, options), settings.part_rows)
        _check_rows(parts)
    except BaseException:
        shutil.rmtree(folder)
        raise
    plan = {"identity": dict(identity), "parts": [asdict(part) for part in parts]}
    storage.write_json(path, plan)
    return parts


def _check_rows(parts: Sequence[Part]) -> None:
    if not parts:
        raise InputError("embedding.inputs", "they hold no rows", "name a table that has some")


def _files(
    session: SparkSession,
    settings: EmbeddingSettings,
    folder: Path,
    columns: Columns,
    options: EmbeddingOptions,
) -> list[Path]:
    """The input as Parquet files that have the columns."""
    if settings.format == "parquet":
        files = parquet_files(settings)
    else:
        stage_table(session, settings, folder / STAGED)
        files = sorted((folder / STAGED).glob("part-*.parquet"))
    _check_files(files, columns, options)
    return files


def _check_files(files: Sequence[Path], columns: Columns, options: EmbeddingOptions) -> None:
    for file in files:
        is_text = {field.name: _is_text(field.type) for field in schema_of(file)}
        where = "the table" if file.parent.name == STAGED else str(file)
        check_columns(is_text, columns, options, where)


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
