"""spark-submit jobs/mine.py [--config FILE] [--set KEY=VALUE ...].

See docs/guides/hard-negatives.md.
"""

import sys

from pipelines.cli import main

if __name__ == "__main__":
    sys.exit(main(["mine", *sys.argv[1:]]))
