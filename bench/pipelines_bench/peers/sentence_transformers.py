"""sentence-transformers' own trainer, alone or in several processes of torchrun, without Spark."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.settings import Config
from pipelines.tokens.start import default_start, start_folder
from pipelines_bench.peers.lines import StepLines
from pipelines_bench.peers.peer import (
    Peer,
    first_of,
    not_installed,
    other_training,
)
from pipelines_bench.trainers import sentence_transformers_trainer


def train(config: Config) -> None:
    """Trains as the readme of the library has it, on the texts of the pairs in random batches."""
    _set_threads(config.training.threads)
    from sentence_transformers import SentenceTransformer

    training, start = config.training, start_folder(config) or default_start()
    own = _dropout(start, training.dropout)
    model = SentenceTransformer(str(start), device="cpu", config_kwargs=own)
    with tempfile.TemporaryDirectory() as folder:
        trainer = sentence_transformers_trainer(
            config,
            model,
            folder,
            callbacks=[_callback(config)],
            max_steps=training.max_steps,
            # A batch is a granule, and a step has as many of them as ours.
            gradient_accumulation_steps=training.granules_per_step // training.workers,
            logging_strategy="steps",
            logging_steps=1,
            # Of CPUs.
            ddp_backend="gloo" if training.workers > 1 else None,
        )
        trainer.train()


def _dropout(start: Path, share: float | None) -> dict[str, float]:
    """What of a model's own settings to change, so that it drops as much as all others do.

    Args:
        start: Its folder.
        share: As ``training.dropout`` has it; None: the model's own.
    """
    if share is None:
        return {}
    config = json.loads((start / "config.json").read_text(encoding="utf-8"))
    return {
        name: share
        for name, value in config.items()
        if "dropout" in name and isinstance(value, int | float)
    }


def _set_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def _callback(config: Config) -> Any:
    """A callback of the trainer that writes the lines."""
    from transformers import TrainerCallback

    lines = StepLines.of(config)

    class Lines(TrainerCallback):  # type: ignore[misc] # the library has no types
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            lines.begin()

        def on_log(
            self, _: Any, state: Any, __: Any, logs: Mapping[str, float], **___: Any
        ) -> None:
            if "loss" in logs and os.environ.get("RANK", "0") == "0":
                lines.add(state.global_step, logs["loss"])

    return Lines()


def _launcher(config: Config) -> Sequence[str]:
    workers = config.training.workers
    if workers == 1:
        return ()
    return ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}")


def _missing(config: Config, has_negatives: bool) -> str:
    return first_of(
        not_installed("sentence_transformers", "sentence-transformers"),
        other_training(config, has_negatives),
        "" if start_folder(config) else "encoder.start: it starts from no random encoder",
    )


PEER = Peer(
    name="sentence-transformers",
    framework="torch",
    trains=f"{__name__}:train",
    missing=_missing,
    launcher=_launcher,
)
