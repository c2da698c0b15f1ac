"""The fuzz tests round by round, each with other examples: ``python -m fuzz_rounds --minutes 20``.

Further arguments are pytest's.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "fuzz"
EXAMPLES = 300
"""Of each test in a round: what a round begins with takes much less time than they do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs rounds until one fails or the time is over; returns the exit code."""
    parser = argparse.ArgumentParser(prog="fuzz_rounds", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long")
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="of each test in a round")
    known, others = parser.parse_known_args(arguments)
    deadline, rounds = time.monotonic() + 60 * known.minutes, 0
    environment = os.environ | {"FUZZ_EXAMPLES": str(known.examples)}
    # The first failure ends a round, so that one that the deadline ends has found nothing.
    command = [sys.executable, "-m", "pytest", "--quiet", "--exitfirst", *others, str(TESTS)]
    while (left := deadline - time.monotonic()) > 0:
        try:
            code = subprocess.run(command, env=environment, timeout=left, check=False).returncode
        except subprocess.TimeoutExpired:
            break
        if code:
            return code
        rounds += 1
    print(f"{rounds} whole rounds of {known.examples} examples of each test found nothing")
    return 0


if __name__ == "__main__":
    sys.exit(main())
