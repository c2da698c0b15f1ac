"""Where a run is followed while it goes on: MLflow, TensorBoard.

Nothing here may stop or slow a training. Each tracker is a process of its own beside the driver
(:mod:`pipelines.tracking.proxy`), behind a bounded queue (:mod:`pipelines.tracking.proxy`); a run
that ends waits for ``tracking.wait_seconds`` at most, and then ends the process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from pipelines.errors import InputError
from pipelines.libraries import DRIVER, check_installed
from pipelines.settings import TrackingSettings
from pipelines.tracking.databricks import databricks_environment

if TYPE_CHECKING:
    from pipelines.tracking.base import Tracker


def _nothing(settings: TrackingSettings) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class TrackerEntry:
    """How a tracker is found.

    Attributes:
        module: Where its class is; imported in the tracker's process only.
        attribute: Name of the class.
        library: What it needs to be installed, which is the name of the extra in lower case too.
        environment: Variables that the tracker's process needs and the driver alone can know.
    """

    module: str
    attribute: str
    library: str
    environment: Callable[[TrackingSettings], Mapping[str, str]] = _nothing


REGISTRY: Mapping[str, TrackerEntry] = {
    "mlflow": TrackerEntry(
        "pipelines.tracking.mlflow", "MlflowTracker", "mlflow", databricks_environment
    ),
    "tensorboard": TrackerEntry(
        "pipelines.tracking.tensorboard", "TensorBoardTracker", "tensorboardX"
    ),
}
"""What ``tracking.trackers`` may name."""


def check_trackers(settings: TrackingSettings) -> None:
    """Refuses trackers that do not exist or are not installed.

    Raises:
        InputError: Naming the tracker, and the install command.
    """
    for name in settings.trackers:
        if name not in REGISTRY:
            raise InputError(
                "tracking.trackers", f"there is no `{name}`", f"one of {', '.join(REGISTRY)}"
            )
        check_installed("tracking.trackers", REGISTRY[name].library, name, DRIVER)


def tracker_class(name: str) -> Callable[[], Tracker]:
    """The class of a tracker; imports its library. Runs in the tracker's process."""
    entry = REGISTRY[name]
    found: Callable[[], Tracker] = getattr(import_module(entry.module), entry.attribute)
    return found
