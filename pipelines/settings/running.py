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
    """Folder of the run, shared by driver and executors."""
    overwrite: bool = False
    """Delete the folder's run, and start over."""
    only_new: bool = False
    """`train`, `embed` and `publish` end with exit code 4 before Spark starts if nothing is new:
    same training and lanes as the model in service; same model and inputs as the table; same table
    as in the store."""
    keep_start: bool = False
    """`evaluate` and `run` replace the model by the start unless they measure a gain: on judged
    sets, or without any on held-out pairs."""
    keep: int = Field(default=5, ge=0)
    """Number of other runs beside `run.folder` that `clean` keeps, newest first. Runs of models in
    `promotion.target` stay too."""


# As the hub has them: a name, or an owner and a name.
_REPOSITORY = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)
_LANGUAGE = re.compile(r"[a-z]{2,3}|multilingual|code")


class CardSettings(Settings):
    """Facts for the model card from the user only. The package never guesses them."""

    name: str | None = None
    """Model name. Null: that of the run."""
    license: str | None = None
    """Model licence, by its Hugging Face name (`apache-2.0`, `cc-by-sa-4.0`) or another. Null:
    that of the start, if its card names one."""
    license_link: str | None = None
    """Address of the licence, or `LICENSE`."""
    languages: tuple[str, ...] = ()
    """Languages of the texts (ISO 639 codes, or `multilingual`). Empty: `corpus.languages`."""
    start_name: str | None = None
    """Hub name of `encoder.start` (`OWNER/NAME`). Null: known for the packaged start and the hub's
    cache; otherwise as set."""
    datasets: tuple[str, ...] = ()
    """Hub names of the texts' datasets."""
    data_description: str | None = None
    """Content and origin of the texts, in a few words."""
    data_license: str | None = None
    """Licence of the texts, in a few words."""

    def check(self) -> None:
        """Refuse names outside the hub's rules."""
        base = () if self.start_name is None else (self.start_name,)
        named = [("start_name", name) for name in base]
        for key, name in [*named, *(("datasets", name) for name in self.datasets)]:
            if _REPOSITORY.fullmatch(name) is None:
                raise InputError(
                    f"card.{key}", f"`{name}` is no name on the hub", "Write OWNER/NAME"
                )
        for language in self.languages:
            if _LANGUAGE.fullmatch(language) is None:
                raise InputError(
                    "card.languages",
                    f"`{language}` is no ISO 639 code",
                    "Write two or three letters such as `en`, or `multilingual` or `code`",
                )


class TrackingSettings(Settings):
    """Where a run can be followed, beside its own folder."""

    trackers: tuple[str, ...] = ()
    """Any of `mlflow` and `tensorboard`; see [tracking](../concepts/tracking.md)."""
    mlflow_uri: NameOrPath | None = None
    """Tracking server or store. Null: MLflow's choice (`MLFLOW_TRACKING_URI`, Databricks)."""
    mlflow_experiment: str | None = None
    """Experiment, created if missing. Null: MLflow's choice."""
    mlflow_run_name: str | None = None
    """Run name. Null: that of `run.folder`."""
    mlflow_registered_model: str | None = None
    """Registered model that gets a new version."""
    tensorboard_folder: StoredPath | None = None
    """Folder for event files, in a subfolder named after `run.folder`. Null: `tensorboard` in
    `run.folder`."""
    wait_seconds: int = Field(default=60, ge=0)
    """Longest wait for trackers at the end of a job."""

    def check(self) -> None:
        """Refuse trackers named twice, and settings of trackers that are not named."""
        for name in self.trackers:
            if self.trackers.count(name) > 1:
                raise InputError("tracking.trackers", f"it names {name} twice", "Name it once")
        for key, value in self:
            tracker = key.partition("_")[0]
            if tracker in TRACKERS and value and tracker not in self.trackers:
                raise InputError(
                    f"tracking.{key}",
                    f"{tracker} is not one of tracking.trackers",
                    f"Add {tracker} to tracking.trackers",
                )
