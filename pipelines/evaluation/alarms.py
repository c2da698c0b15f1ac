"""Alarms about a model: a failed training, contaminated sets, a checkpoint chosen by its own judge.

Each doubt is a function of ``metrics.json``, with a bound. Console, report and model card show it,
and a promotion refuses it unless ``promotion.accept`` names it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pipelines.catalog import LOSSES
from pipelines.evaluation.intervals import Observed
from pipelines.evaluation.pairs import Compared
from pipelines.evaluation.retrieval import Retrieved
from pipelines.evaluation.sets import Role
from pipelines.files import records
from pipelines.files.locations import Location
from pipelines.files.run_folder import RunFolder
from pipelines.runs.model_choice import WHOLE
from pipelines.runs.step_metrics import update_run_metrics
from pipelines.settings.promotion import Doubt as Name
from pipelines.vectors.nearest import unit_length

LEAST_CHANGE = 1e-6
"""The change of the weights, relative to their length. Rounding in fp32 alone is 6e-8; one useful
step of AdamW at a learning rate of 5e-5 is about 1e-3.
"""
MOST_ALIKE = 0.99
"""Mean cosine of two texts. Encoders in use have 0 to 0.8, collapsed ones 0.999 and more."""
FEWEST_DIRECTIONS = 1.5
"""Effective rank: 1 if all embeddings lie on one line."""
LEAST_LOSS = 0.01
"""A loss with in-batch negatives, in every step: the positive has 99 % of the probability."""
NO_LOSS = 1e-9
"""Any other loss has an unknown scale: only rounding."""
LEAST_SPREAD = 1e-4
"""Standard deviation of the cosines of pairs. Encoders in use have 0.05 and more."""

_PICKED = ("pairs", "triplets")
"""Requirements of losses with a positive among negatives. SimCSE is none of them: its positive is
the same text under dropout, so a loss near 0 is usual.
"""
_FEWEST_TEXTS = 5
_MOST_TEXTS = 1_000
_FORM = re.compile(r"(@\d+)?(\+bm25)?$")


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Doubt:
    """A reason against a model; only people can overrule it, by its ``name``."""

    name: Name
    sentence: str


def doubts(figures: Mapping[str, Any]) -> list[Doubt]:
    """Return every doubt about the model of a run."""
    about_figures = [seen_in_training(figures), chosen_by_judge(figures)]
    return alarms(figures) + [doubt for doubt in about_figures if doubt is not None]


def alarms(figures: Mapping[str, Any]) -> list[Doubt]:
    """Return the doubts about the training and the model itself."""
    # The settings may ask for the start's own weights, with `training.start_share` at 1.
    is_start = figures.get("model", {}).get("start_share") == WHOLE
    found = (
        None if is_start else _unmoved_weights(figures.get("weight_change")),
        None if is_start else _easy_negatives(figures.get("training", {})),
        _collapsed_embeddings(figures.get("signs", {})) or _one_place(figures.get("after", {})),
        _constant_scores(figures.get("signs", {})),
    )
    return [doubt for doubt in found if doubt is not None]


def keep_doubts(run_folder: Location) -> None:
    """Write the doubts into ``metrics.json``, and warn of each."""
    found = records.built(RunFolder(run_folder).metrics, doubts)
    for doubt in found:
        logger.warning("ALARM (%s): %s", doubt.name, doubt.sentence)
    update_run_metrics(run_folder, {"doubts": [asdict(doubt) for doubt in found]})


def signs_of(observed: Mapping[str, Observed]) -> dict[str, dict[str, float]]:
    """Return by set the signs of a collapsed model, see :func:`embedding_signs`.

    For a set of pairs it is `deviation`, the standard deviation of their cosines.
    """
    signs = {}
    for name, found in observed.items():
        if isinstance(found, Retrieved) and len(found.queries.ids) >= _FEWEST_TEXTS:
            signs[name] = embedding_signs(found.queries.embeddings)
        elif isinstance(found, Compared) and len(found.cosines) >= _FEWEST_TEXTS:
            signs[name] = {"deviation": float(found.cosines.std())}
    return signs


def embedding_signs(embeddings: np.ndarray) -> dict[str, float]:
    """Return `mean_cosine` of two different texts, and `effective_rank`.

    ``embeddings`` are [texts, width]. Only the first thousand texts count.

    Source: Roy and Vetterli, "The effective rank: a measure of effective dimensionality", EUSIPCO
    2007.
    """
    rows = unit_length(embeddings[:_MOST_TEXTS]).astype(np.float64)
    if not np.isfinite(rows).all():
        return {}
    count = len(rows)
    squared = float((rows.sum(axis=0) ** 2).sum())
    shares = np.linalg.svd(rows, compute_uv=False)
    # Without zeros: 0 log 0 counts as 0, and numpy gives NaN.
    shares = shares[shares > 0] / max(shares.sum(), np.finfo(np.float64).tiny)
    return {
        "mean_cosine": (squared - float((rows**2).sum())) / (count * (count - 1)),
        "effective_rank": float(np.exp(-(shares * np.log(shares)).sum())),
    }


def _unmoved_weights(change: float | None) -> Doubt | None:
    if change is None or change >= LEAST_CHANGE:
        return None
    return Doubt(
        "unmoved_weights",
        f"The weights did not move: they changed by {change:.1e} of their length, less than "
        f"{LEAST_CHANGE:.0e}.",
    )


def _easy_negatives(training: Mapping[str, Any]) -> Doubt | None:
    largest, objectives = training.get("largest_loss"), training.get("objectives", ())
    known = [LOSSES.load(name) for name in objectives if name in LOSSES]
    if largest is None or not known:
        return None
    has_picks = all(loss.uses_negatives and loss.needs in _PICKED for loss in known)
    if not largest <= (LEAST_LOSS if has_picks else NO_LOSS):
        return None
    reason = "all negatives are easy"
    if any(loss.needs not in _PICKED for loss in known):
        reason = "the examples have equal targets, or the start meets them already"
    return Doubt(
        "easy_negatives",
        f"The model had nothing to learn, since {reason}: the loss was {largest:.2g} or less from "
        "the first step on.",
    )


def _collapsed_embeddings(signs: Mapping[str, Any]) -> Doubt | None:
    for name, found in signs.get("after", {}).items():
        cosine, rank = found.get("mean_cosine"), found.get("effective_rank")
        if cosine is None or (cosine < MOST_ALIKE and rank >= FEWEST_DIRECTIONS):
            continue
        before = signs.get("before", {}).get(name, {}).get("mean_cosine")
        was = "" if before is None else f" ({before:.3f} before training)"
        return Doubt(
            "collapsed_embeddings",
            f"The embeddings have collapsed: the queries of {name} have a mean cosine of "
            f"{cosine:.4f}{was} and an effective rank of {rank:.1f}.",
        )
    return None


def _one_place(after: Mapping[str, Any]) -> Doubt | None:
    """Judge by the uniformity of held-out pairs, where no queries were ranked."""
    # The uniformity of texts with that cosine between all; see the evaluation of geometry.
    bound = -2 * (2 - 2 * MOST_ALIKE)
    for name, found in after.items():
        uniformity = found.get("uniformity")
        if uniformity is not None and uniformity >= bound:
            return Doubt(
                "collapsed_embeddings",
                f"The embeddings have collapsed: the uniformity of {name} is {uniformity:.4f}; a "
                "single point has 0.",
            )
    return None


def _constant_scores(signs: Mapping[str, Any]) -> Doubt | None:
    for name, found in signs.get("after", {}).items():
        deviation = found.get("deviation")
        if deviation is not None and deviation < LEAST_SPREAD:
            return Doubt(
                "constant_scores",
                f"The scores are constant: the cosines of the pairs of {name} have a standard "
                f"deviation of {deviation:.1e}.",
            )
    return None


def seen_in_training(figures: Mapping[str, Any]) -> Doubt | None:
    """Return the doubt about sets among the training pairs."""
    overlaps = [
        told_overlap(figures, name)
        for name, known in figures.get("sets", {}).items()
        if known["role"] in (Role.JUDGED, Role.GUARD)
    ]
    found = [overlap for overlap in overlaps if overlap]
    return Doubt("seen_in_training", _sentence(found)) if found else None


def told_overlap(figures: Mapping[str, Any], name: str) -> str:
    """Tell by ``overlap`` how much of a set is among the training pairs; empty for none."""
    known = figures.get("overlap", {}).get(name)
    return "" if known is None else _told_seen(name, known)


def told_overlaps(record: Mapping[str, Any]) -> list[str]:
    """Tell the overlap of each set of a preparation's ``overlap.json``."""
    overlaps = (_told_seen(name, known) for name, known in record.get("sets", {}).items())
    return [overlap for overlap in overlaps if overlap]


