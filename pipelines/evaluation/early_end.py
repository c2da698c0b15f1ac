"""By which metric the model of a run is chosen, and whether a run has ended early by it."""

from __future__ import annotations

import logging

from pipelines.evaluation.sets import metric_named
from pipelines.files.locations import Location
from pipelines.runs.best import (
    Metric,
    go_on_to_the_end,
    is_to_end,
    measured_since,
    read_best,
)
from pipelines.runs.evaluations import read_evaluations
from pipelines.settings import Config

logger = logging.getLogger(__name__)


def choosing_metric(config: Config) -> Metric | None:
    """By which the best checkpoint is kept, if it is to be.

    Raises:
        InputError: It is not measured.
    """
    asked = config.training.keep_best
    return metric_named(config, "training.keep_best", asked) if asked else None


def has_ended_early(config: Config, run_folder: Location) -> bool:
    """Whether a run has ended early, and does so by the settings of now; it goes on otherwise."""
    if not is_to_end(run_folder):
        return False
    metric, patience = choosing_metric(config), config.training.patience
    best = None if metric is None else read_best(run_folder, str(metric))
    if metric is not None and best is not None and patience is not None:
        since = measured_since(read_evaluations(run_folder), metric, best)
        if since >= patience:
            logger.info(
                "the run has ended early, since %d evaluations brought no gain; raise"
                " training.patience to have it go on",
                since,
            )
            return True
    go_on_to_the_end(run_folder)
    return False
