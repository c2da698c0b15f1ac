"""``python -m pipelines_bench.sharded FOLDER [--engine fsdp] [--hidden 2048] ...``."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipelines_bench.sharded.command import STEPPERS, measure
from pipelines_bench.sharded.models import VOCABULARY


def main() -> None:
    """Measures as the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m pipelines_bench.sharded")
    parser.add_argument("folder", type=Path, help="has room for 16 bytes for each parameter")
    parser.add_argument("--engine", choices=tuple(STEPPERS), default="fsdp")
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=4, help="in a granule of a worker")
    parser.add_argument("--tokens", type=int, default=32, help="of a text")
    parser.add_argument("--offload", choices=("none", "cpu", "disk"), default="none")
    parser.add_argument("--activation-checkpointing", action="store_true")
    parser.add_argument("--checkpoint", action=argparse.BooleanOptionalAction, default=True)
    measure(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
