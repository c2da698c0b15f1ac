"""The same work by sentence-transformers: its trainer, and its way to embed."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from pipelines.models.weights import random_weights
from pipelines_bench.gpu.checks import Finding, Place, needing
from pipelines_bench.gpu.models import sentences, write_model
from pipelines_bench.gpu.torch_figures import LONGEST, TEXTS, shape_of
from pipelines_bench.gpu.torch_machine import wait_for

STEPS, WARM_UP = 20, 5
PAIRS = (64, 512)
"""Of a batch."""


def figures(place: Place, shape: str) -> Finding:
    """Tokens a second of the trainer, and of `encode`, in bf16."""
    with needing("sentence_transformers"):
        import sentence_transformers
    spec = shape_of(place, shape)
    model = write_model(place.folder / f"library-{shape}", spec, random_weights(spec, 1))
    small = not place.on_gpu or place.short
    found = _embedded(place, str(model), 32 if small else TEXTS, spec.vocabulary)
    with needing("datasets"):
        import datasets  # noqa: F401 - the trainer needs it
    for size in (8,) if small else PAIRS:
        rate = _trained(place, str(model), size, spec.vocabulary, 2 if small else STEPS)
        found[f"{size} pairs: tokens/s of the trainer"] = rate
    return Finding(f"sentence-transformers {sentence_transformers.__version__}", found)


def _embedded(place: Place, folder: str, count: int, vocabulary: int) -> dict[str, Any]:
    import torch
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(
        folder, device=place.device, model_kwargs={"dtype": torch.bfloat16}, local_files_only=True
    )
    lengths = np.random.default_rng(4).integers(8, LONGEST - 2, count)
    texts = sentences(lengths.tolist(), vocabulary)
    size = 32 if count < TEXTS else 512
    model.encode(texts[: 4 * size], batch_size=size, show_progress_bar=False)
    began = time.perf_counter()
    model.encode(texts, batch_size=size, show_progress_bar=False)
    wait_for(place.device)
    tokens = int(lengths.sum()) + 2 * count
    return {"tokens/s of encode": tokens / (time.perf_counter() - began)}


def _trained(place: Place, folder: str, size: int, vocabulary: int, steps: int) -> float:
    """Tokens a second of steps, the first ones left out."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from transformers import TrainerCallback

    moments: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc] # the library has no types
        def on_step_end(self, *_: Any, **__: Any) -> None:
            wait_for(place.device)
            moments.append(time.perf_counter())

    count = size * (steps + WARM_UP)
    generator = np.random.default_rng(5)
    lengths = generator.integers(3, LONGEST - 1, (2, count)) - 2
    sides = [sentences(np.maximum(one, 1).tolist(), vocabulary, n) for n, one in enumerate(lengths)]
    model = SentenceTransformer(folder, device=place.device, local_files_only=True)
    trainer = SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            output_dir=str(place.folder / "trainer"),
            per_device_train_batch_size=size,
            max_steps=steps + WARM_UP,
            bf16=True,
            use_cpu=not place.on_gpu,
            disable_tqdm=True,
            save_strategy="no",
            report_to="none",
            logging_strategy="no",
        ),
        train_dataset=Dataset.from_dict({"anchor": sides[0], "positive": sides[1]}),
        loss=MultipleNegativesRankingLoss(model),
        callbacks=[Clock()],
    )
    trainer.train()
    tokens = (float(np.maximum(lengths, 1).sum()) + 4 * count) / (steps + WARM_UP)
    return tokens * steps / (moments[-1] - moments[WARM_UP - 1])
