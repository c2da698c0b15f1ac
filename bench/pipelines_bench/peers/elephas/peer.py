"""What Elephas' `SparkModel` needs."""

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
        not_installed("elephas", '"sentence-pipelines[elephas]"'),
        other_training(config, has_negatives),
        without_form(config),
        elsewhere(config),
    )


PEER = Peer(
    name="elephas-spark-model",
    framework="tensorflow",
    trains="pipelines_bench.peers.elephas.training:train",
    missing=_missing,
)
