"""``python -m pipelines_bench.gpu [--device cpu] [--short] [--out FOLDER]``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines_bench.gpu.carried import add_carried, missing_packages

if TYPE_CHECKING:
    from pipelines_bench.gpu.checks import Check

OUT = "build/gpu"
PARTS = {"results": True, "figures": False}
"""Whether the checks of a part are those of correctness."""
FIGURES_SECONDS = 480.0
"""After which nothing new is measured: the whole has nine minutes."""
PART_SECONDS = 330.0
"""The same for the part of figures, which has six."""
NOT_RUN = 2
GPU = "cuda:0"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the checks; 0 if all that is computed is right, 1 if not, 2 if nothing was run."""
    options = _parse(arguments)
    add_carried()
    if missing := missing_packages():
        print(f"missing: {', '.join(missing)}; `make gpu-packages` fills a folder to carry along")
        return NOT_RUN
    # One GPU, the first that may be used, for this process and for those that it starts.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")
    os.environ["CUDA_VISIBLE_DEVICES"] = visible[0] if options.device == GPU else ""
    # A model's name must never lead to a download.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from pipelines_bench.gpu.torch_machine import begin, described, is_there

    if options.device == GPU and not is_there():
        print("PyTorch finds no GPU here; --device cpu holds the CPU against itself")
        return NOT_RUN
    begin()
    return _run(options, described(options.device))


def _run(options: argparse.Namespace, machine: dict[str, str]) -> int:
    from pipelines_bench.gpu.checks import Place
    from pipelines_bench.gpu.running import (
        JSON_FILE,
        TABLE_FILE,
        Session,
        earlier_results,
        has_failed,
        run_checks,
    )

    out = Path(options.out or (f"{OUT}-{options.part}" if options.part else OUT))
    out.mkdir(parents=True, exist_ok=True)
    done = earlier_results(out) if options.go_on else []
    if not done:
        print(", ".join(f"{name} {value}" for name, value in machine.items()), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        place = Place(device=options.device, folder=Path(folder), short=options.short)
        # A process that goes on has as much time as is left.
        began = time.time() - sum(one.seconds for one in done)
        seconds = options.figures_seconds or (PART_SECONDS if options.part else FIGURES_SECONDS)
        session = Session(place=place, machine=machine, out=out, began=began, seconds=seconds)
        results = run_checks(session, _chosen(options), done)
    failed = [one.name for one in results if one.status == "failed"]
    print(f"{len(results)} checks, failed: {', '.join(failed) or 'none'}")
    print(f"written: {out / JSON_FILE}, {out / TABLE_FILE}")
    return 1 if has_failed(results) else 0


def _chosen(options: argparse.Namespace) -> list[Check]:
    """The checks that the command line asks for."""
    from pipelines_bench.gpu.checks import CHECKS

    chosen = [one for one in CHECKS if one.short or not options.short]
    if options.part:
        chosen = [one for one in chosen if one.correctness is PARTS[options.part]]
    if options.only:
        chosen = [one for one in chosen if any(part in one.name for part in options.only)]
    return chosen


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m pipelines_bench.gpu", description=__doc__)
    parser.add_argument("--device", choices=(GPU, "cpu"), default=GPU)
    parser.add_argument("--short", action="store_true", help="a part of it, as small as can be")
    parser.add_argument("--out", help="folder of what is found")
    parser.add_argument("--only", action="append", help="a part of the name of the checks to run")
    parser.add_argument("--part", choices=(*PARTS,), help="one of two, of six minutes each")
    parser.add_argument("--figures-seconds", type=float)
    parser.add_argument("--go-on", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
