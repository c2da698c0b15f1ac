"""Measures one checkpoint: ``python -m pipelines.evaluation.process`` with the job as JSON.

A process of its own, without Spark and with as little of the CPU as the system can give it while
others want it; its last line on standard output is the figures as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from pipelines.encoder.folder import write_encoder
from pipelines.encoder.inference import load_embedder
from pipelines.evaluation.snapshot import measure
from pipelines.training.checkpoint import load_checkpoint

NICENESS = 19


def main() -> None:
    """Reads ``run_folder``, ``step``, ``tokenizer`` and ``snapshots`` from standard input."""
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    # What libraries print goes to the log.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.nice(NICENESS)
    job = json.load(sys.stdin)
    # First of all, since the training may soon delete it.
    checkpoint = load_checkpoint(Path(job["run_folder"]), job["step"])
    with tempfile.TemporaryDirectory(prefix="sentence-pipelines-") as folder:
        model = Path(folder) / "model"
        write_encoder(model, checkpoint.spec, checkpoint.weights, Path(job["tokenizer"]), "")
        del checkpoint
        figures = measure(Path(job["snapshots"]), lambda: load_embedder(model, precision="fp32"))
    answer.write(json.dumps(figures) + "\n")
    answer.flush()


if __name__ == "__main__":
    main()
