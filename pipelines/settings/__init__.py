"""Every setting: typed, with its unit, range and default; see :mod:`pipelines.config`."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from pipelines.settings.base import Settings
from pipelines.settings.models import (
    EmbeddingSettings,
    EvaluationSettings,
    PromotionSettings,
)
from pipelines.settings.preparation import (
    CorpusSettings,
    LaneSettings,
    PreparedSettings,
    TokenSettings,
)
from pipelines.settings.training import (
    EncoderSettings,
    ObjectiveSettings,
    RunSettings,
    TrackingSettings,
    TrainingSettings,
)

__all__ = [
    "Config",
    "CorpusSettings",
    "EmbeddingSettings",
    "EncoderSettings",
    "EvaluationSettings",
    "LaneSettings",
    "ObjectiveSettings",
    "PreparedSettings",
    "PromotionSettings",
    "RunSettings",
    "Settings",
    "TokenSettings",
    "TrackingSettings",
    "TrainingSettings",
]


class Config(Settings):
    """The whole configuration; ``Config()`` is the embedded default job."""

    corpus: CorpusSettings = CorpusSettings()
    prepared: PreparedSettings = PreparedSettings()
    tokens: TokenSettings = TokenSettings()
    lanes: LaneSettings = LaneSettings()
    encoder: EncoderSettings = EncoderSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    training: TrainingSettings = TrainingSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    tracking: TrackingSettings = TrackingSettings()
    embedding: EmbeddingSettings = EmbeddingSettings()
    promotion: PromotionSettings = PromotionSettings()
    run: RunSettings = RunSettings()
    spark: Mapping[str, str] = Field(
        default_factory=dict,
        description="Spark conf: `spark.master`, `spark.executor.memory`, any other `spark.*` key.",
    )