def _told_seen(name: str, known: Mapping[str, Any]) -> str:
    if not known["seen"]:
        return ""
    verb = "is" if known["seen"] == 1 else "are"
    seen = f"{known['seen']:,} of {known['items']:,} {known['of']} of {name}"
    return f"{seen} {verb} among the training pairs"


def unmatched_sets(figures: Mapping[str, Any]) -> list[str]:
    """Return the judged sets that were never compared with the training pairs."""
    known = figures.get("overlap", {})
    sets = figures.get("sets", {})
    return [name for name in sets if sets[name]["role"] == Role.JUDGED and name not in known]


def chosen_by_judge(figures: Mapping[str, Any]) -> Doubt | None:
    """Return the doubt about a checkpoint whose judges are the sets that chose it."""
    choosing = choosing_sets(figures)
    by_role: dict[str, list[str]] = {}
    for name, known in figures.get("sets", {}).items():
        by_role.setdefault(known["role"], []).append(name)
    deciding = by_role.get(Role.JUDGED) or by_role.get(Role.HELD_OUT, [])
    # A set too small for an interval cannot stand in for the one that chose.
    deciding = [name for name in deciding if figures.get("interval", {}).get(name)] or deciding
    if not choosing.intersection(deciding) or set(deciding) - choosing:
        return None
    return Doubt("chosen_by_judge", _sentence([told_choosing(figures)]))


def choosing_sets(figures: Mapping[str, Any]) -> set[str]:
    """Return the set of ``training.keep_best``, in any form, and the sets of the same texts."""
    metric = figures.get("model", {}).get("best_by")
    if metric is None:
        return set()
    sets = figures.get("sets", {})
    name = _FORM.sub("", metric.rpartition(".")[0])
    if name not in sets:
        return set()
    if sets[name]["role"] == Role.HELD_OUT:
        return {held_out for held_out in sets if sets[held_out]["role"] == Role.HELD_OUT}
    digests = figures.get("measured", {}).get("sets", {})
    # Sets of equal digests hold the same texts; one without a digest equals only itself.
    digest = digests.get(name)
    return {name} | {equal for equal in sets if digests.get(equal, equal) == digest}


def told_choosing(figures: Mapping[str, Any]) -> str:
    """Name the metric that chose the checkpoint; empty where the newest one is the model."""
    metric = figures.get("model", {}).get("best_by")
    # Begins with an article, since `_sentence` capitalises the first letter.
    return f"the checkpoint was chosen by {metric} (training.keep_best)" if metric else ""


def _sentence(parts: Sequence[str]) -> str:
    joined = "; ".join(parts)
    return f"{joined[:1].upper()}{joined[1:]}."
