"""torchrun as Spark's distributors start it, in one process less.

Runs on an executor: ``python -m pipelines.engines.torchrun ARGUMENTS SCRIPT``.
"""

from __future__ import annotations

import runpy
import sys

from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

from pipelines.engines.processes import end_with_parent


def main() -> None:
    """Runs a script in a worker, until both have ended.

    The worker is forked, where torchrun starts an interpreter that imports PyTorch once more.
    """
    end_with_parent()
    arguments = parse_args(sys.argv[1:])
    config, *_ = config_from_args(arguments)
    config.start_method = "fork"
    elastic_launch(config, run_script)(arguments.training_script)


def run_script(path: str) -> None:
    """The worker; ends with torchrun's process."""
    end_with_parent()
    runpy.run_path(path, run_name="__main__")


if __name__ == "__main__":
    main()
