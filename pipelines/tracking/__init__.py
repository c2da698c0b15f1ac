"""Trackers of a run in progress: MLflow, TensorBoard."""

from __future__ import annotations

from pipelines.catalog import TRACKERS
from pipelines.libraries import DRIVER, EXTRAS, check_installed
from pipelines.settings import TrackingSettings


def check_trackers(settings: TrackingSettings) -> None:
    """Refuse unknown trackers, and trackers without their library.

    Raises:
        InputError: Naming the tracker, and the install command.
    """
    libraries = {extra: library for library, extra in EXTRAS.items()}
    for name in settings.trackers:
        TRACKERS.check(name)
        check_installed(TRACKERS.key, libraries.get(name, name), name, DRIVER)
