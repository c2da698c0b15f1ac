"""Runs whose model has the start's weights, because training brought no gain (`run.keep_start`)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pipelines.evaluation.intervals import BETTER
from pipelines.files import storage
from pipelines.files.ownership import RUN, is_ours
from pipelines.files.run_folder import RunFolder
from pipelines.losses.loss import scores_pairs
from pipelines.model_card.card import model_card
from pipelines.model_card.front_matter import is_measured, read_facts
from pipelines.models.folder import read_encoder, write_encoder
from pipelines.models.identity import model_digest, recorded_digest
from pipelines.progress import activity
from pipelines.report.verdict import verdict
from pipelines.runs.model_choice import KEPT_START, WHOLE
from pipelines.runs.step_metrics import TRAINED, update_run_metrics
from pipelines.settings import Config

logger = logging.getLogger(__name__)


def shows_gain(config: Config) -> bool:
    """Return whether an earlier evaluation has found the run's model better than its start.

    It is asked only where `run.keep_start` is set.
    """
    run = RunFolder.of(config)
    if not config.run.keep_start or not run.metrics.is_file():
        return False
    known = storage.read_json(run.metrics)
    return is_measured(run, known) and _is_better(known)


def keeps_start(config: Config, figures: Mapping[str, Any]) -> bool:
    """Replace a run's model by its start unless the figures show a gain; return whether it did.

    A model that is the start already stays, and so does one that the training did not write.
    """
    run = RunFolder.of(config)
    if not config.run.keep_start or scores_pairs(config) or not is_ours(run.path, RUN):
        return False
    known = {**storage.read_json(run.metrics), **figures}
    model = known.get("model", {})
    is_kept = KEPT_START in model
    trained = recorded_digest(known.get(TRAINED, {}).get("model", {}) if is_kept else model)
    present = model_digest(run.model)
    if is_kept and present == model_digest(run.start):
        return False
    # Earlier releases have recorded no digest.
    if trained not in (None, present):
        logger.warning("%s stays: `train` did not write it (run.keep_start)", run.model)
        return False
    if is_kept:
        # A job was killed between its two writes.
        _write_start(config, model)
        return True
    if model.get("start_share") == WHOLE or _is_better(known):
        return False
    found = verdict(known)
    why = "The evaluation made no comparison."
    if found is not None:
        doubts = "" if found.word != BETTER else f" {found.next_step}"
        why = " ".join([*found.alarms, f"{found.sentence}{doubts}"])
    logger.warning("the model keeps the start's weights (run.keep_start): %s", why)
    kept = {"step": 0, "start_share": WHOLE, KEPT_START: why}
    of_trained = {name: known[name] for name in ("model", "after", "interval") if name in known}
    of_start = {"model": kept, "weight_change": 0.0, TRAINED: of_trained}
    update_run_metrics(run.path, of_start)
    _write_start(config, kept)
    return True


def _is_better(figures: Mapping[str, Any]) -> bool:
    found = verdict(figures)
    if found is None or found.is_doubted or found.alarms:
        return False
    return found.word == BETTER


def _write_start(config: Config, figures: Mapping[str, Any]) -> None:
    """Write the start as the model, with a card that has the reason."""
    run = RunFolder.of(config)
    spec, weights = read_encoder(run.start)
    facts = replace(read_facts(run, config, spec), model=figures, comparisons=(), verdict="")
    card = model_card(replace(facts, digest=None))
    with activity("training", "writing the start as the model"):
        write_encoder(run.model, spec, weights, run.start, card)
    # It is of the weights that are refused.
    storage.discard_folder(run.adapter)
