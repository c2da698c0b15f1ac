"""spark-submit jobs/score.py [--config FILE] [--set KEY=VALUE ...].

See docs/guides/questions.md.
"""

import sys

from pipelines.cli import main

if __name__ == "__main__":
    sys.exit(main(["score", *sys.argv[1:]]))
