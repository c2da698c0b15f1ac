"""What TensorFlowOnSpark's own feed needs."""

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
    install = '"sentence-pipelines[tensorflowonspark]"'
    return first_of(
        not_installed("tensorflowonspark", install),
        not_installed("keras", install),
        other_training(config, has_negatives),
        without_form(config),
        elsewhere(config),
    )


PEER = Peer(
    name="tensorflowonspark-feed",
    framework="tensorflow",
    trains="pipelines_bench.peers.tensorflowonspark.cluster:train",
    missing=_missing,
)
