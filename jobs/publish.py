"""spark-submit jobs/publish.py [--config FILE] [--set KEY=VALUE ...].

See docs/guides/vector-stores.md.
"""

import sys

from pipelines.cli import main

if __name__ == "__main__":
    sys.exit(main(["publish", *sys.argv[1:]]))
