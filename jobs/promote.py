"""spark-submit jobs/promote.py [--config FILE] [--set KEY=VALUE ...].

See docs/reference/commands.md.
"""

import sys

from pipelines.cli import main

if __name__ == "__main__":
    sys.exit(main(["promote", *sys.argv[1:]]))
