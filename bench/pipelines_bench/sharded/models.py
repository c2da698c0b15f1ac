"""A random encoder of the shape of Llama, whose weights are made one after the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipelines.lanes.files import LaneManifest
from pipelines.lanes.plan import BatchPlan, plan_segments
from pipelines.models.architecture import Shapes
from pipelines.models.arrays import LazyArrays
from pipelines.models.hf.architecture import HfSpec, config_text, weight_shapes
from pipelines.models.weights import INITIAL_DEVIATION
from pipelines.runs.checkpoint import Checkpoint, checkpoint_path, save_checkpoint
from pipelines.runs.run import TrainingRun
from pipelines.settings import Config

VOCABULARY = 40_000
_HEAD = 128
_INTERMEDIATE = 2.6875
"""How many times as wide as a layer its feed-forward part is; source: Llama 7B."""
_POSITIONS = 2048
_ALONE = 1.0 / 1024
"""Deviation of the numbers of vectors, which are norms, from one."""


def encoder_spec(hidden: int, layers: int, vocabulary: int = VOCABULARY) -> HfSpec:
    """An encoder of `transformers`.

    Args:
        hidden: Width of the layers.
        layers: How many there are.
        vocabulary: Rows of the word embedding.
    """
    heads = max(1, hidden // _HEAD)
    config = {
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": int(hidden * _INTERMEDIATE),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": _POSITIONS,
        "pad_token_id": 0,
    }
    return HfSpec(config=config_text(config), vocabulary=vocabulary, hidden=hidden, max_length=512)


def random_arrays(shapes: Shapes, seed: int) -> LazyArrays:
    """Random weights, each of which follows from the seed and its place alone."""
    places = {name: place for place, name in enumerate(shapes)}

    def made(name: str) -> np.ndarray:
        generator = np.random.Generator(np.random.Philox([seed, places[name]]))
        shape = shapes[name]
        values = generator.standard_normal(shape, dtype=np.float32)
        if len(shape) > 1:
            return values * np.float32(INITIAL_DEVIATION)
        return values * np.float32(_ALONE) + np.float32(1)

    return LazyArrays(shapes, made)


def random_start(
    folder: Path, config: Config, spec: HfSpec, tokens: int, steps: int
) -> TrainingRun:
    """A run in a folder, with its first checkpoint; one that is there of this shape is taken.

    Args:
        folder: Of the run.
        config: Its settings.
        spec: The encoder's shape.
        tokens: Of a text.
        steps: Which are made.
    """
    shapes = weight_shapes(spec)
    if not checkpoint_path(folder, 0).is_dir():
        save_checkpoint(folder, Checkpoint(0, spec, random_arrays(shapes, 5), {}), 9)
    granules = config.training.granules_per_step
    manifest = LaneManifest(
        lanes=granules,
        granule=config.lanes.granule,
        rows=steps,
        rows_per_part=steps,
        segments=plan_segments({tokens: granules * steps}, granules, 1),
        examples=granules * steps,
        left_over={},
        granules_per_step=granules,
        same_group_in_step=0,
        tokens=0,
        slots=0,
        vocabulary=spec.vocabulary,
        max_length=tokens,
        paired=True,
        negatives=0,
        scored=False,
        candidates_scored=False,
        teacher=None,
        checksums=(),
    )
    seed = config.training.seed
    return TrainingRun(
        config=config,
        plan=BatchPlan(lanes=granules, rows=steps, granules_per_step=granules, seed=seed),
        manifest=manifest,
        lanes_folder=folder,
        run_folder=folder,
        first_step=0,
        last_step=steps,
    )
