"""From a run's model to the model in service: the gate, the folder that is served, the stage."""

from pipelines.promotion.served import current

__all__ = ["current"]
