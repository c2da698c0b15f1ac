"""What the embeddings of a granule are compared with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipelines.lanes.files import Granule, SideName
from pipelines.losses import LOSSES
from pipelines.losses.candidates import Candidates, Picks, identities
from pipelines.settings import ObjectiveSettings

Targets = Picks | np.ndarray
"""The scores, fp32 [examples], of a loss that needs them; of any other, which texts the anchors may
be compared with. The forms of a loss take both as tensors."""


def granule_targets(
    settings: ObjectiveSettings, granule: Granule, sides: Sequence[SideName]
) -> Targets:
    """What the embeddings of a granule are compared with, if its negatives are its own.

    Args:
        settings: They name the loss.
        granule: All its sides may be there; those that are not embedded do not count.
        sides: Those that are embedded, as the loss takes them.
    """
    if LOSSES.load(settings.name).needs == "scores":
        assert granule.scores is not None, "the driver has seen that there are scores"
        return granule.scores
    candidates = Candidates(identities([granule], sides), anchors=settings.compares_anchors)
    return candidates.picks(0, granule.examples)
