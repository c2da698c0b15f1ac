"""What Orca's Estimator needs."""

from __future__ import annotations

from pipelines.settings import Config
from pipelines_bench.peers.peer import (
    Peer,
    elsewhere,
    first_of,
    not_installed,
    other_training,
    without_form,
)


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
    trains="pipelines_bench.peers.orca.training:train",
    missing=_missing,
)
