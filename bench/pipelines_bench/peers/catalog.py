"""All peers by name. A new one is one file, which has a ``PEER``, and one line here."""

from __future__ import annotations

from collections.abc import Mapping

from pipelines_bench.peers.elephas.peer import PEER as ELEPHAS
from pipelines_bench.peers.orca.peer import PEER as ORCA
from pipelines_bench.peers.peer import Peer
from pipelines_bench.peers.sentence_transformers import PEER as SENTENCE_TRANSFORMERS
from pipelines_bench.peers.tensorflowonspark.peer import PEER as TENSORFLOWONSPARK

PEERS: Mapping[str, Peer] = {
    peer.name: peer for peer in (SENTENCE_TRANSFORMERS, TENSORFLOWONSPARK, ELEPHAS, ORCA)
}
