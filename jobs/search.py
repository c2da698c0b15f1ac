"""spark-submit jobs/search.py --query TEXT [-k N] [--config FILE] [--set KEY=VALUE ...]."""

import sys

from pipelines.cli import main

if __name__ == "__main__":
    sys.exit(main(["search", *sys.argv[1:]]))
