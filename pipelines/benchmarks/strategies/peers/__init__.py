"""Other libraries' own ways to train, by name. A new one is one file, and one line here.

The file has a :class:`~pipelines.benchmarks.strategies.peers.peer.Peer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.registry import Registry

if TYPE_CHECKING:
    from pipelines.benchmarks.strategies.peers.peer import Peer

PEERS: Registry[Peer] = Registry(
    kind="peer",
    key="--cases",
    entries={
        "sentence-transformers": "pipelines.benchmarks.strategies.peers.sentence_transformers:PEER",
        "tensorflowonspark-feed": (
            "pipelines.benchmarks.strategies.peers.tensorflowonspark.peer:PEER"
        ),
        "elephas-spark-model": "pipelines.benchmarks.strategies.peers.elephas.peer:PEER",
        "orca-estimator": "pipelines.benchmarks.strategies.peers.orca.peer:PEER",
    },
)
