"""Every setting: typed, with its unit, range and default; see :mod:`pipelines.settings.load`.

A section is a file of its name, with the rules that its keys are refused by.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from pipelines.catalog import RECIPES
from pipelines.settings.base import Settings
from pipelines.settings.card import CardSettings
from pipelines.settings.corpus import CorpusSettings
from pipelines.settings.embedding import EmbeddingSettings
from pipelines.settings.encoder import EncoderSettings
from pipelines.settings.evaluation import EvaluationSettings
from pipelines.settings.lanes import LaneSettings
from pipelines.settings.mining import MiningSettings
from pipelines.settings.objective import AnyObjective, ObjectiveSettings, objective
from pipelines.settings.prepared import PreparedSettings
from pipelines.settings.promotion import PromotionSettings
from pipelines.settings.recipes import with_recipe
from pipelines.settings.run import RunSettings
from pipelines.settings.spark import SparkSettings
from pipelines.settings.stages import StageSettings
from pipelines.settings.storage import StorageSettings
from pipelines.settings.teacher import TeacherSettings
from pipelines.settings.tokens import TokenSettings
from pipelines.settings.tracking import TrackingSettings
from pipelines.settings.training import TrainingSettings

__all__ = [
    "CardSettings",
    "Config",
    "CorpusSettings",
    "EmbeddingSettings",
    "EncoderSettings",
    "EvaluationSettings",
    "LaneSettings",
    "MiningSettings",
    "ObjectiveSettings",
    "PreparedSettings",
    "PromotionSettings",
    "RunSettings",
    "Settings",
    "SparkSettings",
    "StageSettings",
    "StorageSettings",
    "TeacherSettings",
    "TokenSettings",
    "TrackingSettings",
    "TrainingSettings",
]


class Config(Settings):
    """The whole configuration; ``Config()`` is the embedded default job."""

    recipe: str | None = Field(
        default=None,
        json_schema_extra={"enum": [*RECIPES]},
        description=(
            "Settings that are meant for one another, for one kind of corpus, under whatever else "
            "is set; see [recipes](recipes.md). Unset: the defaults below."
        ),
    )
    corpus: CorpusSettings = CorpusSettings()
    prepared: PreparedSettings = PreparedSettings()
    tokens: TokenSettings = TokenSettings()
    teacher: TeacherSettings = TeacherSettings()
    lanes: LaneSettings = LaneSettings()
    encoder: EncoderSettings = EncoderSettings()
    # Not made before the losses can be imported, which import this package.
    objective: AnyObjective = Field(default_factory=objective)
    training: TrainingSettings = TrainingSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    tracking: TrackingSettings = TrackingSettings()
    embedding: EmbeddingSettings = EmbeddingSettings()
    mining: MiningSettings = MiningSettings()
    promotion: PromotionSettings = PromotionSettings()
    run: RunSettings = RunSettings()
    card: CardSettings = CardSettings()
    spark: SparkSettings = SparkSettings()
    stages: StageSettings = StageSettings()
    storage: StorageSettings = StorageSettings()

    @field_validator("recipe")
    @classmethod
    def _check_recipe(cls, name: str | None) -> str | None:
        return name if name is None else RECIPES.check(name)

    @model_validator(mode="before")
    @classmethod
    def _with_recipe(cls, given: Any) -> Any:
        return with_recipe(given)

    @model_validator(mode="after")
    def _check_sections(self) -> Config:
        for _, section in self:
            if isinstance(section, Settings):
                section.check_with(self)
        return self
