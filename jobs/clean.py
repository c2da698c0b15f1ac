"""spark-submit jobs/clean.py [--config FILE] [--set KEY=VALUE ...].

See docs/reference/commands.md.
"""

import sys

from pipelines.cli import main

if __name__ == "__main__":
    sys.exit(main(["clean", *sys.argv[1:]]))
