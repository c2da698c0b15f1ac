"""spark-submit jobs/delete.py --key KEY [--keys FILE] [--config FILE] [--set KEY=VALUE ...]."""

import sys

from pipelines.cli import main

if __name__ == "__main__":
    sys.exit(main(["delete", *sys.argv[1:]]))
