"""The sections `run`, `card` and `tracking`: the folder, model card and trackers of a run."""

from __future__ import annotations

import re

from pydantic import Field

from pipelines.catalog import TRACKERS
from pipelines.errors import InputError
from pipelines.settings.base import NameOrPath, Settings, StoredPath


class RunSettings(Settings):
    """The place of a run's results."""

    folder: StoredPath = "runs/default"
    """Folder that the driver and every executor can reach."""
    overwrite: bool = False
    """Delete a run that the folder holds, and start over."""
    only_new: bool = False
    """`train` and `embed` end with exit code 4, before they start Spark, if nothing is new: the
    model in service was trained in the same way on the same lanes; the table has been made of the
    same model and inputs."""
    keep: int = Field(default=5, ge=0)
    """Other runs beside `run.folder` that `clean` keeps, the newest first; those of models that are
    kept in `promotion.target` stay as well."""


# As the hub has them: a name, or an owner and a name.
_REPOSITORY = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)
_LANGUAGE = re.compile(r"[a-z]{2,3}|multilingual|code")


class CardSettings(Settings):
    """What the model card says that nothing else tells. Nothing of it is ever guessed."""

    name: str | None = None
    """Of the model; unset: that of the run."""
    license: str | None = None
    """Of the model, as the Hugging Face hub calls it (`apache-2.0`, `cc-by-sa-4.0`); one that the
    hub does not know is named as it is. Unset: the card names none."""
    license_link: str | None = None
    """Where the licence can be read, `LICENSE` or an address."""
    languages: tuple[str, ...] = ()
    """Languages of the texts (ISO 639 codes, or `multilingual`); empty: those of
    `corpus.languages`."""
    start_name: str | None = None
    """Name on the hub of `encoder.start` (`OWNER/NAME`). Unset: that of the packaged start, or of
    one in the hub's cache; the card tells others as they are set."""
    datasets: tuple[str, ...] = ()
    """Names on the hub of what the texts are taken from."""
    data_description: str | None = None
    """What the texts are, and where they are from, in a few words."""
    data_license: str | None = None
    """Licence of the texts, in a few words."""

    def check(self) -> None:
        """Refuse names that the hub would not take."""
        base = () if self.start_name is None else (self.start_name,)
        named = [("start_name", name) for name in base]
        for key, name in [*named, *(("datasets", name) for name in self.datasets)]:
            if _REPOSITORY.fullmatch(name) is None:
                raise InputError(
                    f"card.{key}", f"`{name}` is no name on the hub", "write OWNER/NAME"
                )
        for language in self.languages:
            if _LANGUAGE.fullmatch(language) is None:
                raise InputError(
                    "card.languages",
                    f"`{language}` is no ISO 639 code",
                    "two or three letters such as `en`, `multilingual` or `code`",
                )


class TrackingSettings(Settings):
    """Where a run can be followed, beside its own folder."""

    trackers: tuple[str, ...] = ()
    """Any of `mlflow` and `tensorboard`; see [tracking](../concepts/tracking.md)."""
    mlflow_uri: NameOrPath | None = None
    """Tracking server or store. Unset: as MLflow finds it, by `MLFLOW_TRACKING_URI` or on
    Databricks."""
    mlflow_experiment: str | None = None
    """Experiment, created if there is none. Unset: as MLflow finds it."""
    mlflow_run_name: str | None = None
    """Name of the run; that of `run.folder` unless set."""
    mlflow_registered_model: str | None = None
    """Register the model as a version of this one."""
    tensorboard_folder: StoredPath | None = None
    """Event files go to a folder in it that is named after `run.folder`; unset: to `tensorboard` in
    `run.folder`."""
    wait_seconds: int = Field(default=60, ge=0)
    """Longest that a job waits at its end for trackers to take what is left."""

    def check(self) -> None:
        """Refuse trackers named twice, and settings of trackers that are not named."""
        for name in self.trackers:
            if self.trackers.count(name) > 1:
                raise InputError("tracking.trackers", f"{name} is named twice", "name it once")
        for key, value in self:
            tracker = key.partition("_")[0]
            if tracker in TRACKERS and value and tracker not in self.trackers:
                raise InputError(
                    f"tracking.{key}",
                    f"{tracker} is not one of tracking.trackers",
                    f"add {tracker} to tracking.trackers",
                )
