"""spark-submit jobs/train.py [--config FILE] [--set KEY=VALUE ...].

See docs/reference/commands.md.
"""

import sys

from pipelines.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
