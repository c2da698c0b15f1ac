"""Steppers of every framework on a small encoder, and granules for them."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipelines.catalog import LOSSES, STEPPERS
from pipelines.lanes.files import Granule, Side
from pipelines.models.adaptation import split
from pipelines.models.bert.architecture import MPNetSpec
from pipelines.models.bert.spec import BertSpec
from pipelines.models.hf.architecture import HfSpec, config_text
from pipelines.models.spec import Dense
from pipelines.models.static.architecture import StaticSpec
from pipelines.models.weights import random_weights, weight_shapes
from pipelines.pretraining.start import fresh_weights
from pipelines.runs.checkpoint import Checkpoint
from pipelines.settings.load import parse
from pipelines.tokens.vocabulary import SpecialIds
from pipelines.training.collectives.base import SingleProcess
from pipelines.training.steppers.base import StepWork
from pipelines_bench.sharded.models import encoder_spec, random_arrays

SPEC = BertSpec(vocabulary=50, layers=1, hidden=16, heads=2, intermediate=32, positions=16)
DEEP = replace(SPEC, layers=5, heads=4)
"""Layers that no number of stages divides evenly."""
STATIC = StaticSpec(vocabulary=50, hidden=16)
HF = encoder_spec(hidden=16, layers=2, vocabulary=50)
QWEN3 = HfSpec(
    config=config_text(
        {
            "model_type": "qwen3",
            "vocab_size": 50,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 4,
            "max_position_embeddings": 16,
            "pad_token_id": 0,
        }
    ),
    vocabulary=50,
    hidden=16,
    max_length=16,
)
PROJECTED = replace(DEEP, embedding_size=8, type_vocabulary=0, dense=(Dense(width=8),))
MPNET = MPNetSpec(vocabulary=50, layers=2, hidden=16, heads=4, intermediate=32, positions=16)
KINDS = {
    "static": STATIC,
    "deep": DEEP,
    "projected": PROJECTED,
    "mpnet": MPNET,
    "hf": HF,
    "qwen3": QWEN3,
}
"""Encoders beside that of :data:`SPEC`, by what tests call them."""

VOCABULARY = 50
"""Ids of granules are below it."""
IDS = SpecialIds(special=(0, 1, 2, 3, 4), mask=4, vocabulary=VOCABULARY)

PAIR = ("anchor", "positive")
TRIPLET = (*PAIR, "negative_0")
SEVERAL = (*TRIPLET, "negative_1", "negative_2")

FRAMEWORKS = ("tensorflow", "torch")
EACH_FRAMEWORK = (pytest.param("tensorflow", marks=pytest.mark.slow), "torch")
"""As parameters of tests: TensorFlow takes seconds to import."""

# What the settings of an objective need elsewhere, to be accepted.
CORPUS = {
    "simcse": {"pairs": "single"},
    "mlm": {"pairs": "single"},
    "tsdae": {"pairs": "single"},
    "retromae": {"pairs": "single"},
    "cosine_regression": {"pairs": "columns", "score_column": "score"},
    "listwise_kl": {
        "pairs": "triplets",
        "triplet_columns": ["a", "b", "c", "d", "e"],
        "score_columns": ["f", "g", "h", "i"],
    },
}
# What learns from the vectors of a teacher.
TAUGHT = ("similarity_distillation",)


def granule(number: int, sides=PAIR, examples: int = 6) -> Granule:
    """Of random texts, some of which are there more than once, as groups are."""
    generator = np.random.default_rng(number)

    def side() -> Side:
        lengths = generator.integers(2, 9, examples).astype(np.int32)
        ids = generator.integers(1, VOCABULARY, (examples, 8)).astype(np.int32)
        # The same in every granule, so that equal texts meet on several workers too.
        lengths[1], ids[1] = 4, 7
        return Side(ids * (np.arange(8) < lengths[:, None]), lengths)

    scores = generator.random(examples).astype(np.float32)
    groups = np.arange(examples) + (number % 2) * 2**62
    texts = {name: side() for name in sides}
    candidates = generator.random((examples, len(sides) - 1)).astype(np.float32)
    vectors = generator.normal(size=(len(sides), examples, 5)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    return Granule(
        number=number,
        groups=groups,
        scores=scores,
        candidate_scores=candidates,
        teacher=dict(zip(sides, vectors, strict=True)),
        **fields_of(texts),
    )


def fields_of(sides: dict[str, Side]) -> dict[str, Any]:
    """Sides by their names, as a granule takes them."""
    named = {name: sides[name] for name in sides if name in PAIR}
    return named | {"negatives": tuple(side for name, side in sides.items() if name not in PAIR)}


def start_weights(spec):
    """The weights that training starts from, the same each time."""
    if spec.kind == "hf":
        return dict(random_arrays(weight_shapes(spec), 3))
    return random_weights(spec, 3)


def work(index: int, *granules: Granule) -> StepWork:
    return StepWork(index, 0, list(granules))


def prepare_here(factory, settings):
    """As a worker does: for so small an encoder, threads only wait for one another."""
    factory.prepare_process(settings)
    keep_small_numbers()


def keep_small_numbers():
    """The numbers that a worker takes for zero are drawn by hypothesis in this process."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_flush_denormal(False)


def stepper(
    framework,
    objective=None,
    training=None,
    checkpoint=None,
    collectives=None,
    sides=PAIR,
    spec=SPEC,
    key=None,
    encoder=None,
    rank=0,
):
    objective = objective or {}
    training = {"framework": framework, "precision": "fp32"} | (training or {})
    corpus = CORPUS.get(objective.get("name"), {})
    is_taught = objective.get("guide") == "teacher" or objective.get("name") in TAUGHT
    teacher = {"model": "teacher"} if is_taught else {}
    sections = {"objective": objective, "training": training, "corpus": corpus}
    config = parse({**sections, "teacher": teacher, "encoder": encoder or {}})
    own = LOSSES.load(config.objective.name).token_loss
    sides = sides if own is None or own.scores_pairs else sides[:1]
    run = SimpleNamespace(config=config, sides=sides, special_ids=IDS)
    run.by_source = (run,)
    placement = config.training.placement
    place, workers = placement.place(rank), placement.workers
    task = SimpleNamespace(run=run, rank=rank, workers=workers, placement=placement, place=place)
    if checkpoint is None:
        trained, frozen = split(config.encoder, start_weights(spec), config.training.seed)
        trained |= {} if own is None else fresh_weights(own, spec, config.training.seed)
        checkpoint = Checkpoint(0, spec, trained, {}, frozen)
    factory = STEPPERS.load(key or framework)
    prepare_here(factory, config.training)
    return factory(task, checkpoint, collectives or SingleProcess())


def assert_close(gradients, expected, rtol=1e-4, atol=1e-5):
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=rtol, atol=atol, err_msg=name)
