"""The console command as ``python -m pipelines``, where only the interpreter is at hand."""

import sys

from pipelines.cli import main

if __name__ == "__main__":
    sys.exit(main())
