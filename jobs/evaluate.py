"""spark-submit jobs/evaluate.py [--config FILE] [--set KEY=VALUE ...].

See docs/reference/commands.md.
"""

import sys

from pipelines.cli import main

if __name__ == "__main__":
    sys.exit(main(["evaluate", *sys.argv[1:]]))
