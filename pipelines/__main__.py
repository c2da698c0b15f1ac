"""The console command as ``python -m pipelines``, for machines without it on the PATH."""

import sys

from pipelines.cli import main

if __name__ == "__main__":
    sys.exit(main())
