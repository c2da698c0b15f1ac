"""A training by sentence-transformers' own trainer, in a process of its own, or one of several.

Run as a module, alone or by torchrun. It trains as the readme of the library has it, on the same
pairs from the same start, in random batches, and writes a line for each step where this package's
trainings have theirs.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.benchmarks.trainers import sentence_transformers_trainer
from pipelines.files import storage
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.files.run_folder import RunFolder
from pipelines.lanes.files import LaneManifest
from pipelines.settings import Config
from pipelines.settings.load import load
from pipelines.tokens.start import default_start, start_folder


def peer_command(config: Config, settings: Path) -> list[str]:
    """The command that trains; by torchrun where there are several workers.

    Args:
        config: Its settings, which are written.
        settings: The file for them.
    """
    from pipelines.settings import load as configuration

    storage.write_text(settings, configuration.dump(config))
    module = ["-m", __name__, str(settings)]
    workers = config.training.workers
    if workers == 1:
        return [sys.executable, *module]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    return [sys.executable, *launcher, *module]


def main() -> None:
    """Trains as the configuration file says that is named first."""
    config = load(sys.argv[1], ())
    _set_threads(config.training.threads)
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(start_folder(config) or default_start()), device="cpu")
    training = config.training
    with tempfile.TemporaryDirectory() as folder:
        trainer = sentence_transformers_trainer(
            config,
            model,
            folder,
            callbacks=[_lines(config)],
            max_steps=training.max_steps,
            # A batch is a granule, and a step has as many of them as ours.
            gradient_accumulation_steps=training.granules_per_step // training.workers,
            logging_strategy="steps",
            logging_steps=1,
            # Of CPUs.
            ddp_backend="gloo" if training.workers > 1 else None,
        )
        trainer.train()


def _set_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def _lines(config: Config) -> Any:
    """A callback of the trainer that writes ``metrics.jsonl``."""
    from transformers import TrainerCallback

    manifest = LaneManifest.load(PreparedFolder.of(config).lanes.path)
    tokens = manifest.tokens / manifest.placed
    examples = manifest.granule * config.training.granules_per_step
    path = RunFolder.of(config).step_metrics

    class Lines(TrainerCallback):  # type: ignore[misc] # the library has no types
        began = last = 0.0

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.began = self.last = time.perf_counter()

        def on_log(
            self, _: Any, state: Any, __: Any, logs: Mapping[str, float], **___: Any
        ) -> None:
            if "loss" not in logs or os.environ.get("RANK", "0") != "0":
                return
            now = time.perf_counter()
            rate = examples / (now - self.last)
            self.last = now
            line = {
                "step": state.global_step,
                "seconds": now - self.began,
                "loss": logs["loss"],
                "examples_per_second": rate,
                # Theirs are as long as ours, on average.
                "tokens_per_second": rate * tokens,
                "workers": [],
            }
            storage.add_line(path, json.dumps(line))

    return Lines()


if __name__ == "__main__":
    main()
