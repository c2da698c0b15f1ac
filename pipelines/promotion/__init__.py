"""From a run's model to the model in service: the gate, the served folder, the stage."""

from pipelines.models.identity import model_digest
from pipelines.promotion.served import current

__all__ = ["current", "model_digest"]
