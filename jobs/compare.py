"""spark-submit jobs/compare.py [--data FOLDER] [--config FILE] [--set KEY=VALUE ...]."""

import sys

from pipelines.cli import main

if __name__ == "__main__":
    sys.exit(main(["compare", *sys.argv[1:]]))
