"""spark-submit jobs/benchmark.py NAME [--data FOLDER] [--config FILE] [--set KEY=VALUE ...]."""

import sys

from pipelines.cli import main

if __name__ == "__main__":
    sys.exit(main(["benchmark", *sys.argv[1:]]))
