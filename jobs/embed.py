"""spark-submit jobs/embed.py [--config FILE] [--set KEY=VALUE ...].

See docs/guides/embedding-and-search.md.
"""

import sys

from pipelines.cli import main

if __name__ == "__main__":
    sys.exit(main(["embed", *sys.argv[1:]]))
