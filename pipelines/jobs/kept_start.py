"""Runs whose model has the start's weights, because training brought no gain (`run.keep_start`)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pipelines.evaluation.intervals import BETTER
from pipelines.files import storage
from pipelines.files.ownership import RUN, is_ours
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.files.run_folder import RunFolder
from pipelines.losses.loss import scores_pairs
from pipelines.model_card.card import model_card
from pipelines.model_card.front_matter import read_facts
from pipelines.models.folder import read_encoder, write_encoder
from pipelines.progress import activity
from pipelines.report.verdict import verdict
from pipelines.runs.model_choice import KEPT_START, WHOLE
from pipelines.runs.step_metrics import update_run_metrics
from pipelines.settings import Config

logger = logging.getLogger(__name__)


def keeps_start(config: Config, figures: Mapping[str, Any]) -> bool:
    """Replace a run's model by its start unless the figures show a gain; return whether it did.

    A model that is the start already, and one that this package has not trained, stay.
    """
    run = RunFolder.of(config)
    if not config.run.keep_start or scores_pairs(config) or not is_ours(run.path, RUN):
        return False
    known = {**storage.read_json(run.metrics), **figures}
    if KEPT_START in known.get("model", {}):
        return False
    found = verdict(known)
    if found is not None and found.word == BETTER and not (found.is_doubted or found.alarms):
        return False
    why = "The evaluation made no comparison."
    if found is not None:
        doubts = "" if found.word != BETTER else f" {found.next_step}"
        why = " ".join([*found.alarms, f"{found.sentence}{doubts}"])
    logger.warning("the model keeps the start's weights (run.keep_start): %s", why)
    _keep_start(config, why)
    return True


def _keep_start(config: Config, why: str) -> None:
    """Write the start as the model; ``why`` is kept with the figures."""
    paths, prepared = RunFolder.of(config), PreparedFolder.of(config)
    spec, weights = read_encoder(paths.start)
    figures = {"step": 0, "start_share": WHOLE, KEPT_START: why}
    facts = replace(read_facts(paths, config, spec), model=figures, comparisons=(), verdict="")
    card = model_card(replace(facts, digest=None))
    with activity("training", "writing the start as the model"):
        write_encoder(paths.model, spec, weights, prepared.tokens.tokenizer, card)
    # It is of the weights that are refused.
    storage.discard_folder(paths.adapter)
    known = storage.read_json(paths.metrics)
    trained = {name: known[name] for name in ("model", "after", "interval") if name in known}
    of_start = {"model": figures, "weight_change": 0.0, "trained": trained}
    update_run_metrics(paths.path, of_start)
