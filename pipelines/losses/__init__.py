"""The losses by name: a module each, and a line below.

To add one, write a module with its settings (a subclass of
:class:`pipelines.settings.objective.ObjectiveSettings`), a function per framework, and a
:class:`pipelines.losses.loss.Loss` that declares them and what it needs. The page of settings,
refusals before Spark starts and the rules of resuming follow from these;
``tests/losses/test_adding_a_loss.py`` does it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.registry import Registry

if TYPE_CHECKING:
    from pipelines.losses.loss import Loss

LOSSES: Registry[Loss] = Registry(
    kind="loss",
    key="objective.name",
    entries={
        "in_batch_negatives": "pipelines.losses.in_batch_negatives:LOSS",
        "simcse": "pipelines.losses.simcse:LOSS",
        "triplet": "pipelines.losses.triplet:LOSS",
        "cosine_regression": "pipelines.losses.cosine_regression:LOSS",
        "cosent": "pipelines.losses.cosent:LOSS",
        "angle": "pipelines.losses.angle:LOSS",
        "contrastive": "pipelines.losses.contrastive:LOSS",
        "online_contrastive": "pipelines.losses.online_contrastive:LOSS",
        "margin_mse": "pipelines.losses.margin_mse:LOSS",
        "listwise_kl": "pipelines.losses.listwise_kl:LOSS",
        "embedding_distillation": "pipelines.losses.embedding_distillation:LOSS",
        "similarity_distillation": "pipelines.losses.similarity_distillation:LOSS",
        "mlm": "pipelines.pretraining.mlm:LOSS",
        "clm": "pipelines.pretraining.clm:LOSS",
        "tsdae": "pipelines.pretraining.tsdae:LOSS",
        "retromae": "pipelines.pretraining.retromae:LOSS",
    },
    renamed={"twins": "simcse"},
)
