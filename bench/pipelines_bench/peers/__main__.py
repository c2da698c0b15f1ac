"""``python -m pipelines_bench.peers NAME SETTINGS``: trains as a peer does."""

from __future__ import annotations

import sys

from pipelines.interruption import terminated_in_order
from pipelines.settings.load import load
from pipelines_bench.peers.catalog import PEERS


def main() -> None:
    """Trains by the peer that is named first, as the configuration file says that comes second."""
    name, settings = sys.argv[1:]
    with terminated_in_order():
        PEERS[name].training()(load(settings, ()))


if __name__ == "__main__":
    main()
