"""All that is measured of a model, as the settings ask for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from pipelines.evaluation.base import Form, form_name
from pipelines.evaluation.embedder import embedder_loader
from pipelines.evaluation.held_out import held_out_sets
from pipelines.evaluation.observations import Observed
from pipelines.evaluation.sets import named_sets, table_reader
from pipelines.files.locations import Location
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.progress import next_part
from pipelines.settings import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


def evaluate(
    session: SparkSession,
    config: Config,
    model_folder: Location | str,
    on_observed: Callable[[str, Observed], None] = lambda name, found: None,
) -> dict[str, dict[str, float]]:
    """Measures a model on the held-out pairs and on the files and folders that are named.

    Args:
        config: ``evaluation`` says what is measured; the held-out pairs are those of
            ``<prepared.folder>/corpus/evaluation``, where there are any.
        model_folder: The model, where every executor can read it.
        on_observed: Called with the name of a set and what was observed of the model on it, by the
            evaluations whose figures are of single items.

    Returns:
        By the names of the sets the figures of their evaluations; at each of
        ``objective.dimensions``, of all sources' objectives, too where an evaluation measures at
        several widths; each fused with BM25 too with ``evaluation.hybrid``.

    Raises:
        InputError: What is asked for cannot be read.
    """
    load = embedder_loader(session, model_folder)
    if config.evaluation.retrieval and not held_out_sets(config):
        place = PreparedFolder.of(config).corpus.queries.parent
        logger.info("no retrieval evaluation: there are no held-out pairs in %s", place)
    read = table_reader(session, config)
    figures: dict[str, dict[str, float]] = {}
    for evaluation, sets in groupby(named_sets(config), attrgetter("evaluation")):
        next_part(evaluation.part)
        # All of an evaluation are checked before the first is worked on.
        tables = {one.name: read(one) for one in sets}
        for name, of_set in tables.items():

            def observed(form: Form, found: Observed, name: str = name) -> None:
                on_observed(form_name(name, form), found)

            widths, hybrid = config.trained_widths(), config.evaluation.hybrid
            by_form = evaluation.measure_at(
                of_set,
                load,
                observed,
                widths,
                hybrid=hybrid,
                metrics=config.evaluation.retrieval_metrics,
            )
            figures |= {form_name(name, form): one for form, one in by_form.items()}
    return figures
