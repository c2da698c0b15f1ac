"""spark-submit jobs/export.py [--config FILE] [--set KEY=VALUE ...].

See docs/guides/export.md.
"""

import sys

from pipelines.cli import main

if __name__ == "__main__":
    sys.exit(main(["export", *sys.argv[1:]]))
