"""What Orca's Estimator needs."""

from __future__ import annotations

from pipelines.benchmarks.strategies.peers.peer import (
    Peer,
    elsewhere,
    first_of,
    not_installed,
    other_training,
    without_form,
)
from pipelines.settings import Config


def _missing(config: Config, has_negatives: bool) -> str:
    return first_of(
        not_installed("bigdl.orca", '"sentence-pipelines[bigdl]"'),
        other_training(config, has_negatives),
        without_form(config),
        elsewhere(config),
    )


PEER = Peer(
    name="orca-estimator",
    framework="torch",
    trains="pipelines.benchmarks.strategies.peers.orca.training:train",
    missing=_missing,
)
