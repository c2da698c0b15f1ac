"""The corpus of a benchmark: the embedded default, a prepared folder, or real captions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pipelines.errors import InputError
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.jobs.prepare import prepare
from pipelines.settings import Config

CAPTIONS = "*captions-en-train.parquet"


def prepared(
    config: Config, data: str | None, change: Callable[[Config], Config] = lambda config: config
) -> Config:
    """The configuration with its lanes prepared.

    Args:
        data: A prepared folder, or one that holds captions (Parquet, columns `image` and
            `text`) at any depth; None for the embedded default.
        change: Of the settings that name the data, before anything is prepared.

    Raises:
        InputError: The folder holds neither, or lanes that the change does not take.
    """
    named = Path(data).absolute() if data is not None else None
    holds_lanes = named is not None and PreparedFolder(named).lanes.manifest.is_file()
    if named is not None:
        config = _with_data(config, named)
    changed = change(config)
    if not holds_lanes:
        # What was prepared before is kept where nothing has changed.
        prepare(changed)
    elif changed.prepared != config.prepared:
        raise InputError(
            "--data",
            f"{data} holds lanes, and this is trained on other ones",
            "name the folder of the texts, or leave it out for the embedded default",
        )
    return changed


def _with_data(config: Config, folder: Path) -> Config:
    if PreparedFolder(folder).lanes.manifest.is_file():
        return _replaced(config, "prepared", folder=str(folder))
    captions = sorted(folder.rglob(CAPTIONS))
    if not captions:
        raise InputError(
            "--data",
            f"{folder} holds neither lanes nor {CAPTIONS}",
            "name a prepared folder, or leave it out for the embedded default",
        )
    config = _replaced(
        config,
        "corpus",
        inputs=(str(captions[0]),),
        format="parquet",
        pairs="group",
        group_column="image",
        text_column="text",
    )
    return _replaced(config, "prepared", folder=f"{config.prepared.folder}-captions")


def _replaced(config: Config, section: str, **values: object) -> Config:
    changed = getattr(config, section).model_copy(update=values)
    return config.model_copy(update={section: changed})
