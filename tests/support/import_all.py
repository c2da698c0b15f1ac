"""``python import_all.py MODULE...``: imports modules of the package, and tells which cannot be."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

# Libraries that a machine may have been set up without.
OPTIONAL = ("horovod", "bigdl", "megatron", "mesh_tensorflow", "vllm")
SECONDS = 600


def import_errors(modules: Iterable[str]) -> dict[str, str]:
    """The errors by module, found in a process apart: some libraries change the one they are in."""
    command = [sys.executable, str(Path(__file__)), *sorted(modules)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    absent = {name for name in OPTIONAL if find_spec(name) is None}
    errors = {}
    for name in sys.argv[1:]:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in absent:
                errors[name] = repr(error)
        except Exception as error:  # noqa: BLE001 - each is told
            errors[name] = repr(error)
    print(f"\n{json.dumps(errors)}")


if __name__ == "__main__":
    main()
