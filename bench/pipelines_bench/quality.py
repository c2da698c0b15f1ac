"""Measures quality: torch here and sentence-transformers' trainer, from the same start.

Both see as many of the same pairs in as many steps, with the same learning rate, schedule, weight
decay, clipping and dropout. What differs is what each does of its own: which pairs meet in a batch,
their order, and the noise. Each is trained a few times, by its seed, since that alone moves the
figure; sentence-transformers' own evaluator measures both.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

import pipelines
from pipelines.compare.comparison import prepared
from pipelines.errors import InputError
from pipelines.evaluation.sets import named_sets
from pipelines.losses.in_batch_negatives import InBatchNegativesSettings
from pipelines.losses.loss import spans_steps
from pipelines.progress import next_part
from pipelines.progress.screen import Screen
from pipelines.settings import Config
from pipelines.spark.session import spark_session
from pipelines_bench.trainers import sentence_transformers_trainer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

SEEDS = (17, 18, 19)
_SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant_with_warmup"}

Evaluators = Mapping[str, Callable[["SentenceTransformer"], float]]


def measure(config: Config, data: str | None) -> dict[str, Any]:
    """Runs the comparison.

    Args:
        config: With `training.max_steps` and `evaluation.similarity`.
        data: See :func:`pipelines.compare.comparison.prepared`.

    Returns:
        ``difference_points``: by file, the median over the seeds of Spearman's correlation (times
        100) of this package less that of the median of sentence-transformers; and all figures.

    Raises:
        InputError: One of the two settings is missing, or the objective has no counterpart.
    """
    _check(config)
    config = prepared(config, data)
    evaluators = _evaluators(config)
    found: dict[str, dict[str, list[float]]] = {name: {} for name in evaluators}
    for seed in SEEDS:
        next_part(f"seed {seed}")
        for trainer, model in _trained(config, seed):
            for name, evaluate in evaluators.items():
                found[name].setdefault(trainer, []).append(evaluate(model))
                logger.info("%s, seed %d: %s %.2f", trainer, seed, name, found[name][trainer][-1])
    _print(found)
    return {
        "difference_points": {
            name: round(statistics.median(by["here"]) - statistics.median(by["theirs"]), 3)
            for name, by in found.items()
        },
        "spearman": found,
    }


def _check(config: Config) -> None:
    if not config.evaluation.similarity:
        raise InputError("evaluation.similarity", "it is empty", "Name files of scored pairs")
    if config.training.max_steps is None:
        raise InputError("training.max_steps", "it is not set", "Say how long both train")
    objective = config.objective
    is_theirs = isinstance(objective, InBatchNegativesSettings) and objective.is_plain
    if objective.name != "in_batch_negatives" or spans_steps(objective) or not is_theirs:
        raise InputError(
            "objective.name",
            "the comparison is of MultipleNegativesRankingLoss",
            "Set it to in_batch_negatives, with objective.negatives granule and no other keys",
        )


def _trained(config: Config, seed: int) -> Sequence[tuple[str, SentenceTransformer]]:
    """The models of this package and of the library, trained from the same weights."""
    from sentence_transformers import SentenceTransformer

    with tempfile.TemporaryDirectory() as folder:
        training = config.training.model_copy(
            update={"engine": "local", "mode": "sync", "framework": "torch", "feed": "lanes"}
            | {"workers": 1, "resume": False, "seed": seed}
        )
        run = config.run.model_copy(update={"folder": f"{folder}/run"})
        config = config.model_copy(update={"training": training, "run": run})
        here = SentenceTransformer(str(pipelines.train(config)), device="cpu")
        theirs = SentenceTransformer(f"{folder}/run/start", device="cpu")
        _train_theirs(config, theirs, folder)
    return [("here", here), ("theirs", theirs)]


def _train_theirs(config: Config, model: SentenceTransformer, folder: str) -> None:
    import torch

    training = config.training
    assert training.max_steps is not None, "checked before"
    for module in model.modules():
        if training.dropout is not None and isinstance(module, torch.nn.Dropout):
            module.p = training.dropout
    sentence_transformers_trainer(
        config,
        model,
        f"{folder}/theirs",
        max_steps=training.max_steps,
        gradient_accumulation_steps=training.granules_per_step,
        lr_scheduler_type=_SCHEDULES[training.schedule],
        warmup_steps=round(training.warmup * training.max_steps),
        weight_decay=training.weight_decay,
        max_grad_norm=training.clip_norm,
    ).train()


def _evaluators(config: Config) -> Evaluators:
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    session = spark_session(config)
    evaluators = {}
    for one in named_sets(config):
        if one.evaluation.name != "similarity":
            continue
        rows = one.read(session, config)["pairs"].collect()
        evaluator = EmbeddingSimilarityEvaluator(
            [row["text_0"] for row in rows],
            [row["text_1"] for row in rows],
            [row["score"] for row in rows],
            write_csv=False,
        )
        evaluators[one.name] = _spearman(evaluator)
    return evaluators


def _spearman(evaluator: Any) -> Callable[[SentenceTransformer], float]:
    return lambda model: 100 * float(evaluator(model)["spearman_cosine"])


def _print(found: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    table = Table("file", "trainer", "Spearman x 100 (median)", "by seed")
    for name, by in found.items():
        for trainer, figures in by.items():
            all_figures = ", ".join(f"{figure:.2f}" for figure in figures)
            table.add_row(name, trainer, f"{statistics.median(figures):.2f}", all_figures)
    Screen().print(table)
