"""Whether a worker of TensorFlow leaves a GPU's memory to others."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

from pipelines_bench.gpu.checks import Finding, Place, SkippedError

SECONDS = 120
MOST = 0.2
"""Of the memory of a GPU, by a worker that holds next to nothing."""


def memory(place: Place) -> Finding:
    """A worker computes on the one GPU that it was given, and takes what it needs of it."""
    if find_spec("tensorflow") is None:
        raise SkippedError("TensorFlow is not installed")
    command = [sys.executable, "-m", __name__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"the worker ended with {done.returncode}: {done.stderr[-300:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    if not found["gpus"]:
        raise SkippedError("TensorFlow finds no GPU")
    if found["visible"] != 1 or not all(found["growth"]):
        raise AssertionError(f"of {found['gpus']} GPUs {found['visible']} are used: {found}")
    if found["share"] > MOST:
        raise AssertionError(f"{found['share']:.0%} of the GPU's memory is taken")
    return Finding(f"one GPU, of whose memory {found['share']:.1%} is taken", found)


def main() -> None:
    """Begins as a worker does, computes something, and tells what it has taken."""
    from pipelines.lean_tensorflow import tensorflow as tf
    from pipelines.settings import TrainingSettings
    from pipelines.training.steppers.tensorflow import TensorFlowStepper

    TensorFlowStepper.prepare_process(TrainingSettings())
    gpus, visible = tf.config.list_physical_devices("GPU"), tf.config.get_visible_devices("GPU")
    before = _used() if gpus else 0.0
    tf.linalg.matmul(tf.ones([256, 256]), tf.ones([256, 256])).numpy()
    growth = [bool(tf.config.experimental.get_memory_growth(gpu)) for gpu in visible]
    share = _used() - before if gpus else 0.0
    told = {"gpus": len(gpus), "visible": len(visible), "growth": growth, "share": share}
    print(f"\n{json.dumps(told)}")


def _used() -> float:
    """The share of the first GPU's memory that all processes hold."""
    command = [
        "nvidia-smi",
        "--query-gpu=memory.used,memory.total",
        "--format=csv,noheader,nounits",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    used, total = map(float, done.stdout.splitlines()[0].split(","))
    return used / total


if __name__ == "__main__":
    main()
